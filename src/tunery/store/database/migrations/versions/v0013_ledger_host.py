"""The host that a charge is of."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.add_column("ledger", sa.Column("host", sa.String, nullable=False, server_default=""))


def downgrade() -> None:
    op.drop_column("ledger", "host")
