"""A PostgreSQL server that goes away while stores are open."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from job_tools import wait_until
from sqlalchemy.engine import Connection
from store_samples import HERE, record, task

import postgres_server
from postgres_server import PostgresServer, binaries, sweep
from tunery._errors import StoreAwayError, StoreError
from tunery.store import AsyncStore, Charge, Store, open_store, patience_s

pytestmark = pytest.mark.postgresql
CONV = task()


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    programs = binaries()
    if programs is None:
        pytest.skip("needs PostgreSQL's programs (Debian, Ubuntu: apt-get install postgresql)")
    started = PostgresServer(programs)
    try:
        started.start()
        yield started
    finally:
        started.close()


KILLED = """
import sys
from postgres_server import PostgresServer, binaries
server = PostgresServer(binaries())
server.start()
print(server.data.parent, flush=True)
sys.stdin.read()
"""


def test_what_killed_tests_leave_is_deleted_by_the_next_and_nothing_of_living_ones(server: PostgresServer) -> None:
    paths = os.pathsep.join([str(Path(postgres_server.__file__).parent), *sys.path])
    words, environment = [sys.executable, "-c", KILLED], os.environ | {"PYTHONPATH": paths}
    with subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        left = Path(other.stdout.readline().strip())
        for folder in (left, server.data.parent):
            os.utime(folder, (0, 0))
        server.stop()
        sweep()
        assert left.exists()
        assert server.data.parent.exists(), "a server that is down for a while"
        server.start()
        other.kill()
    os.utime(left, (0, 0))

    def swept() -> bool:
        sweep()
        return not left.exists()

    wait_until(swept)
    with server.database():
        pass


@pytest.fixture
def database(server: PostgresServer) -> Iterator[str]:
    with server.database() as url:
        yield url


@pytest.mark.parametrize("crash", [False, True])
def test_writers_and_readers_wait_until_the_server_is_back(server: PostgresServer, database: str, crash: bool) -> None:
    with open_store(database) as store:
        job = store.create_job({"model": "m"})
        acknowledged: list[str] = []
        stop = threading.Event()

        def work() -> None:
            while not stop.is_set():
                key = f"c{len(acknowledged)}"
                charge = Charge(job.job_id, CONV.key, "measure", "ok", 1.0, 1.0, 1.0)
                store.add_record(CONV, record(CONV, key), [charge])
                acknowledged.append(key)
                store.best(CONV.key, HERE)

        threads = [threading.Thread(target=work)]
        for thread in threads:
            thread.start()
        for _ in range(3):
            wait_for_more(acknowledged)
            server.stop(crash=crash)
            time.sleep(0.3)
            server.start()
        wait_for_more(acknowledged)
        stop.set()
        for thread in threads:
            thread.join()
        assert [r.candidate.key for r in store.records(CONV.key)] == acknowledged
        (charge,) = store.ledger(job.job_id)
        assert charge.count == len(acknowledged), "a charge was lost or doubled"


def wait_for_more(words: list[str]) -> None:
    before = len(words)
    while len(words) < before + 5:
        time.sleep(0.01)


@pytest.mark.parametrize("committed", [True, False])
def test_a_commit_that_was_cut_off_takes_effect_once(server: PostgresServer, database: str, committed: bool) -> None:
    """The connection ends just after the server has committed, or just before: the client cannot tell."""
    with open_store(database) as store, sa.create_engine(database, poolclass=sa.NullPool).connect() as killer:
        cut = cut_off_once(killer, after_commit=committed)
        with listening(store, cut):
            store.add_record(CONV, record(CONV, "once"))
        assert [r.candidate.key for r in store.records(CONV.key)] == ["once"]


def cut_off_once(killer: Connection, *, after_commit: bool) -> Callable[[Connection], None]:
    done = []

    def cut(connection: Connection) -> None:
        if done or not connection.get_execution_options().get("tunery_write"):
            return
        done.append(True)
        raw = connection.connection.dbapi_connection
        assert raw is not None
        if after_commit:
            raw.commit()
        killer.execute(sa.text("select pg_terminate_backend(:pid)"), {"pid": raw.info.backend_pid})
        killer.commit()
        connection.exec_driver_sql("select 1")  # a commit of nothing would not notice

    return cut


class listening:  # noqa: N801 - used like a function
    def __init__(self, store: Store, action: Callable[[Connection], None]) -> None:
        self._event = (store._engine, "commit", action)

    def __enter__(self) -> None:
        sa.event.listen(*self._event)

    def __exit__(self, *_: object) -> None:
        sa.event.remove(*self._event)


def test_who_may_not_wait_is_answered_within_seconds_and_who_may_waits(server: PostgresServer, database: str) -> None:
    async def ask(store: Store) -> None:
        with AsyncStore(store) as calls:
            waiting = asyncio.create_task(calls.add_records(CONV, [record(CONV, "later")]))
            given_up = asyncio.create_task(calls.read(lambda opened: opened.records()))
            patience_s.set(3.0)
            with pytest.raises(StoreAwayError) as caught:
                await asyncio.wait_for(calls.read(lambda opened: opened.records()), 30)
            assert store.url in str(caught.value)
            with pytest.raises(StoreAwayError):
                await asyncio.wait_for(calls.write(lambda opened: opened.create_job({})), 30)
            given_up.cancel()
            with pytest.raises((StoreAwayError, asyncio.CancelledError)):
                await asyncio.wait_for(given_up, 30)
            assert not waiting.done()
            server.start()
            await waiting

    with open_store(database) as store:
        server.stop()
        try:
            asyncio.run(ask(store))
        finally:
            if not store.answers():
                server.start()
        assert [one.candidate.key for one in store.records()] == ["later"]


def test_closing_ends_the_wait(server: PostgresServer, database: str) -> None:
    store = open_store(database)
    server.stop()
    try:
        closing = threading.Timer(0.3, store.close)
        closing.start()
        with pytest.raises(StoreError):
            store.records()
        closing.join()
    finally:
        server.start()


def test_opening_does_not_wait(server: PostgresServer, database: str) -> None:
    server.stop()
    try:
        with pytest.raises(StoreError):
            open_store(database)
    finally:
        server.start()


def test_sessions_that_lock_each_other_out_both_succeed(database: str) -> None:
    first, second = task("a"), task("b")
    both = threading.Barrier(2, timeout=30)

    def work(order: tuple[str, str]) -> Callable[[Connection], None]:
        waited = []

        def update(connection: Connection) -> None:
            connection.execute(sa.text("update tasks set tunable = true where key = :key"), {"key": order[0]})
            if not waited:
                waited.append(True)
                both.wait()
            connection.execute(sa.text("update tasks set tunable = true where key = :key"), {"key": order[1]})

        return update

    with open_store(database) as one, open_store(database) as other:
        for each in (first, second):
            one.add_record(each, record(each))
        threads = [
            threading.Thread(target=one.write, args=(work((first.key, second.key)),)),
            threading.Thread(target=other.write, args=(work((second.key, first.key)),)),
        ]
        with no_error_in_threads():
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()


class no_error_in_threads:  # noqa: N801
    def __enter__(self) -> None:
        self._before, self._errors = threading.excepthook, []
        threading.excepthook = self._errors.append

    def __exit__(self, *_: object) -> None:
        threading.excepthook = self._before
        assert self._errors == []
