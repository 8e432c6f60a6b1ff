"""The key of a workload's operator, which is the same in every dialect."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.add_column("workloads", sa.Column("operator", sa.String, nullable=True))
    op.create_index("ix_workloads_operator", "workloads", ["operator"])


def downgrade() -> None:
    op.drop_index("ix_workloads_operator", "workloads")
    op.drop_column("workloads", "operator")
