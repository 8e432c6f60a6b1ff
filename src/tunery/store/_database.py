"""The connection under the store: pragmas, transactions, and errors that speak to a user."""

import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, Connection, Engine
from sqlalchemy.exc import DBAPIError, PendingRollbackError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from tunery._errors import StoreError
from tunery.store._failures import translate
from tunery.store._place import shown

BUSY_S = 30.0
IN_MEMORY = {"mode": "memory"}
"""In the URL of a file: an empty database that goes with its last reader, and touches no file."""


class Database:
    """One open database, usable from several threads; each room of the store adds its methods to it."""

    def __init__(self, url: URL) -> None:
        self.path = Path(url.database or "") if url.get_backend_name() == "sqlite" else None
        self.in_memory = dict(url.query) == IN_MEMORY
        self.place = shown(url)
        self._engine = _connect_sqlite(url) if self.path else sa.create_engine(url, pool_pre_ping=True)
        self._writer = self._engine.execution_options(tunery_write=True)
        self._write_lock = threading.Lock()
        self._closed = False

    @property
    def url(self) -> str:
        """What `open_store` accepts to open this store again; a password is hidden."""
        return self.place

    @contextmanager
    def _read(self) -> Iterator[Connection]:
        """One consistent view of the database."""
        with self._translated(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        """One transaction: durable when the block has been left, undone as a whole if it raises."""
        with self._translated(), self._write_lock, self._writer.begin() as connection:
            yield connection

    @contextmanager
    def _translated(self) -> Iterator[None]:
        if self._closed:
            raise StoreError(f"the store {self.place} was closed; open it again")
        try:
            yield
        except (DBAPIError, sqlite3.Error) as error:
            raise translate(error, self.place) from error
        except (PendingRollbackError, PoolTimeoutError) as error:
            raise StoreError(f"{self.place} does not answer ({error}); try again") from error

    def check(self) -> None:
        """Read the whole database and verify its structure; takes time in proportion to its size.

        Raises:
            StoreError: it is damaged.
        """
        if self.path is None:
            return
        with self._read() as connection:
            found = connection.exec_driver_sql("PRAGMA integrity_check").scalar_one()
            orphan = connection.exec_driver_sql("PRAGMA foreign_key_check").first()
        if found != "ok" or orphan is not None:
            raise StoreError(f"{self.place} is damaged ({found if found != 'ok' else 'a row lost its task'}); "
                             "restore a copy, or move the file away and import your last export")  # fmt: skip

    def close(self) -> None:
        """Close all connections; what was acknowledged is already durable. Closing twice is fine."""
        self._closed = True
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def insert_new(connection: Connection, table: sa.Table, rows: Sequence[dict[str, Any]]) -> None:
    """Insert those of `rows` whose primary key is not there yet."""
    insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    if rows:
        connection.execute(insert(table).on_conflict_do_nothing(), list(rows))


def _connect_sqlite(url: URL) -> Engine:
    in_memory = dict(url.query) == IN_MEMORY
    if in_memory:
        engine = sa.create_engine("sqlite://", poolclass=sa.StaticPool, connect_args={"check_same_thread": False})
    else:
        engine = sa.create_engine(url, connect_args={"timeout": BUSY_S})

    @sa.event.listens_for(engine, "connect")
    def set_up(connection: sqlite3.Connection, _: object) -> None:
        connection.isolation_level = None  # the driver's own BEGIN comes too late and never for DDL
        if not in_memory:
            _use_wal(connection)
        connection.execute("PRAGMA synchronous=FULL")  # NORMAL may lose acknowledged commits on power loss
        connection.execute("PRAGMA foreign_keys=ON")

    @sa.event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A deferred transaction that first reads and then writes fails at once when another process wrote in
        # between; taking the write lock at the start waits for it instead.
        write = connection.get_execution_options().get("tunery_write")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch to the write-ahead log; SQLite answers "busy" without waiting when two processes do so at once."""
    deadline = time.monotonic() + BUSY_S
    while connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname != "SQLITE_BUSY" or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
