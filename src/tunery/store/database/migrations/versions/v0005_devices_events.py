"""What devices are, and what happened, in an order that every reader sees."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

_row_id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "devices",
        sa.Column("fingerprint", sa.String, nullable=False),
        sa.Column("host", sa.String, nullable=False),
        sa.Column("facts", sa.JSON, nullable=False),
        sa.Column("first_seen", sa.Double, nullable=False),
        sa.Column("last_seen", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("fingerprint", "host", name="pk_devices"),
    )
    op.create_table(
        "events",
        sa.Column("id", _row_id, nullable=False),
        sa.Column("job_id", sa.String, nullable=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("payload", sa.JSON, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_events_job_id_id", "events", ["job_id", "id"])


def downgrade() -> None:
    op.drop_table("events")
    op.drop_table("devices")
