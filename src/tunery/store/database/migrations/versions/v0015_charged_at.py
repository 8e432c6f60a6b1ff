"""When a charge was made; of earlier ones it is not known, so they count where their jobs last changed."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    op.add_column("ledger", sa.Column("charged_at", sa.Double, nullable=False, server_default="0"))
    op.execute("UPDATE ledger SET charged_at = (SELECT updated_at FROM jobs WHERE jobs.job_id = ledger.job_id)")
    op.create_index("ix_ledger_charged_at", "ledger", ["charged_at"])


def downgrade() -> None:
    op.drop_index("ix_ledger_charged_at", "ledger")
    op.drop_column("ledger", "charged_at")
