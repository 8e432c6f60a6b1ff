"""The connection under the store: pragmas, transactions, lost servers, and errors that speak to a user."""

import logging
import math
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, Connection, Engine
from sqlalchemy.exc import DBAPIError, PendingRollbackError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from tunery._errors import StoreAwayError, StoreError
from tunery.store.database.file import BUSY_S, MovedError, StoreFile, shown

# By prefix of SQLite's extended result code names, most specific first (https://www.sqlite.org/rescode.html).
_SQLITE = (
    ("SQLITE_FULL", "the disk under {place} is full; what was stored before is intact: free some space and resume"),
    ("SQLITE_NOTADB", "{place} is not a tunery store; name another file, or move this one away"),
    ("SQLITE_CORRUPT", "{place} is damaged; restore a copy, or move the file away and import your last export"),
    ("SQLITE_READONLY", "{place} cannot be written; make it and its folder writable, or name another store"),
    ("SQLITE_PERM", "{place} cannot be written; make it and its folder writable, or name another store"),
    ("SQLITE_CANTOPEN", "{place} cannot be opened; make its folder writable, or name another store"),
    ("SQLITE_BUSY", "another process keeps {place} locked; wait for it or end it, then try again"),
    ("SQLITE_PROTOCOL", "{place} cannot be locked; put it on a local disk or use a postgresql:// store"),
    ("SQLITE_IOERR", "{place} could not be read or written ({detail}): is the disk full, over quota or failing? "
     "What was stored before is intact: make room and resume"),
)  # fmt: skip

_UNREACHABLE = frozenset({"OperationalError", "InterfaceError"})
# PostgreSQL's codes (https://www.postgresql.org/docs/current/errcodes-appendix.html), by prefix: connection failures,
# idle in a transaction for too long, too many connections, shut down, crashed or just starting.
_LOST = ("08", "25P03", "53300", "57P01", "57P02", "57P03", "57P05")
_CONFLICTS = frozenset({"40001", "40P01"})  # serialization failure, deadlock


def is_lost(error: DBAPIError | sqlite3.Error) -> bool:
    if not isinstance(error, DBAPIError) or isinstance(error.orig, sqlite3.Error):
        return False
    state = getattr(error.orig, "sqlstate", None)
    unnamed = state is None and any(base.__name__ in _UNREACHABLE for base in type(error.orig).__mro__)
    return error.connection_invalidated or unnamed or (state or "").startswith(_LOST)


def _is_locked(error: DBAPIError | sqlite3.Error) -> bool:
    cause = error.orig if isinstance(error, DBAPIError) else error
    return getattr(cause, "sqlite_errorname", "").startswith("SQLITE_BUSY")


def translate(error: DBAPIError | sqlite3.Error | OSError, place: str) -> StoreError:
    if isinstance(error, OSError):
        return StoreError(
            f"{place} cannot be opened ({error.strerror}); make its folder writable, or name another store"
        )
    cause = error.orig if isinstance(error, DBAPIError) else error
    line = str(cause).strip().partition("\n")[0]
    code = getattr(cause, "sqlite_errorname", "")
    for prefix, text in _SQLITE:
        if code.startswith(prefix):
            kind = StoreAwayError if _is_locked(error) else StoreError
            return kind(text.format(place=place, detail=line))
    if type(cause).__name__ == "DiskFull":
        return StoreError(f"the disk under {place} is full; free some space on the server and resume")
    if type(cause).__name__ == "LockNotAvailable":
        return StoreError(f"another process keeps {place} locked; wait for it or end it, then try again")
    if is_lost(error):
        return StoreAwayError(f"{place} does not answer ({line}); check that it is running and reachable")
    return StoreError(f"{place} refused the operation ({line}); please report this as a bug in tunery")


T = TypeVar("T")

_MOST_VALUES = 10_000
_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _SAY_AGAIN_S = 0.05, 2.0, 60.0

