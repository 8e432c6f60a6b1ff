"""What happened, in one order: a reader that knows the number of the last event it saw misses none."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from tunery._errors import LostJobError
from tunery.store.database import schema
from tunery.store.database.codec import encode, plain
from tunery.store.database.connection import Database, database_time

_LOCK = 0x74756E66  # any number that all tunery processes agree on
_table = schema.events


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a job (or, with `job_id` "", to none) at a time of the database's clock."""

    number: int
    job_id: str
    kind: str
    payload: Mapping[str, Any]
    created_at: float


class Events:
    """The store's events. Their numbers grow, and one becomes visible only after all smaller ones have."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def append(self, kind: str, payload: Mapping[str, Any] | None = None, job_id: str = "") -> int:
        document = encode(payload or {})

        def insert(connection: Connection) -> int:
            if self._database.lost_jobs(connection, [job_id]):
                raise lost_job(job_id)
            return insert_event(connection, kind, document, job_id)

        return self._database.write(insert)

    def after(self, number: int = 0, *, job_id: str | None = None, limit: int = 1000) -> list[Event]:
        query = sa.select(_table).where(_table.c.id > number).order_by(_table.c.id).limit(limit)
        if job_id is not None:
            query = query.where(_table.c.job_id == job_id)
        rows = self._database.read(lambda connection: connection.execute(query).mappings().all())
        return [_event(row) for row in rows]

    def newest(self, job_ids: Collection[str]) -> dict[str, int]:
        query = sa.select(_table.c.job_id, sa.func.max(_table.c.id)).where(_table.c.job_id.in_(job_ids))
        grouped = query.group_by(_table.c.job_id)
        return {row[0]: row[1] for row in self._database.read(lambda connection: connection.execute(grouped).all())}

    def latest(self, job_id: str, *kinds: str) -> Event | None:
        mine = sa.select(_table).where(_table.c.job_id == job_id, _table.c.kind.in_(kinds))
        query = mine.order_by(_table.c.id.desc()).limit(1)
        row = self._database.read(lambda connection: connection.execute(query).mappings().first())
        return _event(row) if row else None

    def last(self) -> int:
        latest = sa.select(sa.func.max(_table.c.id))
        return self._database.read(lambda connection: connection.execute(latest).scalar()) or 0

    def forget(self, before: float, but: Collection[str] = ()) -> int:
        """Delete the events before a time of the database's clock, but for some kinds; numbers are not reused."""
        old = sa.delete(_table).where(_table.c.created_at < before, _table.c.kind.not_in(but))
        return self._database.write(lambda connection: connection.execute(old).rowcount)


def lost_job(job_id: str) -> LostJobError:
    return LostJobError(f"job {job_id} went on in another process, for this one was silent too long")


def insert_event(connection: Connection, kind: str, payload: Mapping[str, Any], job_id: str) -> int:
    """On PostgreSQL numbers are drawn before transactions end. Holding a lock to the end keeps both in one order."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
    row = {"job_id": job_id, "kind": kind, "payload": payload, "created_at": database_time(connection)}
    return int(connection.execute(sa.insert(_table).values(row).returning(_table.c.id)).scalar_one())


def _event(row: RowMapping) -> Event:
    return Event(row["id"], row["job_id"], row["kind"], plain(row["payload"]), row["created_at"])
