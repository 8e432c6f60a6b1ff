import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from job_tools import expect_nothing_held, run_in, runtimes
from scheduler_tools import validate

from tunery._errors import WorkError
from tunery.engines import LocalEngine, Role
from tunery.runtime.runtime import Runtime
from tunery.runtime.spec import RuntimeSpec
from tunery.testing.fake_dialect import FakeDialect, fake_network

pytestmark = pytest.mark.jobs


@asynccontextmanager
async def runtime_in(directory: Path) -> AsyncIterator[Runtime]:
    with LocalEngine(directory / "logs") as engine:
        runtime = Runtime(engine, RuntimeSpec("fake"), directory)
        runtime.dispatch.submit("job")
        yield runtime


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_stages_cancelled_while_waiting_and_while_running(tmp_path: Path) -> None:
    async def main() -> None:
        async with runtime_in(tmp_path) as runtime:

            async def hold(role: Role, started: asyncio.Event) -> None:
                async with runtime.stage("job", "stage", role):
                    started.set()
                    await asyncio.sleep(1000)

            begun = [asyncio.Event() for _ in range(4)]
            tasks = [asyncio.create_task(hold(Role.MEASURER, event)) for event in begun]
            await begun[0].wait()
            assert not any(event.is_set() for event in begun[1:])
            tasks[2].cancel()  # waits
            tasks[0].cancel()  # runs; the next one is let in
            await begun[1].wait()
            validate(runtime.dispatch.scheduler)
            assert not begun[2].is_set()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            expect_nothing_held(runtime)

    run(main())


def test_a_stage_cancelled_between_permission_and_start(tmp_path: Path) -> None:
    async def main() -> None:
        async with runtime_in(tmp_path) as runtime:

            async def hold() -> None:
                async with runtime.stage("job", "stage", Role.MEASURER):
                    raise AssertionError("it was cancelled before")

            first = runtime.stage("job", "stage", Role.MEASURER)
            await first.__aenter__()
            task = asyncio.create_task(hold())
            await asyncio.sleep(0)  # it asks, and has to wait
            await first.__aexit__(None, None, None)  # it is granted, and has not seen that yet
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            expect_nothing_held(runtime)

    run(main())


def test_what_waits_for_a_device_is_counted_as_its_queue(tmp_path: Path) -> None:
    async def main() -> None:
        async with runtime_in(tmp_path) as runtime:
            queues = runtime.dispatch.queues

            async def measure() -> None:
                async with runtime.stage("job", "stage", Role.MEASURER):
                    pass

            async with runtime.stage("job", "stage", Role.MEASURER):
                assert queues()[runtime.device_share] == 0
                task = asyncio.create_task(measure())
                await asyncio.sleep(0)  # it asks, and has to wait
                assert queues()[runtime.device_share] == 1
            await task
            assert queues()[runtime.device_share] == 0

    run(main())


def test_a_given_up_call_does_not_run_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with runtime_in(tmp_path) as runtime:
            called = asyncio.Event()
            slow, target = fake_network("fake:slow?extract_s=1000"), FakeDialect().resolve_target("native", 1)

            async def hang() -> None:
                async with runtime.stage("job", "import", Role.IMPORTER) as grant:
                    await runtime.call(grant.worker, "target", "native", 1, deadline_s=60)
                    called.set()
                    await runtime.call(grant.worker, "extract", slow, target, deadline_s=2000)

            task = asyncio.create_task(hang())
            await called.wait()
            [worker] = runtime.workers(Role.IMPORTER)
            await asyncio.sleep(0.2)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            expect_nothing_held(runtime)
            async with runtime.stage("job", "import", Role.IMPORTER) as grant:
                # It would wait for a thousand seconds behind the call that was given up.
                await runtime.call(grant.worker, "target", "native", 1, deadline_s=60)
            assert runtime.engine.generation(worker) == 2
            expect_nothing_held(runtime)

    run(main())


