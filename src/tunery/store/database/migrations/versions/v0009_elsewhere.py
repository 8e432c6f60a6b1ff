"""Which nodes of a network run in ONNX Runtime, and why."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.add_column("extractions", sa.Column("elsewhere", sa.JSON, nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("extractions") as table:
        table.drop_column("elsewhere")
