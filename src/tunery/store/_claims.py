"""Claims: who is about to measure what, so that two processes on one store do not measure it twice."""

from collections.abc import Callable, Collection, Iterable

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from tunery.domain import Mode, Outcome, Provenance, Record, digest
from tunery.store._jobs import live_jobs
from tunery.store.database import schema
from tunery.store.database.connection import Database, batched, insert_new
from tunery.store.records.entries import holds, tells

_table, _records = schema.claims, schema.records


class Claims:
    """The store's claims. A claim holds for as long as its job has a live owner, until its candidate is recorded."""

    def __init__(self, database: Database, lost: Callable[[RowMapping], bool]) -> None:
        self._database, self._lost = database, lost

    def take(self, task_key: str, provenance: Provenance, keys: Collection[str], job_id: str) -> set[str]:
        """Claim candidates, and return the keys of those that are the job's to measure: no live job has claimed them,
        and they were not raced under these conditions. A job that went on in another process gets none."""
        jobs = schema.jobs.c
        holder = sa.select(jobs.job_id, jobs.owner).where(jobs.job_id == job_id)

        def claim(connection: Connection) -> set[str]:
            granted = set[str]()
            row = connection.execute(holder).mappings().first()
            if row is not None and self._lost(row):
                return granted
            for some in batched(keys):
                here = (*_here(task_key, provenance), _table.c.candidate_key.in_(some))
                holders = set(connection.execute(sa.select(_table.c.job_id).where(*here).distinct()).scalars())
                gone = holders - live_jobs(connection, holders - {job_id})
                connection.execute(sa.delete(_table).where(*here, _table.c.job_id.in_(gone)))
                rows = [{**_row(task_key, provenance, key), "job_id": job_id} for key in some]
                insert_new(connection, _table, rows)
                # Read last: what another has recorded until its claim went is seen from here on.
                mine = sa.select(_table.c.candidate_key).where(*here, _table.c.job_id == job_id)
                measured = sa.select(_records.c.candidate_key).where(
                    _records.c.task_key == task_key,
                    holds(provenance),
                    tells(),
                    sa.not_(_records.c.imported),
                    _records.c.outcome != Outcome.FILTERED.value,
                    _records.c.mode != Mode.FINAL.value,
                    _records.c.candidate_key.in_(some),
                )
                known = set(connection.execute(measured.distinct()).scalars())
                granted |= set(connection.execute(mine).scalars()) - known
                connection.execute(sa.delete(_table).where(*here, _table.c.candidate_key.in_(known)))
            return granted

        return self._database.write(claim)

    def give_up(self, task_key: str, provenance: Provenance, keys: Collection[str], job_id: str) -> None:
        def delete(connection: Connection) -> None:
            for some in batched(keys):
                here = (*_here(task_key, provenance), _table.c.candidate_key.in_(some))
                connection.execute(sa.delete(_table).where(*here, _table.c.job_id == job_id))

        self._database.write(delete)


def end_claims(connection: Connection, measured: Iterable[Record]) -> None:
    keys: dict[tuple[str, Provenance], set[str]] = {}
    for one in measured:
        keys.setdefault((one.candidate.task_key, one.provenance), set()).add(one.candidate.key)
    for here, ended in keys.items():
        for some in batched(ended):
            connection.execute(sa.delete(_table).where(*_here(*here), _table.c.candidate_key.in_(some)))


def _row(task_key: str, provenance: Provenance, key: str) -> dict[str, str]:
    return {"task_key": task_key, "conditions": _conditions(provenance), "candidate_key": key}


def _here(task_key: str, provenance: Provenance) -> tuple[sa.ColumnElement[bool], ...]:
    return _table.c.task_key == task_key, _table.c.conditions == _conditions(provenance)


def _conditions(provenance: Provenance) -> str:
    return digest(provenance.dialect, provenance.compiler, provenance.device, provenance.settings)