# A server or network that dies without a word is noticed after 30 s. A process that is suspended inside a transaction
# loses it, and with it the locks that others wait for. What the URL says comes first.
_POSTGRESQL = {
    "client_encoding": "utf8",  # a cluster that was made under the C locale has none, and would give bytes
    "application_name": "tunery",
    "connect_timeout": 2,  # a call that may not wait is answered within three
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
    "options": f"-c lock_timeout={BUSY_S:.0f}s -c idle_in_transaction_session_timeout=60s",
}

_log = logging.getLogger(__name__)


class _Limits(threading.local):
    """How long the calls of a thread wait for a server that is away: see `Database.waiting`."""

    patience_s = math.inf
    given_up: threading.Event | None = None


class Database:
    """One open database, usable from several threads. A server that goes away (restarted, crashed, unreachable) is
    waited for as long as it takes, and the transaction is done again, unless `waiting` says otherwise; only opening a
    store fails at once. Where the connection is lost during a commit, the server is asked what became of it, so no
    transaction takes effect twice. With a `copy`, a database in memory is used in place of the file."""

    def __init__(self, url: URL, copy: sqlite3.Connection | None = None) -> None:
        self.path = Path(url.database or "") if url.get_backend_name() == "sqlite" else None
        self.url = self.place = shown(url)
        self.address = url
        self._file: StoreFile | None = None
        if self.path and copy is None:
            try:
                self._file = StoreFile(self.path)
            except (OSError, sqlite3.Error) as error:
                raise translate(error, self.place) from error
        if self.path is None:
            self._engine = _connect_postgresql(url)
        elif self._file is not None:
            self._engine = _sqlite("sqlite:///file", creator=self._file.connect)
        else:
            self._engine = _sqlite("sqlite://", creator=lambda: copy, poolclass=sa.StaticPool)
        self._writer = self._engine.execution_options(tunery_write=True)
        # A reader of SQLite sees one state of the file; one of PostgreSQL has to ask for that.
        view = {} if self.path else {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        self._reader = self._engine.execution_options(**view)
        # SQLite has one writer, and a database in memory one connection; sessions of PostgreSQL lock what they change.
        self._one_writer: AbstractContextManager[object] = threading.Lock() if self.path else nullcontext()
        self._one_reader = self._one_writer if copy is not None else nullcontext()
        self._closing = threading.Event()
        self._limits = _Limits()
        self._patience_s, self._has_written = 0.0, False  # until the store is open

    def hold(self) -> None:
        """Say that the database is open: from here on its server is waited for."""
        self._patience_s, self._has_written = math.inf, False

    @contextmanager
    def waiting(self, patience_s: float, given_up: threading.Event) -> Iterator[None]:
        """Have this thread wait no longer than so for a server that is away, and no longer once it is `given_up`."""
        self._limits.patience_s, self._limits.given_up = patience_s, given_up
        try:
            yield
        finally:
            self._limits.patience_s, self._limits.given_up = math.inf, None

    def answers(self) -> bool:
        """Return whether a new connection to the server is answered, within two seconds; a file is always there."""
        if self.path is not None:
            return True
        try:
            with _connect_postgresql(self.address, poolclass=sa.NullPool).connect():
                return True
        except DBAPIError:
            return False

    def read(self, work: Callable[[Connection], T], *, repeat: bool = True) -> T:
        """Return what `work` makes of one consistent view of the database; `work` may run several times if the server
        goes away."""

        def attempt() -> T:
            if why := self.moved():
                raise StoreError(f"{why}; end this command, and give it again")
            with self._one_reader, self._reader.begin() as connection:
                return work(connection)

        return self._persist(attempt, repeat=repeat)

    def write(self, work: Callable[[Connection], T]) -> T:
        """Do `work` in one transaction: durable then, undone as a whole if it raises. It may run several times if the
        server goes away or another session is in the way. Where the store's file was deleted or replaced, what it held
        and `work` go to a file beside it."""
        return self._persist(lambda: self._transact(work))

    def _transact(self, work: Callable[[Connection], T]) -> T:
        number = None
        with self._one_writer:
            try:
                if why := self.moved():
                    raise MovedError(why)  # noqa: TRY301 - one end for what moved before and meanwhile
                with self._writer.begin() as connection:
                    result = work(connection)
                    if self.path is None:
                        number = connection.execute(sa.select(sa.func.txid_current_if_assigned())).scalar()
            except MovedError as error:
                raise self._rescued(str(error), work) from None
            except DBAPIError as error:
                if number is None or not is_lost(error) or not self._was_committed(number):
                    raise
            self._has_written = True
            self.check_file()
            return result

    def moved(self) -> str:
        return "" if self._file is None else self._file.moved()

    def check_file(self) -> None:
        if why := self.moved():
            raise self._rescued(why, None)

    def _rescued(self, why: str, work: Callable[[Connection], object] | None) -> StoreError:
        assert self._file is not None

        def write(kept: Path) -> None:
            if work is not None:
                engine = _sqlite("sqlite:///file", creator=lambda: sqlite3.connect(kept))
                with closing(engine.connect()) as connection, connection.begin():
                    work(connection)
                engine.dispose()

        try:
            kept = self._file.rescue(write)
        except (OSError, sqlite3.Error, DBAPIError) as error:
            return StoreError(f"{why}, and what it held cannot be kept ({error}); end this command before you go on")
        return StoreError(
            f"{why}; what it held, with what was to be written, is in {kept}: move that file to {self.path} when "
            "nobody uses the store, or name it with --store"
        )

    def _was_committed(self, number: int) -> bool:
        """Return whether a transaction whose commit was cut off took effect; waits for the server to know it."""
        query = sa.select(sa.func.txid_status(number))

        def ask(connection: Connection) -> Any:
            try:
                return connection.execute(query).scalar()
            except sa.exc.DataError:  # a server that crashed before it wrote the number down will give it anew
                return "aborted"

        while (fate := self.read(ask)) == "in progress":
            self._pause(_LONGEST_PAUSE_S)
        if fate not in {"committed", "aborted"}:
            raise StoreError(f"{self.place} was cut off and does not know what became of a transaction; resume the job")
        return bool(fate == "committed")

    def _persist(self, attempt: Callable[[], T], *, repeat: bool = True) -> T:
        began, pause_s, said_s = time.monotonic(), _FIRST_PAUSE_S, -math.inf
        patience_s = min(self._limits.patience_s, self._patience_s) if repeat else 0.0
        while True:
            self._pause(0.0)
            try:
                return attempt()
            except (DBAPIError, sqlite3.Error) as error:
                passed_s, given_up = time.monotonic() - began, self._limits.given_up
                lost, over = is_lost(error), given_up is not None and given_up.is_set()
                if given_up is not None and _is_locked(error):  # who has asked for it to be waited for
                    lost = True
                # Undone in favour of another transaction, it will succeed when it is done again.
                conflict = isinstance(error, DBAPIError) and getattr(error.orig, "sqlstate", None) in _CONFLICTS
                if over or passed_s + pause_s > patience_s or not (lost or conflict):
                    raise translate(error, self.place) from error
                if lost and passed_s > said_s + _SAY_AGAIN_S:
                    said_s = passed_s
                    _log.warning("%s does not answer, or is locked; the work waits for it, %.0f s so far", self.place,
                                 passed_s)  # fmt: skip
            except (PendingRollbackError, PoolTimeoutError) as error:
                raise StoreError(f"{self.place} does not answer ({error}); try again") from error
            self._pause(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _pause(self, pause_s: float) -> None:
        if self._closing.wait(pause_s):
            raise StoreError(f"the store {self.place} was closed; open it again")

    def lost_jobs(self, connection: Connection, job_ids: Collection[str]) -> set[str]:  # noqa: ARG002
        return set()

    def check(self) -> None:
        """Read the whole database and verify its structure; takes time in proportion to its size."""
        if self.path is None:
            return

        def verify(connection: Connection) -> tuple[str, bool]:
            found = connection.exec_driver_sql("PRAGMA integrity_check").scalar_one()
            return found, connection.exec_driver_sql("PRAGMA foreign_key_check").first() is not None

        found, orphan = self.read(verify)
        if found != "ok" or orphan:
            raise StoreError(f"{self.place} is damaged ({found if found != 'ok' else 'a row lost its task'}); "
                             "restore a copy, or move the file away and import your last export")  # fmt: skip

    def close(self) -> None:
        self._closing.set()
        if self._file is None:
            self._engine.dispose()
            return
        try:
            if self._has_written and self._file.rescued is None:
                self.check_file()
        finally:
            self._file.close(self._engine.dispose)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def database_time(connection: Connection) -> float:
    """Return the time of the clock that all users of the database share: the server's, or else this machine's."""
    if connection.dialect.name != "postgresql":
        return time.time()
    return float(connection.execute(sa.select(sa.extract("epoch", sa.func.clock_timestamp()))).scalar_one())


def batched(keys: Iterable[T]) -> Iterator[list[T]]:
    """Yield lists that are short enough for one query, of keys of up to three values: SQLite takes 32,766 values,
    PostgreSQL 65,535."""
    rest = iter(keys)
    while some := list(islice(rest, _MOST_VALUES)):
        yield some


def insert_new(
    connection: Connection,
    table: sa.Table,
    rows: Sequence[dict[str, Any]],
    *,
    replaced: sa.ColumnElement[bool] | None = None,
) -> None:
    """Insert those of `rows` whose primary key is not there yet, or is that of a row to be `replaced`."""
    if not rows:
        return
    insert = _insert(connection)(table)
    if replaced is None:
        connection.execute(insert.on_conflict_do_nothing(), list(rows))
        return
    changed = {name: insert.excluded[name] for name in rows[0] if not table.c[name].primary_key}
    keys = [column.name for column in table.primary_key]
    connection.execute(insert.on_conflict_do_update(index_elements=keys, set_=changed, where=replaced), list(rows))


def inserted(connection: Connection, table: sa.Table, row: Mapping[str, Any]) -> bool:
    """Insert a row unless there is one with its primary key, of another session too; return whether there was none."""
    keys = list(table.primary_key)
    insert = _insert(connection)(table).values(**row).on_conflict_do_nothing(index_elements=keys).returning(*keys)
    return connection.execute(insert).first() is not None


def upsert(connection: Connection, table: sa.Table, row: Mapping[str, Any], replaced: Collection[str]) -> None:
    insert = _insert(connection)(table).values(**row)
    keys = [column.name for column in table.primary_key]
    connection.execute(insert.on_conflict_do_update(index_elements=keys, set_={name: row[name] for name in replaced}))


def _insert(connection: Connection) -> Callable[[sa.Table], Any]:
    return postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert


def _connect_postgresql(url: URL, **more: Any) -> Engine:
    defaults = {name: value for name, value in _POSTGRESQL.items() if name not in url.query}
    return sa.create_engine(url, connect_args=defaults, **more)


def _sqlite(url: str, **more: Any) -> Engine:
    engine = sa.create_engine(url, **more)

    @sa.event.listens_for(engine, "connect")
    def set_up(connection: sqlite3.Connection, _: object) -> None:
        connection.isolation_level = None  # the driver's own BEGIN comes too late and never for DDL
        connection.execute("PRAGMA synchronous=FULL")  # NORMAL may lose acknowledged commits on power loss
        connection.execute("PRAGMA foreign_keys=ON")

    @sa.event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A deferred transaction that first reads and then writes fails at once when another process wrote in
        # between; taking the write lock at the start waits for it instead.
        write = connection.get_execution_options().get("tunery_write")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine
