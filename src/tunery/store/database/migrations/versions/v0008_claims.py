"""Who is about to measure what."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.create_table(
        "claims",
        sa.Column("task_key", sa.String, nullable=False),
        sa.Column("conditions", sa.String, nullable=False),
        sa.Column("candidate_key", sa.String, nullable=False),
        sa.Column("job_id", sa.String, nullable=False),
        sa.PrimaryKeyConstraint("task_key", "conditions", "candidate_key", name="pk_claims"),
    )


def downgrade() -> None:
    op.drop_table("claims")
