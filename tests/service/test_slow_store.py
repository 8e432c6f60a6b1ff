"""A store whose writes hang: jobs at work wait for their own, and nobody else waits for theirs."""

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from job_tools import PATIENCE_S, request_in
from sqlalchemy.engine import make_url

from tunery.delivery.query import query
from tunery.domain import JobState, Mode
from tunery.service.job import Job
from tunery.service.manager import JobManager
from tunery.service.running import run_here
from tunery.store import Store

pytestmark = pytest.mark.jobs

KNOWN = "fake:known?tasks=2"
ENDLESS = "fake:endless?tasks=2&build_s=0.02&space=16x16x16"


class HangingStore(Store):
    """A real store, whose disk may stop taking records."""

    def __init__(self, path: Path) -> None:
        super().__init__(make_url(f"sqlite:///{path}"))
        self.goes_on, self.hangs = threading.Event(), threading.Event()
        self.goes_on.set()

    def add_records(self, *args: Any, **more: Any) -> int:
        if not self.goes_on.is_set():
            self.hangs.set()
            assert self.goes_on.wait(PATIENCE_S)
        return super().add_records(*args, **more)


async def until_it_hangs(store: HangingStore) -> None:
    store.hangs.clear()
    store.goes_on.clear()
    assert await asyncio.to_thread(store.hangs.wait, PATIENCE_S)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, PATIENCE_S))


async def tuned(room: JobManager, *requests: Any) -> Sequence[JobState]:
    jobs = [await room.submit(request) for request in requests]
    return [(await room.wait(job)).state for job in jobs]


def test_while_a_record_hangs_the_store_is_read_leases_are_kept_and_other_jobs_are_done(tmp_path: Path) -> None:
    async def main() -> None:
        with HangingStore(tmp_path / "store.db") as store:
            async with JobManager(store) as room:
                assert await tuned(room, request_in(tmp_path, KNOWN, "16trials")) == [JobState.DONE]
                job = await room.submit(request_in(tmp_path, ENDLESS, "4000trials"))
                try:
                    await until_it_hangs(store)
                    before = await room.store.read(lambda opened: opened.records())
                    assert await room.store.heartbeat(job)
                    assert (await room.store.read(lambda opened: opened.job(job))).state is JobState.RUNNING
                    assert room.progress(job) is not None
                    found = await run_here(
                        Job(replace(request_in(tmp_path, KNOWN), kind="query"), room.runtimes), query
                    )
                    assert all(choice.candidate for choice in found.choices)
                    assert await room.store.read(lambda opened: opened.records()) == before, "it hung all the while"
                finally:
                    store.goes_on.set()
                await room.cancel(job)
                assert store.job(job).state is JobState.CANCELLED

    run(main())


def test_a_job_that_is_cancelled_while_its_record_hangs_keeps_the_record_and_its_cost(tmp_path: Path) -> None:
    async def main() -> None:
        with HangingStore(tmp_path / "store.db") as store:
            async with JobManager(store) as room:
                job = await room.submit(request_in(tmp_path, ENDLESS, "4000trials"))
                await until_it_hangs(store)
                cancelling = asyncio.create_task(room.cancel(job))
                await asyncio.sleep(0)
                store.goes_on.set()
                await cancelling
                status, charges = store.job(job), store.ledger(job)
                raced = store.records(job_id=job, modes=[Mode.RACE, Mode.SHARED])
                timed = [one for one in raced if one.measurement.outcome not in {"filtered", "build-failed"}]
                assert status.state is JobState.CANCELLED
                assert sum(one.count for one in charges if one.stage in {"measure", "baseline", "audit"}) == len(timed)
                assert sum(charge.core_s for charge in charges) == pytest.approx(status.spend.core_s)

    run(main())


def test_a_service_whose_store_was_deleted_is_not_ready(tmp_path: Path) -> None:
    async def main() -> None:
        with HangingStore(tmp_path / "store.db") as store:
            async with JobManager(store) as room:
                assert room.obstacle() == ""
                (tmp_path / "store.db").unlink()
                assert "was deleted while it was in use; start the service again" in room.obstacle()

    run(main())
