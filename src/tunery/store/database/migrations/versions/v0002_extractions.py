"""Networks and the cache of what was extracted from them."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "networks",
        sa.Column("digest", sa.String, nullable=False),
        sa.Column("document", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_networks"),
    )
    op.create_table(
        "extractions",
        sa.Column("network", sa.String, nullable=False),
        sa.Column("target_key", sa.String, nullable=False),
        sa.Column("compiler", sa.String, nullable=False),
        sa.Column("document", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("network", "target_key", "compiler", name="pk_extractions"),
        sa.ForeignKeyConstraint(["network"], ["networks.digest"], name="fk_extractions_network"),
    )


def downgrade() -> None:
    op.drop_table("extractions")
    op.drop_table("networks")
