"""What a job at work may cost until its process looks again."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("held_money", sa.Double, nullable=True))


def downgrade() -> None:
    op.drop_column("jobs", "held_money")
