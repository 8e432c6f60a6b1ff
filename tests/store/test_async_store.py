"""Coroutines and a slow store: each call waits for itself alone, and what was begun is done."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from store_samples import HERE, record, task

from tunery._errors import NothingFoundError, StoreError
from tunery.delivery.ladder import choose
from tunery.domain import JobState
from tunery.store import AsyncStore, Charge, Store, open_store

PATIENCE_S = 60.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(str(tmp_path / "store.db")) as opened:
        yield opened


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, PATIENCE_S))


def held(gate: threading.Event, then: Callable[[Store], Any] = lambda _: None) -> Callable[[Store], Any]:
    """Return a call that waits for the gate, as for a slow disk."""

    def wait(store: Store) -> Any:
        assert gate.wait(PATIENCE_S)
        return then(store)

    return wait


def test_while_a_write_waits_others_read_and_beat(store: Store) -> None:
    async def main() -> None:
        with AsyncStore(store) as calls:
            job = (await calls.write(lambda opened: opened.create_job({}))).job_id
            assert await calls.write(lambda opened: opened.acquire_job(job))
            gate = threading.Event()
            writing = asyncio.create_task(calls.write(held(gate)))
            await asyncio.sleep(0)
            assert (await calls.read(lambda opened: opened.job(job))).state is JobState.RUNNING
            assert await calls.heartbeat(job)
            assert not writing.done()
            gate.set()
            await writing

    run(main())


def test_while_reads_wait_others_write(store: Store) -> None:
    async def main() -> None:
        with AsyncStore(store) as calls:
            gate = threading.Event()
            reading = [asyncio.create_task(calls.read(held(gate))) for _ in range(20)]
            await asyncio.sleep(0)
            assert (await calls.write(lambda opened: opened.create_job({}))).state is JobState.QUEUED
            assert not any(one.done() for one in reading)
            gate.set()
            await asyncio.gather(*reading)

    run(main())


def test_writes_are_done_in_the_order_in_which_they_were_asked_for(store: Store) -> None:
    async def main() -> None:
        with AsyncStore(store) as calls:
            gate, done = threading.Event(), list[int]()
            first = asyncio.create_task(calls.write(held(gate, lambda _: done.append(0))))
            await asyncio.sleep(0)
            others = [asyncio.create_task(calls.write(lambda _, n=n: done.append(n))) for n in range(1, 20)]
            await asyncio.sleep(0)
            gate.set()
            await asyncio.gather(first, *others)
            assert done == list(range(20))

    run(main())


def test_records_that_wait_together_share_one_commit_with_their_charges(store: Store) -> None:
    job, seen = store.create_job({}).job_id, list[None]()

    def note(_: sa.Connection) -> None:
        seen.append(None)

    async def main() -> None:
        with AsyncStore(store) as calls:
            gate = threading.Event()
            first = asyncio.create_task(calls.write(held(gate)))
            await asyncio.sleep(0)
            every = [task(f"op{n % 3}") for n in range(12)]
            others = [
                asyncio.create_task(calls.add_records(one, [record(one, f"c{n}")], [charge(job, f"c{n}")]))
                for n, one in enumerate(every)
            ]
            paid = asyncio.create_task(calls.charge_all([charge(job, "alone")]))
            await asyncio.sleep(0)
            gate.set()
            await first
            numbers = await asyncio.gather(*others)
            await paid
            assert numbers == sorted(set(numbers))

    sa.event.listen(sa.Engine, "commit", note)
    try:
        run(main())
    finally:
        sa.event.remove(sa.Engine, "commit", note)
    assert len(seen) == 1
    assert [one.candidate.key for one in store.records()] == [f"c{n}" for n in range(12)]
    assert {one.task_key for one in store.ledger(job)} == {"alone", *(f"c{n}" for n in range(12))}


def test_one_that_cannot_be_stored_fails_alone_and_as_a_whole(store: Store) -> None:
    job = store.create_job({}).job_id
    conv = task()

    async def main() -> None:
        with AsyncStore(store) as calls:
            gate = threading.Event()
            first = asyncio.create_task(calls.write(held(gate)))
            await asyncio.sleep(0)
            payers = [job, "nobody", job]
            adding = [
                asyncio.create_task(calls.add_records(conv, [record(conv, f"c{n}")], [charge(payer, f"c{n}")]))
                for n, payer in enumerate(payers)
            ]
            await asyncio.sleep(0)
            gate.set()
            found = await asyncio.gather(first, *adding, return_exceptions=True)
            assert [isinstance(one, StoreError) for one in found] == [False, False, True, False]

    run(main())
    assert [one.candidate.key for one in store.records()] == ["c0", "c2"]
    assert {one.task_key for one in store.ledger()} == {"c0", "c2"}


def test_a_write_between_records_finds_those_before_it_alone(store: Store) -> None:
    conv, seen = task(), list[int]()

    async def main() -> None:
        with AsyncStore(store) as calls:
            gate = threading.Event()
            asked = [asyncio.create_task(calls.write(held(gate)))]
            await asyncio.sleep(0)
            for n in range(3):
                asked.append(asyncio.create_task(calls.add_records(conv, [record(conv, f"a{n}")])))
                asked.append(asyncio.create_task(calls.add_records(conv, [record(conv, f"b{n}")])))
                asked.append(asyncio.create_task(calls.write(lambda opened: seen.append(len(opened.records())))))
                await asyncio.sleep(0)
            gate.set()
            await asyncio.gather(*asked)

    run(main())
    assert seen == [2, 4, 6]


def charge(job_id: str, task_key: str) -> Charge:
    return Charge(job_id, task_key, "measure", "ok", 1.0, 1.0, 1.0)


def test_a_cancelled_caller_gets_its_result_first_and_is_cancelled_at_its_next_wait(store: Store) -> None:
    async def main() -> None:
        with AsyncStore(store) as calls:
            gate, got = threading.Event(), list[str]()

            async def work() -> None:
                got.append((await calls.write(held(gate, lambda opened: opened.create_job({})))).job_id)
                got.append((await calls.read(lambda opened: opened.job(got[0]))).job_id)
                await asyncio.sleep(PATIENCE_S)
                got.append("never")

            working = asyncio.create_task(work())
            await asyncio.sleep(0)
            for _ in range(2):  # as by an impatient user
                working.cancel()
                await asyncio.sleep(0)
            gate.set()
            with pytest.raises(asyncio.CancelledError):
                await working
            assert len(got) == 2
            assert got[0] == got[1]
            assert len(store.jobs()) == 1

    run(main())


def test_what_goes_wrong_is_the_callers(store: Store) -> None:
    async def main() -> None:
        with AsyncStore(store) as calls:
            with pytest.raises(NothingFoundError):
                await calls.read(lambda opened: opened.job("nobody"))
            with pytest.raises(ZeroDivisionError):
                await calls.write(lambda _: 1 // 0)
            assert await calls.write(lambda _: 1) == 1

    run(main())


def test_closing_waits_for_what_was_begun(store: Store) -> None:
    async def main() -> None:
        calls, gate = AsyncStore(store), threading.Event()
        writing = asyncio.create_task(calls.write(held(gate, lambda opened: opened.create_job({}))))
        await asyncio.sleep(0)
        threading.Timer(0.05, gate.set).start()
        calls.close()
        assert len(store.jobs()) == 1
        await writing

    run(main())


def test_a_store_in_memory_serves_many_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "absent"))

    async def main() -> None:
        with open_store(create=False) as absent, AsyncStore(absent) as calls:
            made = [calls.write(lambda opened: opened.create_job({})) for _ in range(20)]
            read = [calls.read(lambda opened: opened.jobs()) for _ in range(20)]
            await asyncio.gather(*made, *read)
            assert len(await calls.read(lambda opened: opened.jobs())) == 20

    run(main())


def test_the_guard_of_all_tests_sees_a_call_on_the_loop_and_none_beside_it(
    store: Store, store_calls_on_the_loop: list[str]
) -> None:
    async def main() -> None:
        with AsyncStore(store) as calls:
            await calls.read(lambda opened: choose(opened, [task()], HERE, "here"))
            store.jobs()
            assert store_calls_on_the_loop == [], "the second was the test's own"
            choose(store, [task()], HERE, "here")
            assert store_calls_on_the_loop

    run(main())
    store_calls_on_the_loop.clear()
