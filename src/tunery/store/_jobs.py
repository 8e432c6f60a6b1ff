"""Jobs: what was asked for, how it stands, and who works on it."""

import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, RowMapping

from tunery._errors import NothingFoundError, StoreError
from tunery.domain import JobState, JobStatus, canonical_json, digest
from tunery.store import _schema
from tunery.store._codec import decode, encode
from tunery.store._database import Database
from tunery.store._lease import Owner, lives, this_process

# What a job may use and where it is stored do not make it another job: a stopped job resumes with a larger budget.
_NOT_IDENTITY = frozenset({"budget", "queue", "store"})
_OVER = (JobState.DONE.value, JobState.CANCELLED.value)
_jobs = _schema.jobs


class Jobs(Database):
    """The store's jobs. An opened store is one owner: a job it has acquired cannot be acquired again, by anybody."""

    def __init__(self, url: URL) -> None:
        super().__init__(url)
        self._owner = this_process()

    def create_job(self, request: Mapping[str, str | int | float | bool | None]) -> JobStatus:
        """Store a new job, queued and owned by nobody."""
        now = time.time()
        status = JobStatus(uuid.uuid4().hex[:12], JobState.QUEUED, dict(request), created_at=now, updated_at=now)
        known = {"identity": identity(request), "request": encode(request), "created_at": now}
        row = sa.insert(_jobs).values(job_id=status.job_id, **known, **_progress(status, now))
        self.write(lambda connection: connection.execute(row))
        return status

    def save_job(self, status: JobStatus) -> None:
        """Store a job's state, spend, tasks and message; the time of the update is the store's.

        Raises:
            NothingFoundError: there is no such job.
            StoreError: a live owner other than this opened store works on it.
        """

        def update(connection: Connection) -> None:
            owner = _live_owner(_row(connection, status.job_id, self.place))
            if owner is not None and owner != self._owner:
                raise StoreError(f"job {status.job_id} belongs to process {owner.pid}; end that one first")
            _update(connection, status.job_id, _progress(status, time.time()))

        self.write(update)

    def job(self, job_id: str) -> JobStatus:
        """Return a job; one that was running in a process that is gone is shown as stopped.

        Raises:
            NothingFoundError: there is no such job.
        """
        return _status(self.read(lambda connection: _row(connection, job_id, self.place)))

    def taken(self, job_id: str) -> bool:
        """Say whether a live owner other than this opened store works on a job.

        Raises:
            NothingFoundError: there is no such job.
        """
        row = self.read(lambda connection: _row(connection, job_id, self.place))
        return _live_owner(row) not in {None, self._owner}

    def jobs(self, limit: int | None = None) -> list[JobStatus]:
        """Return the jobs, latest first."""
        query = sa.select(_jobs).order_by(_jobs.c.created_at.desc(), _jobs.c.job_id).limit(limit)
        return [_status(row) for row in self.read(lambda connection: connection.execute(query).mappings().all())]

    def resumable(self, request: Mapping[str, str | int | float | bool | None]) -> JobStatus | None:
        """Return the latest job that asks for the same (budget aside), is not over, and that no live process owns."""
        query = sa.select(_jobs).where(_jobs.c.identity == identity(request), _jobs.c.state.not_in(_OVER))
        query = query.order_by(_jobs.c.created_at.desc())
        rows = self.read(lambda connection: connection.execute(query).mappings().all())
        return next((_status(row) for row in rows if _live_owner(row) is None), None)

    def unfinished(self) -> list[JobStatus]:
        """Return the jobs that are queued, or were running in a process that is gone, oldest first."""
        states = (JobState.QUEUED.value, JobState.RUNNING.value)
        query = sa.select(_jobs).where(_jobs.c.state.in_(states)).order_by(_jobs.c.created_at, _jobs.c.job_id)
        rows = self.read(lambda connection: connection.execute(query).mappings().all())
        return [_status(row) for row in rows if _live_owner(row) is None]

    def specify_job(self, job_id: str, request: Mapping[str, str | int | float | bool | None]) -> None:
        """Store a job's request anew, when more of it is known than when it was created."""
        known = {"identity": identity(request), "request": encode(dict(request))}
        self.write(lambda connection: _update(connection, job_id, known))

    def acquire_job(self, job_id: str) -> bool:
        """Become the owner of a job, which is running from then on; False if it is over or a live process owns it.

        Raises:
            NothingFoundError: there is no such job.
        """

        def acquire(connection: Connection) -> bool:
            row = _row(connection, job_id, self.place)
            if row["state"] in _OVER or _live_owner(row) is not None:
                return False
            now = time.time()
            lease = {"owner": encode(self._owner), "heartbeat_at": now}
            _update(connection, job_id, {"state": JobState.RUNNING.value, "updated_at": now, **lease})
            return True

        return self.write(acquire)

    def heartbeat(self, job_id: str) -> bool:
        """Say that the owner lives, every half minute or so; False if this store no longer owns the job: stop work."""
        return self._if_mine(job_id, lambda: {"heartbeat_at": time.time()})

    def release_job(self, job_id: str, state: JobState) -> bool:
        """Leave a job in `state` for others; False, and nothing happens, if this store does not own it."""
        lease = {"owner": sa.null(), "heartbeat_at": None}
        return self._if_mine(job_id, lambda: {"state": state.value, "updated_at": time.time(), **lease})

    def _if_mine(self, job_id: str, values: Callable[[], Mapping[str, Any]]) -> bool:
        """Change a job that this opened store owns; return whether it does."""

        def update(connection: Connection) -> bool:
            mine = _owner(_row(connection, job_id, self.place)) == self._owner
            if mine:
                _update(connection, job_id, values())
            return mine

        return self.write(update)


