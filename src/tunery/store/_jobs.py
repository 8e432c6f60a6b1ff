"""Jobs: what was asked for, how it stands, and who works on it."""

import sqlite3
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, RowMapping
from typing_extensions import override

from tunery._errors import LostJobError, NothingFoundError, StoreError
from tunery.domain import JobState, JobStatus, canonical_json, digest
from tunery.store._events import insert_event, lost_job
from tunery.store.database import schema
from tunery.store.database.codec import decode, encode, plain
from tunery.store.database.connection import Database, batched, database_time, inserted
from tunery.store.database.lease import Owner, announce, lives, this_process

# What a job may use and where it is stored do not make it another job: a stopped job resumes with a larger budget.
_NOT_IDENTITY = frozenset({"budget", "options", "queue", "store"})
_OVER = (JobState.DONE.value, JobState.CANCELLED.value)
_jobs = schema.jobs


class OtherVersionError(StoreError):
    """Another version of tunery works on a job of the store."""


class Jobs(Database):
    """The store's jobs. An opened store is one owner; one that is silent for too long loses a job to whoever acquires
    it next, and can change nothing of it from then on. Each acquisition has a number of its own, a lease's, which is
    larger than all before it: only the holder of a job's latest lease may change the job."""

    def __init__(self, url: URL, copy: sqlite3.Connection | None = None) -> None:
        super().__init__(url, copy)
        self._owner = this_process()
        self._leases: dict[str, Owner] = {}

    def create_job(self, request: Mapping[str, str | int | float | bool | None]) -> JobStatus:
        return self.create_job_once(request, new_job_id())[0]

    def create_job_once(
        self, request: Mapping[str, str | int | float | bool | None], job_id: str
    ) -> tuple[JobStatus, bool]:
        """Store a job as `create_job` does, unless there is a job `job_id`; return that job, and whether it is new."""
        now = time.time()
        status = JobStatus(job_id, JobState.QUEUED, dict(request), created_at=now, updated_at=now)
        account = str(request.get("queue_owner") or "")
        known = {"identity": identity(request), "request": encode(request), "created_at": now, "account": account}
        row = {"job_id": job_id, **known, **_progress(status, now)}

        def insert(connection: Connection) -> tuple[JobStatus, bool]:
            if not inserted(connection, _jobs, row):
                return _status(connection, _row(connection, job_id, self.place)), False
            _tell(connection, job_id, status.state)
            return status, True

        return self.write(insert)

    def save_job(self, status: JobStatus) -> None:
        def update(connection: Connection) -> None:
            row = _row(connection, status.job_id, self.place)
            mine, alive = self._leases.get(status.job_id), _live_owner(connection, row)
            if alive is not None and not alive.same(mine):
                raise LostJobError(f"job {status.job_id} belongs to process {alive.pid}; end that one first")
            self._check_held(row)
            _update(connection, status.job_id, _progress(status, time.time()))
            if row["state"] != status.state:
                _tell(connection, status.job_id, status.state, status.message)

        self.write(update)

    def job(self, job_id: str) -> JobStatus:
        """Return a job; one that was running in a process that is gone is shown as stopped."""
        return self.read(lambda connection: _status(connection, _row(connection, job_id, self.place)))

    def standing(self, job_ids: Collection[str]) -> dict[str, JobState]:
        columns = (_jobs.c.job_id, _jobs.c.state, _jobs.c.owner, _jobs.c.heartbeat_at)
        query = sa.select(*columns).where(_jobs.c.job_id.in_(job_ids))
        return self.read(lambda connection: {r["job_id"]: _state(connection, r) for r in _all(connection, query)})

    def count_states(self) -> dict[JobState, int]:
        query = sa.select(_jobs.c.state, sa.func.count()).group_by(_jobs.c.state)
        rows = self.read(lambda connection: connection.execute(query).all())
        return {JobState(state): count for state, count in rows}

    def taken(self, job_id: str) -> bool:
        def ask(connection: Connection) -> bool:
            alive = _live_owner(connection, _row(connection, job_id, self.place))
            return alive is not None and not alive.same(self._leases.get(job_id))

        return self.read(ask)

    def jobs(
        self,
        limit: int | None = None,
        *,
        account: str | None = None,
        before: tuple[float, str] | None = None,
        since: float | None = None,
        state: JobState | None = None,
    ) -> list[JobStatus]:
        """Return the jobs, latest first, that come after the job `before` (its `created_at` and id)."""
        query = sa.select(_jobs).order_by(_jobs.c.created_at.desc(), _jobs.c.job_id)
        if state in {JobState.RUNNING, JobState.STOPPED}:  # stopped: stored as running, by a process that is gone
            query = query.where(_jobs.c.state == JobState.RUNNING.value)
        elif state is not None:
            query = query.where(_jobs.c.state == state.value).limit(limit)
        else:
            query = query.limit(limit)
        if account is not None:
            query = query.where(_jobs.c.account == account)
        if since is not None:
            query = query.where(_jobs.c.created_at >= since)
        if before is not None:
            at, job_id = before
            same = sa.and_(_jobs.c.created_at == at, _jobs.c.job_id > job_id)
            query = query.where(sa.or_(_jobs.c.created_at < at, same))
        found = self.read(lambda connection: [_status(connection, row) for row in _all(connection, query)])
        return [status for status in found if state in {None, status.state}][:limit]

    def latest_changes(self, limit: int, account: str | None = None) -> list[tuple[str, float]]:
        query = sa.select(_jobs.c.job_id, _jobs.c.updated_at).order_by(_jobs.c.created_at.desc(), _jobs.c.job_id)
        if account is not None:
            query = query.where(_jobs.c.account == account)
        return self.read(lambda connection: [(row[0], row[1]) for row in connection.execute(query.limit(limit))])

    def stamp(self, job_id: str) -> tuple[float, int]:
        events = schema.events
        newest = sa.select(sa.func.max(events.c.id)).where(events.c.job_id == job_id).scalar_subquery()
        query = sa.select(_jobs.c.updated_at, newest).where(_jobs.c.job_id == job_id)
        row = self.read(lambda connection: connection.execute(query).first())
        if row is None:
            raise _missing(self.place, job_id)
        return row[0], row[1] or 0

    def count_jobs(self, since: float, until: float, account: str | None = None) -> dict[str, int]:
        query = sa.select(_jobs.c.account, sa.func.count()).group_by(_jobs.c.account)
        query = query.where(_jobs.c.created_at >= since, _jobs.c.created_at < until)
        if account is not None:
            query = query.where(_jobs.c.account == account)
        return {row[0]: row[1] for row in self.read(lambda connection: connection.execute(query).all())}

    def resumable(self, request: Mapping[str, str | int | float | bool | None]) -> JobStatus | None:
        """Return the latest job of the same account that asks for the same (budget aside), is not over, and that no
        live process owns."""
        query = sa.select(_jobs).where(_jobs.c.identity == identity(request), _jobs.c.state.not_in(_OVER))
        query = query.where(_jobs.c.account == str(request.get("queue_owner") or ""))
        query = query.order_by(_jobs.c.created_at.desc())

        def ask(connection: Connection) -> JobStatus | None:
            unowned = (row for row in _all(connection, query) if _live_owner(connection, row) is None)
            return next((_status(connection, row) for row in unowned), None)

        return self.read(ask)

    def unfinished(self, known: Collection[str] = ()) -> tuple[list[JobStatus], set[str]]:
        """Return the jobs that are queued, or were running in a process that is gone, oldest first, without the
        `known`; the second set has the known ones that are neither any more."""
        columns = (_jobs.c.job_id, _jobs.c.owner, _jobs.c.heartbeat_at)
        states = (JobState.QUEUED.value, JobState.RUNNING.value)
        query = sa.select(*columns).where(_jobs.c.state.in_(states)).order_by(_jobs.c.created_at, _jobs.c.job_id)

        def ask(connection: Connection) -> tuple[list[JobStatus], set[str]]:
            rows = [row for row in _all(connection, query) if _live_owner(connection, row) is None]
            new = [row["job_id"] for row in rows if row["job_id"] not in known]
            whole = [sa.select(_jobs).where(_jobs.c.job_id.in_(part)) for part in batched(new)]
            found = {row["job_id"]: _status(connection, row) for query in whole for row in _all(connection, query)}
            return [found[job_id] for job_id in new], set(known).difference(row["job_id"] for row in rows)

        known = frozenset(known)
        return self.read(ask)

    def requests_to_do(self) -> list[Mapping[str, Any]]:
        query = sa.select(_jobs.c.request).where(_jobs.c.state.not_in((*_OVER, JobState.FAILED.value)))
        return self.read(lambda connection: list(connection.execute(query).scalars()))

    def specify_job(self, job_id: str, request: Mapping[str, str | int | float | bool | None]) -> None:
        def update(connection: Connection) -> None:
            row = _row(connection, job_id, self.place)
            self._check_held(row)
            known = {**plain(row["request"]), **request}
            _update(connection, job_id, {"identity": identity(known), "request": encode(known)})

        self.write(update)

    def note_job(self, job_id: str, note: str, tags: Collection[str]) -> None:
        """Write a person's note and tags beside a job, whoever works on it."""

        def update(connection: Connection) -> None:
            known = {**plain(_row(connection, job_id, self.place)["request"]), "queue_note": note}
            known["queue_tags"] = ",".join(tags)
            _update(connection, job_id, {"request": encode(known), "updated_at": time.time()})

        self.write(update)

    def lost(self, row: RowMapping) -> bool:
        """Whether this opened store has worked on a job, of which `row` has the owner, and another one does since."""
        mine = self._leases.get(row["job_id"])
        return mine is not None and not mine.same(_owner(row))

    def _check_held(self, row: RowMapping) -> None:
        if self.lost(row):
            raise lost_job(row["job_id"])

    def check_version(self) -> None:
        self.read(self._check_version)

    def _check_version(self, connection: Connection) -> None:
        query = sa.select(_jobs.c.job_id, _jobs.c.owner, _jobs.c.heartbeat_at).where(_jobs.c.owner.is_not(sa.null()))
        for row in _all(connection, query):
            owner = _live_owner(connection, row)
            if owner is not None and owner.version != self._owner.version:
                raise OtherVersionError(
                    f"tunery {owner.version} (process {owner.pid}) works on job {row['job_id']} of the store "
                    f"{self.place}, and this is tunery {self._owner.version}; end that one first, or use its version"
                )

    def acquire_job(self, job_id: str) -> bool:
        """Become the owner of a job, which is running from then on; False if it is over or a live process owns it."""

        def acquire(connection: Connection) -> Owner | None:
            self._check_version(connection)
            row = _row(connection, job_id, self.place)
            if row["state"] in _OVER or _live_owner(connection, row) is not None:
                return None
            # The number of the event that tells of it: the database draws them, and they grow.
            owner = replace(self._owner, lease=_tell(connection, job_id, JobState.RUNNING))
            held = {"owner": encode(owner), "heartbeat_at": database_time(connection)}
            connection.execute(sa.delete(schema.claims).where(schema.claims.c.job_id == job_id))  # of who had it before
            _update(connection, job_id, {"state": JobState.RUNNING.value, "updated_at": time.time(), **held})
            return owner

        owner = self.write(acquire)
        if owner is not None:
            self._leases[job_id] = owner
        return owner is not None

    def lease(self, job_id: str) -> int | None:
        owner = self._leases.get(job_id)
        return None if owner is None else owner.lease

    def explain_job(self, job_id: str, why: str) -> None:
        def update(connection: Connection) -> None:
            row = _row(connection, job_id, self.place)
            if row["state"] == JobState.QUEUED and not row["document"]["message"]:
                told = {**row["document"], "message": why}
                _update(connection, job_id, {"document": told, "updated_at": time.time()})

        self.write(update)

    def announce_job(self, job_id: str) -> None:
        self.write(lambda connection: announce(connection, job_id))

    def heartbeat(self, job_id: str) -> bool:
        return self._if_mine(job_id, lambda connection: {"heartbeat_at": database_time(connection)})

    def release_job(self, job_id: str, state: JobState) -> bool:
        """Leave a job in `state` for others; False, and nothing happens, if this store does not own it."""
        lease = {"owner": sa.null(), "heartbeat_at": None}
        mine = self._if_mine(job_id, lambda _: {"state": state.value, "updated_at": time.time(), **lease})
        self._leases.pop(job_id, None)
        return mine

    def take_out_job(self, job_id: str, state: JobState) -> bool:
        """Leave a job in `state` whoever works on it; False if it is over. Its owner loses it by its next heartbeat."""

        def update(connection: Connection) -> bool:
            row = _row(connection, job_id, self.place)
            if row["state"] in _OVER:
                return False
            left: dict[str, Any] = {"owner": sa.null(), "heartbeat_at": None}
            if row["state"] == JobState.QUEUED:  # why it waited
                left["document"] = {**row["document"], "message": ""}
            _update(connection, job_id, {"state": state.value, "updated_at": time.time(), **left})
            _tell(connection, job_id, state)
            return True

        return self.write(update)

    @override
    def lost_jobs(self, connection: Connection, job_ids: Collection[str]) -> set[str]:
        asked = {job_id: self._leases[job_id] for job_id in set(job_ids).intersection(self._leases)}
        if not asked:
            return set()
        # FOR SHARE: nobody takes the job over between this look and the end of the transaction.
        query = sa.select(_jobs.c.job_id, _jobs.c.owner).where(_jobs.c.job_id.in_(asked)).with_for_update(read=True)
        return {row["job_id"] for row in _all(connection, query) if not asked[row["job_id"]].same(_owner(row))}

    def _if_mine(self, job_id: str, values: Callable[[Connection], Mapping[str, Any]]) -> bool:
        def update(connection: Connection) -> bool:
            row = _row(connection, job_id, self.place)
            owner = self._leases.get(job_id)
            mine = owner is not None and owner.same(_owner(row))
            if mine:
                changed = values(connection)
                _update(connection, job_id, changed)
                if changed.get("state", row["state"]) != row["state"]:
                    _tell(connection, job_id, JobState(changed["state"]))
            return mine

        return self.write(update)