def test_a_stage_this_machine_cannot_run_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with runtime_in(tmp_path) as runtime:
            runtime.measure_cores = tuple(range(1000))
            with pytest.raises(WorkError, match="core"):
                async with runtime.stage("job", "measure", Role.MEASURER):
                    raise AssertionError
            runtime.measure_cores = runtime.cores[:1]
            with pytest.raises(WorkError, match="unknown or has ended"):
                async with runtime.stage("nobody", "build", Role.BUILDER):
                    raise AssertionError
            expect_nothing_held(runtime)

    run(main())


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_nothing_is_pinned_to_a_core_that_is_being_measured_on(tmp_path: Path) -> None:
    overlaps: list[str] = []
    measured = 0

    def listen(runtime: Runtime) -> None:
        original = runtime._place

        def place(worker: str) -> None:
            nonlocal measured
            original(worker)
            pinned = {name: pin.cores for name, pin in runtime.dispatch.pinned.items()}
            [measurer] = [runtime._name(worker) for worker in runtime.workers(Role.MEASURER)]
            if measurer not in pinned:
                return
            measured += len(pinned) > 1
            for other, cores in pinned.items():
                if other != measurer and set(cores) & set(pinned[measurer]):
                    overlaps.append(other)

        runtime._place = place  # type: ignore[method-assign]

    with runtimes(listen) as made:
        run_in(tmp_path, "fake:pins?tasks=2&build_s=0.01&run_s=0.005&build_crash=0.1", "60trials", threads=1)
    assert measured, "nothing ran beside a measurement"
    assert overlaps == []
    validate(made[0].dispatch.scheduler)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_builder_that_starts_anew_in_mid_stage_stays_off_the_measured_core(tmp_path: Path) -> None:
    async def main() -> None:
        async with runtime_in(tmp_path) as runtime:
            engine = runtime.engine
            task = FakeDialect().extract(fake_network("fake:anew"), FakeDialect().resolve_target("native", 1))[0]
            candidate = FakeDialect().baseline(task)
            async with runtime.stage("job", "measure", Role.MEASURER), runtime.stage("job", "build", Role.BUILDER) as b:
                for _ in range(2):
                    await runtime.call(b.worker, "build", task, candidate, deadline_s=60)
                    pid = engine.pid(b.worker)
                    assert pid is not None
                    assert not os.sched_getaffinity(pid) & set(runtime.measure_cores)
                    engine.kill(b.worker)
            expect_nothing_held(runtime)

    run(main())


def test_whatever_does_not_measure_gives_way_to_what_does(tmp_path: Path) -> None:
    async def main() -> None:
        async with runtime_in(tmp_path) as runtime:
            task = FakeDialect().extract(fake_network("fake:nice"), FakeDialect().resolve_target("native", 1))[0]
            candidate = FakeDialect().baseline(task)
            async with runtime.stage("job", "measure", Role.MEASURER) as measure:
                await runtime.call(measure.worker, "describe", deadline_s=60)
                measuring = os.getpriority(os.PRIO_PROCESS, runtime.engine.pid(measure.worker) or 0)
            async with runtime.stage("job", "build", Role.BUILDER) as build:
                await runtime.call(build.worker, "build", task, candidate, deadline_s=60)
                building = os.getpriority(os.PRIO_PROCESS, runtime.engine.pid(build.worker) or 0)
            assert measuring == os.getpriority(os.PRIO_PROCESS, 0)
            assert building > measuring or building == 19

    run(main())


def test_the_scheduler_s_log_of_a_run_replays(tmp_path: Path) -> None:
    stop = threading.Event()

    def listen(progress: Any) -> None:
        if progress.trials > 20:
            stop.set()

    with runtimes() as made:
        run_in(tmp_path, "fake:log?tasks=2&build_s=0.01", "60trials", on_progress=listen, stop=stop)
    expect_nothing_held(made[0])
    spans = made[0].dispatch.spans
    kinds = {span.kind for span in spans}
    assert {"import", "propose", "build", "measure"} <= kinds
    assert all(span.start_s <= span.end_s for span in spans)
