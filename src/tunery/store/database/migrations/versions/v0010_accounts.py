"""Accounts, their tokens and uploads; a job has an account."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.create_table(
        "accounts",
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("role", sa.String, nullable=False),
        sa.Column("weight", sa.Double, nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("month_money", sa.Double, nullable=True),
        sa.Column("created_at", sa.Double, nullable=False),
    )
    op.create_table(
        "tokens",
        sa.Column("digest", sa.String, primary_key=True),
        sa.Column("account", sa.String, sa.ForeignKey("accounts.name"), nullable=False, index=True),
        sa.Column("label", sa.String, nullable=False),
        sa.Column("role", sa.String, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=True),
    )
    op.create_table(
        "uploads",
        sa.Column("account", sa.String, primary_key=True),
        sa.Column("digest", sa.String, primary_key=True),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
    )
    op.add_column("jobs", sa.Column("account", sa.String, nullable=False, server_default=""))
    op.create_index("ix_jobs_account_created_at", "jobs", ["account", "created_at"])


def downgrade() -> None:
    op.drop_index("ix_jobs_account_created_at", "jobs")
    with op.batch_alter_table("jobs") as table:
        table.drop_column("account")
    for name in ("uploads", "tokens", "accounts"):
        op.drop_table(name)
