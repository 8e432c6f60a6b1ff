"""The best of an origin, and the compiler's defaults, are found without reading the others."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"

_KEY = ["task_key", "dialect", "compiler", "device", "settings"]


def upgrade() -> None:
    _replace([*_KEY, "mode", "origin", "rank_s"])
    default = sa.text("origin = 'baseline'")
    columns = [*_KEY, "imported", "mode"]
    op.create_index("ix_records_default", "records", columns, sqlite_where=default, postgresql_where=default)


def downgrade() -> None:
    op.drop_index("ix_records_default", "records")
    _replace([*_KEY, "mode", "rank_s", "origin"])


def _replace(columns: list[str]) -> None:
    op.drop_index("ix_records_rank", "records")
    op.create_index(
        "ix_records_rank",
        "records",
        columns,
        sqlite_where=sa.text("deliverable = 1"),
        postgresql_where=sa.text("deliverable"),
    )