def identity(request: Mapping[str, Any]) -> str:
    """Return the hash of what makes two requests the same job: everything but `budget…`, `queue…` and `store`."""
    kept = {key: value for key, value in request.items() if key.partition("_")[0] not in _NOT_IDENTITY}
    return digest(canonical_json(encode(kept)))


def _update(connection: Connection, job_id: str, values: Mapping[str, Any]) -> None:
    connection.execute(sa.update(_jobs).where(_jobs.c.job_id == job_id).values(**values))


def _row(connection: Connection, job_id: str, place: str) -> RowMapping:
    # FOR UPDATE keeps a second PostgreSQL session out; SQLite, which has no such words, is locked as a whole.
    query = sa.select(_jobs).where(_jobs.c.job_id == job_id)
    if connection.get_execution_options().get("tunery_write"):
        query = query.with_for_update()
    row = connection.execute(query).mappings().first()
    if row is None:
        raise NothingFoundError(f"the store {place} has no job {job_id}; `tunery jobs list` shows those it has")
    return row


def _owner(row: RowMapping) -> Owner | None:
    return None if row["owner"] is None else decode(Owner, row["owner"])


def _live_owner(row: RowMapping) -> Owner | None:
    owner = _owner(row)
    return owner if owner is not None and lives(owner, row["heartbeat_at"]) else None


def _progress(status: JobStatus, now: float) -> dict[str, Any]:
    shown = {"spend": status.spend, "tasks": status.tasks, "message": status.message}
    shown |= {"remaining": status.remaining, "outlook": status.outlook}
    return {"state": status.state.value, "document": encode(shown), "updated_at": now}


def _status(row: RowMapping) -> JobStatus:
    document = {name: row[name] for name in ("job_id", "request", "state", "created_at", "updated_at")}
    document |= row["document"]
    if row["state"] == JobState.RUNNING and _live_owner(row) is None:
        document["state"] = JobState.STOPPED.value
        document["message"] = document["message"] or "its process ended unexpectedly; resuming continues where it was"
    return decode(JobStatus, document)
