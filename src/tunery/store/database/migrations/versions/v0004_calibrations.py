"""What was found about measuring several candidates at once on a device."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "calibrations",
        sa.Column("device", sa.String, nullable=False),
        sa.Column("dialect", sa.String, nullable=False),
        sa.Column("threads", sa.Integer, nullable=False),
        sa.Column("document", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("device", "dialect", "threads", name="pk_calibrations"),
    )


def downgrade() -> None:
    op.drop_table("calibrations")