def new_job_id() -> str:
    return uuid.uuid4().hex[:12]


def live_jobs(connection: Connection, job_ids: Collection[str]) -> set[str]:
    if not job_ids:
        return set()
    rows = _all(connection, sa.select(_jobs).where(_jobs.c.job_id.in_(job_ids)))
    return {row["job_id"] for row in rows if _live_owner(connection, row) is not None}


def identity(request: Mapping[str, Any]) -> str:
    """Return the hash of what makes two requests the same job: everything but its limits, queue, store and options;
    those that count are in the request's `identity`."""
    kept = {key: value for key, value in request.items() if key.partition("_")[0] not in _NOT_IDENTITY}
    return digest(canonical_json(encode(kept)))


def _update(connection: Connection, job_id: str, values: Mapping[str, Any]) -> None:
    connection.execute(sa.update(_jobs).where(_jobs.c.job_id == job_id).values(**values))


def _tell(connection: Connection, job_id: str, state: JobState, message: str = "") -> int:
    return insert_event(connection, "state", {"state": state.value, "message": message}, job_id)


def _row(connection: Connection, job_id: str, place: str) -> RowMapping:
    # FOR UPDATE keeps a second PostgreSQL session out; SQLite, which has no such words, is locked as a whole.
    query = sa.select(_jobs).where(_jobs.c.job_id == job_id)
    if connection.get_execution_options().get("tunery_write"):
        query = query.with_for_update()
    row = connection.execute(query).mappings().first()
    if row is None:
        raise _missing(place, job_id)
    return row


