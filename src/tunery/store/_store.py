"""Opening a store, and using it from coroutines."""

import asyncio
import math
import sqlite3
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar, cast

from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError

from tunery._errors import StoreAwayError, StoreError
from tunery._settings import settings
from tunery.domain import Record, Task
from tunery.store._accounts import Accounts, Months
from tunery.store._claims import Claims
from tunery.store._devices import Calibrations, Devices
from tunery.store._events import Events
from tunery.store._interchange import Interchange
from tunery.store._jobs import Jobs
from tunery.store._ledger import Charge, Ledger
from tunery.store._networks import Networks
from tunery.store._upkeep import Upkeep
from tunery.store.database import schema
from tunery.store.database.connection import Database, is_lost, translate
from tunery.store.database.file import VARIABLE, check_plain, is_read_only, prepare, read_into_memory, resolve, shown
from tunery.store.database.lease import waiting_jobs
from tunery.store.database.schema import upgrade, version
from tunery.store.records.records import Addition, Records

T = TypeVar("T")
patience_s: ContextVar[float] = ContextVar("patience_s", default=math.inf)
"""How many seconds an AsyncStore's calls of this context wait for a server that is away."""
_READERS = 8
_MOST_AT_ONCE = 64


class Store(Records, Networks, Jobs, Ledger, Calibrations, Interchange, Upkeep, Database):
    """Tasks, records, networks, jobs and the ledger; a context manager, usable from several threads. Whatever a method
    has written is durable when it returns. Every method raises StoreError when the database cannot be read or
    written."""

    def __init__(self, url: URL, *, keep: bool = True, empty: bool = False) -> None:
        super().__init__(url, sqlite3.connect(":memory:", check_same_thread=False) if empty else _copy(url, keep=keep))
        self.accounts = Accounts(self)
        self.months = Months(self, self.accounts)
        self.claims, self.devices, self.events = Claims(self, self.lost), Devices(self), Events(self)
        try:
            if self.read(lambda connection: version(connection, self.place)) != schema.VERSION:
                self.write(lambda connection: upgrade(connection, self.place))
            self.hold()
        except BaseException:
            self.close()
            raise


class AsyncStore:
    """An open store for coroutines; as a context manager it leaves the store itself open. Writes are done in the order
    in which they were asked for; records that wait for their turn together share one commit. Reads and heartbeats have
    threads of their own. A call cannot be cancelled: what was begun is done, and a cancellation is raised at the
    caller's next other `await`. While a server is away, calls wait for it as long as it takes, and no longer once they
    are cancelled; in a context with a `patience_s` they raise StoreAwayError by then.

    Example:
        with AsyncStore(store) as calls:
            status = await calls.write(lambda store: store.create_job(request))
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.url, self.place, self.moved = store.url, store.place, store.moved
        self.on_write: Callable[[], None] = lambda: None
        self._writer = ThreadPoolExecutor(1, "store-writes")
        self._asked: deque[_Write] = deque()
        self._asking = threading.Lock()
        self._readers = ThreadPoolExecutor(_READERS, "store-reads")
        self._urgent = ThreadPoolExecutor(1, "store-urgent-reads")
        self._heart = ThreadPoolExecutor(1, "store-heartbeats")
        self._ping: asyncio.Task[bool] | None = None

    async def read(self, work: Callable[[Store], T], *, urgent: bool = False) -> T:
        """Return what `work` reads; beside other reads and writes. Short `urgent` ones wait for each other alone."""
        given_up, readers = threading.Event(), self._urgent if urgent else self._readers
        return await self._result(readers.submit(self._limited, work, given_up, patience_s.get()), given_up)

    async def write(self, work: Callable[[Store], T]) -> T:
        """Return the result of `work` once all that it has written is durable; no other write of ours comes between.
        Then `on_write` is called."""
        try:
            return cast("T", await self._written(work))
        finally:
            self.on_write()

    async def add_records(self, task: Task, records: Sequence[Record], charges: Iterable[Charge] = ()) -> int:
        """Additions that wait while another write is under way share one commit with their neighbours in the queue.
        Nobody sees that: each is durable when its call returns, and where one cannot be stored the others are."""
        return cast("int", await self._written(Addition(task, tuple(records), tuple(charges))))

    async def charge_all(self, charges: Iterable[Charge]) -> None:
        await self._written(Addition(None, (), tuple(charges)))

    async def _written(self, work: "Callable[[Store], object] | Addition") -> object:
        write = _Write(work)
        with self._asking:
            self._asked.append(write)
        self._writer.submit(self._write_next)
        return await self._result(write.result, write.given_up, is_write=True)

    def _limited(self, work: Callable[[Store], T], given_up: threading.Event, limit_s: float) -> T:
        with self._store.waiting(limit_s, given_up):
            return work(self._store)

    def _write_next(self) -> None:
        """Do the write whose turn it is, and additions that directly follow one with it; nothing if they were done."""
        with self._asking:
            turn = [self._asked.popleft()] if self._asked else []
            while turn and len(turn) < _MOST_AT_ONCE and self._asked and turn[0].joins(self._asked[0]):
                turn.append(self._asked.popleft())
        turn = [write for write in turn if write.result.set_running_or_notify_cancel()]
        if len(turn) > 1 and self._limited(partial(_add_together, writes=turn), turn[0].given_up, turn[0].limit_s):
            return
        for write in turn:
            self._limited(write.do, write.given_up, write.limit_s)

    async def heartbeat(self, job_id: str) -> bool:
        """Do as `Store.heartbeat`, however long writes take."""
        given_up = threading.Event()
        beat = self._heart.submit(self._limited, lambda store: store.heartbeat(job_id), given_up, patience_s.get())
        return await self._result(beat, given_up)

    async def _result(self, future: Future[T], given_up: threading.Event, *, is_write: bool = False) -> T:
        """Return a future's result; one that is cancelled waits for no server, and is raised at the next `await`."""
        result, cancelled = asyncio.wrap_future(future), False
        limit_s = patience_s.get()
        if self._store.path is None:
            limit_s /= 3  # then it is asked for whether it answers
        elif not is_write:
            limit_s = math.inf  # a file is always there, and locked for writers alone
        while not result.done():
            try:
                done, _ = await asyncio.wait([result], timeout=None if math.isinf(limit_s) else limit_s)
                if not done:
                    try:
                        if self._store.path is not None:
                            text = f"{self.place} is locked, or busy with another write; try again"
                            raise StoreAwayError(text)  # noqa: TRY301 - one end for a file and for a server
                        await self.check_answers(2 * limit_s)
                    except StoreAwayError:
                        given_up.set()
                        result.cancel()
                        raise
            except asyncio.CancelledError:
                given_up.set()
                cancelled = True
        if cancelled and (task := asyncio.current_task()):
            task.uncancel()  # it is counted already
            task.cancel()
        return result.result()

    async def check_answers(self, within_s: float) -> None:
        """Ask, once for all who wait, whether the server answers; raise StoreAwayError if it does not."""
        if self._ping is None or self._ping.done():
            self._ping = asyncio.create_task(asyncio.to_thread(self._store.answers))
        with suppress(TimeoutError):
            if await asyncio.wait_for(asyncio.shield(self._ping), within_s):
                return
        raise StoreAwayError(f"{self.place} does not answer; check that it is running and reachable")

    def waiting_jobs(self, look_s: float) -> AsyncGenerator[None, None]:
        return waiting_jobs(self._store.address, look_s)

    def close(self) -> None:
        for threads in (self._heart, self._urgent, self._readers, self._writer):
            threads.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass
