"""What a job at work may cost until its process looks again; which token made a token."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("held_money", sa.Double, nullable=True))
    op.add_column("tokens", sa.Column("made_by", sa.String, nullable=False, server_default=""))


def downgrade() -> None:
    op.drop_column("tokens", "made_by")
    op.drop_column("jobs", "held_money")