def _missing(place: str, job_id: str) -> NothingFoundError:
    return NothingFoundError(f"the store {place} has no job {job_id}; `tunery jobs list` shows those it has")


def _owner(row: RowMapping) -> Owner | None:
    return None if row["owner"] is None else decode(Owner, row["owner"])


def _live_owner(connection: Connection, row: RowMapping) -> Owner | None:
    owner = _owner(row)
    if owner is None or not lives(owner, row["heartbeat_at"], lambda: database_time(connection)):
        return None
    return owner


def _all(connection: Connection, query: sa.Select[Any]) -> Sequence[RowMapping]:
    return connection.execute(query).mappings().all()


def _progress(status: JobStatus, now: float) -> dict[str, Any]:
    shown = {"spend": status.spend, "tasks": status.tasks, "message": status.message}
    shown |= {"remaining": status.remaining, "outlook": status.outlook, "problem": status.problem}
    return {"state": status.state.value, "document": encode(shown), "updated_at": now}


def _status(connection: Connection, row: RowMapping) -> JobStatus:
    document = {name: row[name] for name in ("job_id", "request", "state", "created_at", "updated_at")}
    document |= row["document"]
    document["state"] = _state(connection, row).value
    if document["state"] != row["state"]:
        document["message"] = document["message"] or "its process ended unexpectedly; resuming continues where it was"
    return decode(JobStatus, document)


def _state(connection: Connection, row: RowMapping) -> JobState:
    gone = row["state"] == JobState.RUNNING and _live_owner(connection, row) is None
    return JobState.STOPPED if gone else JobState(row["state"])
