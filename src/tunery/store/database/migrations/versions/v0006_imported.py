"""What came from other stores is told from what was measured and extracted here."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

_records = sa.table(
    "records",
    *(sa.column(name) for name in ("id", "job_id", "outcome", "deliverable", "rejected", "imported")),
    sa.column("document", sa.JSON),
)
_extractions = sa.table("extractions", sa.column("target_key"), sa.column("document", sa.JSON))
_workloads = sa.table("workloads", sa.column("key"), sa.column("imported"))
_jobs = sa.table("jobs", sa.column("job_id"))


def upgrade() -> None:
    for table in ("records", "workloads"):
        op.add_column(table, sa.Column("imported", sa.Boolean, nullable=False, server_default=sa.false()))
    connection = op.get_bind()
    told = _told_imported(connection)
    _mark(connection, _records, "id", told)
    # Which programs an import brought was not written down. Where there was one, networks are extracted once more.
    listed = connection.execute(sa.select(_extractions.c.target_key, _extractions.c.document)).all()
    if told or any(not target for target, _ in listed):
        connection.execute(sa.update(_workloads).values(imported=True))
    else:
        here = {entry["workload"]["key"] for _, document in listed for entry in document}
        keys = set(connection.execute(sa.select(_workloads.c.key)).scalars())
        _mark(connection, _workloads, "key", keys - here if listed else set())


def downgrade() -> None:
    for table in ("records", "workloads"):
        op.drop_column(table, "imported")


def _told_imported(connection: sa.Connection) -> set[Any]:
    """Return the records that an import brought: what calls itself verified and was not to be delivered, and its like.

    Its like are those of the same jobs, unless these jobs are of this store.
    """
    query = sa.select(_records.c.id, _records.c.job_id, _records.c.document).where(
        _records.c.outcome == "ok", sa.not_(_records.c.deliverable), sa.not_(_records.c.rejected)
    )
    ids: set[Any] = set()
    jobs: set[str] = set()
    for row in connection.execute(query, execution_options={"yield_per": 500}):
        verification = row.document["measurement"].get("verification") or {}
        if verification.get("passed") and verification.get("inputs", 0) >= 3:
            ids.add(row.id)
            jobs.add(row.job_id)
    jobs -= {"", *connection.execute(sa.select(_jobs.c.job_id)).scalars()}
    for job in jobs:
        ids.update(connection.execute(sa.select(_records.c.id).where(_records.c.job_id == job)).scalars())
    return ids


def _mark(connection: sa.Connection, table: sa.TableClause, column: str, chosen: set[Any]) -> None:
    if chosen:
        marked = sa.update(table).where(table.c[column] == sa.bindparam("one")).values(imported=True)
        connection.execute(marked, [{"one": one} for one in chosen])
