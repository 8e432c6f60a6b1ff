"""What was spent in money too, and on which candidates in vain."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("ledger", sa.Column("money", sa.Double, nullable=True))
    op.add_column("ledger", sa.Column("currency", sa.String, nullable=False, server_default=""))
    op.add_column("ledger", sa.Column("helped", sa.Boolean, nullable=False, server_default=sa.false()))


def downgrade() -> None:
    op.drop_column("ledger", "helped")
    op.drop_column("ledger", "currency")
    op.drop_column("ledger", "money")
