"""An index that has the records of a task by rank: the best are found without reading the others."""

import math
from typing import Any

import sqlalchemy as sa
from alembic import op

from tunery.domain.measurement import paced
from tunery.domain.ties import interval

revision = "0007"
down_revision = "0006"

_KEY = ["task_key", "dialect", "compiler", "device", "settings"]
_records = sa.table(
    "records",
    *(sa.column(name) for name in ("id", "mode", "latency_s", "rank_s")),
    sa.column("document", sa.JSON),
)


def upgrade() -> None:
    op.add_column("records", sa.Column("rank_s", sa.Double, nullable=True))
    connection = op.get_bind()
    connection.execute(sa.update(_records).values(rank_s=_records.c.latency_s))
    _rank_finals(connection)
    op.drop_index("ix_records_key", "records")
    op.create_index("ix_records_candidate", "records", [*_KEY, "imported", "candidate_key"])
    op.create_index(
        "ix_records_rank",
        "records",
        [*_KEY, "mode", "rank_s", "origin"],
        sqlite_where=sa.text("deliverable = 1"),
        postgresql_where=sa.text("deliverable"),
    )


def downgrade() -> None:
    op.drop_index("ix_records_rank", "records")
    op.drop_index("ix_records_candidate", "records")
    op.create_index("ix_records_key", "records", _KEY)
    op.drop_column("records", "rank_s")


def _rank_finals(connection: sa.Connection) -> None:
    finals = sa.select(_records.c.id, _records.c.document).where(
        _records.c.mode == "final", _records.c.latency_s.is_not(None)
    )
    found: list[dict[str, Any]] = []
    for row in connection.execute(finals, execution_options={"yield_per": 500}):
        measured = row.document["measurement"]
        samples = paced(measured["samples_s"], measured.get("context") or {})
        if not samples or not all(isinstance(sample, float | int) for sample in samples):
            continue  # no numbers: its latency stays its rank
        median_s = interval(samples)[1]
        if 0 < median_s < math.inf:
            found.append({"one": row.id, "rank": median_s})
    if found:
        ranked = sa.update(_records).where(_records.c.id == sa.bindparam("one")).values(rank_s=sa.bindparam("rank"))
        connection.execute(ranked, found)