class _Write:
    """What is to be written in its turn, and what becomes of it."""

    work: Callable[[Store], object] | Addition
    result: Future[object] = field(default_factory=Future)
    given_up: threading.Event = field(default_factory=threading.Event)
    limit_s: float = field(default_factory=patience_s.get)

    def joins(self, following: "_Write") -> bool:
        return isinstance(self.work, Addition) and isinstance(following.work, Addition)

    def do(self, store: Store) -> None:
        try:
            self.result.set_result(self._done(store))
        except BaseException as error:  # noqa: BLE001 - it is the caller's
            self.result.set_exception(error)

    def _done(self, store: Store) -> object:
        if not isinstance(self.work, Addition):
            return self.work(store)
        if self.work.task is None:
            store.charge_all(self.work.charges)
            return None
        return store.add_records(self.work.task, self.work.records, self.work.charges)


def _add_together(store: Store, writes: "Sequence[_Write]") -> bool:
    """Store several additions in one commit; False, and nothing happened, if each is to be tried alone."""
    try:
        numbers = store.add_all([write.work for write in writes if isinstance(write.work, Addition)])
    except Exception as error:  # noqa: BLE001 - it is a caller's: whose, each alone will show
        cause = error.__cause__
        if not isinstance(cause, DBAPIError) or not is_lost(cause):
            return False
        for write in writes:  # the server is away: the others would wait as long in vain
            write.result.set_exception(error)
        return True
    for write, number in zip(writes, numbers, strict=True):
        write.result.set_result(number)
    return True


def _copy(url: URL, *, keep: bool) -> sqlite3.Connection | None:
    path = Path(url.database or "")
    if keep or url.get_backend_name() != "sqlite" or not is_read_only(path):
        return None
    check_plain(path)
    try:
        return read_into_memory(path)
    except sqlite3.Error as error:
        raise translate(error, shown(url)) from error


def open_store(url: str = "", *, create: bool = True, keep: bool = True) -> Store:
    """Open a store, and create it where there is none. `url` is a file path, `sqlite:///path` or
    `postgresql://user@host/name`; "" means what `TUNERY_STORE` names, or else `~/.local/share/tunery/tunery.db`.
    Whoever only reads says that nothing is to be created: then that last file, where it is not there yet, reads as an
    empty store, and one that was named, by the variable too, must be there. Whoever can do without what they write
    themselves does not `keep` it: then a place that cannot be written is no error; what is there is read from a copy,
    which goes with the store's end."""
    absent = None if create else missing(url, keep=keep)
    if absent is None:
        return Store(resolve(url), keep=keep)
    if url or settings().store:
        where = f"{absent}" if url else f"{absent}, which {VARIABLE} names"
        raise StoreError(f"there is no store at {where}; name another with --store, or begin one with `tunery tune`")
    return Store(resolve(url), empty=True)


def missing(url: str = "", *, keep: bool = True) -> Path | None:
    """Return the file in which `open_store` would create a store; with `keep` it must be a place that can be
    written."""
    place = resolve(url)
    path = Path(place.database or "")
    if place.get_backend_name() != "sqlite" or path.exists():
        return None
    prepare(path, create=False, keep=keep)
    return path
