"""How much the store holds, and how it is made smaller."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from tunery._errors import UsageError
from tunery.domain import Provenance
from tunery.store.database import schema
from tunery.store.database.connection import Database
from tunery.store.records.entries import entries
from tunery.store.records.ranking import kept

_records = schema.records
_ALL = sa.true()


@dataclass(frozen=True, slots=True)
class StoreStats:
    """What a store holds: numbers of rows, records by outcome, device and compiler, and its size in bytes."""

    place: str
    records: int
    outcomes: Mapping[str, int]
    devices: Mapping[str, int]
    compilers: Mapping[str, int]
    tasks: int
    workloads: int
    networks: int
    jobs: int
    size_bytes: int


class Upkeep(Database):
    """The store's housekeeping."""

    def stats(self, account: str | None = None) -> StoreStats:
        """Return what the store holds, or what jobs of `account` have measured."""
        jobs, tasks = schema.jobs.c, schema.tasks.c
        own: sa.ColumnElement[bool] = _ALL
        its: sa.ColumnElement[bool] = _ALL
        keys = tasks.key
        if account is not None:
            its = jobs.account == account
            own = _records.c.job_id.in_(sa.select(jobs.job_id).where(its))
            keys = _records.c.task_key
        held = sa.select(keys).where(own).distinct()
        workloads = sa.select(sa.func.count(tasks.workload_key.distinct())).where(tasks.key.in_(held))

        def count(connection: Connection) -> StoreStats:
            if account is None:
                networks, size = _count(connection, schema.networks), self._size(connection)
            else:
                requests = connection.execute(sa.select(jobs.request).where(its)).scalars()
                networks = len({request["network"] for request in requests if request.get("network")})
                bodies = sa.select(sa.func.sum(sa.func.length(_records.c.body))).where(own)
                size = int(connection.execute(bodies).scalar_one() or 0)
            return StoreStats(
                place=self.place,
                records=_count(connection, _records, own),
                outcomes=_counts(connection, "outcome", own),
                devices=_counts(connection, "device", own),
                compilers=_counts(connection, "compiler", own),
                tasks=_count(connection, held.subquery()),
                workloads=int(connection.execute(workloads).scalar_one()),
                networks=networks,
                jobs=_count(connection, schema.jobs, its),
                size_bytes=size,
            )

        return self.read(count)

    def count_by_device(self) -> dict[str, int]:
        return self.read(lambda connection: _counts(connection, "device"))

    def prune(self, task_key: str | None = None, *, keep: int) -> int:
        """Delete all but the `keep` fastest candidates' records, the baselines and wrong results; return how many went.
        Candidates are ranked per task and provenance as `best` does, unverified ones behind verified ones, and imported
        ones among themselves."""
        if keep < 0:
            raise UsageError(f"cannot keep {keep} candidates; write 0 or more")
        group = tuple(
            _records.c[name] for name in ("task_key", "dialect", "compiler", "device", "settings", "imported")
        )
        query = sa.select(*group).distinct()
        if task_key is not None:
            query = query.where(_records.c.task_key == task_key)

        def delete(connection: Connection) -> int:
            removed = 0
            for key, *provenance, imported in connection.execute(query).all():
                found = entries(connection, key, Provenance(*provenance), imported=imported)
                survivors = kept(found, keep)
                doomed = [{"row": entry.row_id} for entry in found if entry.row_id not in survivors]
                if doomed:
                    connection.execute(sa.delete(_records).where(_records.c.id == sa.bindparam("row")), doomed)
                removed += len(doomed)
            return removed

        removed = self.write(delete)
        if removed:
            self._give_back_space()
        return removed

    def rewind(self, moment: float) -> int:
        """Delete the records that were made after a point in time: the store answers what it answered then."""
        later = sa.delete(_records).where(_records.c.created_at > moment)
        return self.write(lambda connection: connection.execute(later).rowcount)

    def _give_back_space(self) -> None:
        if self.path is None:
            return  # PostgreSQL does so by itself
        # Without room for a second copy of the file this fails; the freed pages are used for the next records then.
        with suppress(DBAPIError), self._one_writer, self._engine.connect() as connection:
            raw = connection.connection.cursor()
            raw.execute("VACUUM")
            raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _size(self, connection: Connection) -> int:
        if self.path is None:
            query = sa.select(sa.func.pg_database_size(sa.func.current_database()))
            return int(connection.execute(query).scalar_one())
        files = (Path(f"{self.path}{suffix}") for suffix in ("", "-wal"))
        return sum(file.stat().st_size for file in files if file.exists())


def _count(connection: Connection, table: sa.FromClause, which: sa.ColumnElement[bool] = _ALL) -> int:
    return int(connection.execute(sa.select(sa.func.count()).select_from(table).where(which)).scalar_one())


def _counts(connection: Connection, column: str, which: sa.ColumnElement[bool] = _ALL) -> dict[str, int]:
    chosen = _records.c[column]
    query = sa.select(chosen, sa.func.count()).where(which).group_by(chosen).order_by(chosen)
    return {row[0]: row[1] for row in connection.execute(query)}
