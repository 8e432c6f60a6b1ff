"""Somebody else's work on our cores: measuring waits for its end or is marked, and what it disturbed is repeated."""

import asyncio
import itertools
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from job_tools import PATIENCE_S, raced, records_in, request_in, run_in
from scheduler_tools import replay, validate

from tunery.devices import ForeignLoad
from tunery.domain import JobState, Mode, Origin
from tunery.domain.request import Progress
from tunery.engines import Role
from tunery.reports.text import tune_text
from tunery.runtime import opening
from tunery.runtime.foreign_load import Foreign, ForeignWatch
from tunery.runtime.runtime import Runtime
from tunery.scheduling import CapacityChanged, Run, StageReady
from tunery.service.manager import JobManager
from tunery.store import open_store
from tunery.testing.fake_device import FakeForeignLoad

pytestmark = pytest.mark.jobs

TRIALS = 80
SOURCE = "fake:hog?tasks=2&build_s=0.02&run_s=0.01"


class Hog(ForeignLoad):
    """A real process that spins; only its own use of the CPU counts, for the machine may be busy with other things."""

    least_s = 0.1

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self._used_s = self._looked_s = 0.0

    def start(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", "while True: pass"])

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def taken(self) -> float:
        wall_s, self._looked_s = time.monotonic() - self._looked_s, time.monotonic()
        if self.process is None or self.process.poll() is not None:
            return 0.0
        times = psutil.Process(self.process.pid).cpu_times()
        used_s, self._used_s = times.user + times.system - self._used_s, times.user + times.system
        return 1.0 if used_s > 0.02 * wall_s else 0.0


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch, patience_s: float) -> Iterator[tuple[Hog, list[Runtime]]]:
    hog, made = Hog(), list[Runtime]()

    def make(*args: object, **more: object) -> Runtime:
        more["foreign"] = ForeignWatch(hog, Foreign(2, patience_s))
        made.append(Runtime(*args, **more))  # type: ignore[arg-type]
        return made[-1]

    monkeypatch.setattr(opening, "Runtime", make)
    try:
        yield hog, made
    finally:
        hog.stop()


def capacities(runtime: Runtime, resource: str) -> list[tuple[float, int]]:
    events = [event for entry in runtime.dispatch.scheduler.log.entries for event in entry.events]
    name = runtime.spec.resource(resource)
    changes = [(e.at_s, e.capacity) for e in events if isinstance(e, CapacityChanged) and e.resource == name]
    return changes[1:]  # the first says that there is such a resource


def measuring_started(runtime: Runtime) -> list[float]:
    """Return when stages of the measurer started, by the scheduler's log."""
    wide, times = set(), []
    for entry in runtime.dispatch.scheduler.log.entries:
        for event in entry.events:
            if isinstance(event, StageReady) and event.request.needs.get(runtime.spec.resource(Role.MEASURER)):
                wide.add(event.request.stage_id)
        at_s = max(event.at_s for event in entry.events)
        times += [at_s for d in entry.decisions if isinstance(d, Run) and d.stage_id in wide]
    return times


def test_measuring_waits_for_the_end_of_a_hog_and_repeats_what_it_disturbed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with watched(monkeypatch, patience_s=1000.0) as (hog, made):
        waited = False

        def listen(progress: Progress) -> None:
            if progress.trials > 15 and hog.process is None:
                hog.start()

        original = Runtime._share_changed

        def changed(self: Runtime, share) -> None:
            nonlocal waited
            original(self, share)
            if share.waiting and not waited:
                waited = True
                import asyncio

                # Time enough for everything else to come to rest.
                asyncio.get_running_loop().call_later(1.5, hog.stop)

        monkeypatch.setattr(Runtime, "_share_changed", changed)
        report = run_in(tmp_path, SOURCE, f"{TRIALS}trials", threads=1, on_progress=listen)
    assert waited
    [runtime] = made
    (shut_s, none), (open_s, one) = capacities(runtime, Role.MEASURER)[:2]
    assert (none, one) == (0, 1)
    assert not [at_s for at_s in measuring_started(runtime) if shut_s < at_s < open_s]
    assert [at_s for at_s in measuring_started(runtime) if at_s >= open_s]
    assert [capacity for _, capacity in capacities(runtime, Role.BUILDER)][:1] == [1]
    assert report.job.spend.trials == TRIALS, "what was raced again counts once"
    times = raced(tmp_path)
    assert set(times.values()) <= {1, 2}
    assert len(times) == TRIALS
    marks = {r.measurement.context.get("foreign_cores") for r in records_in(tmp_path) if r.measurement.samples_s}
    assert marks <= {0.0, 1.0}
    validate(runtime.dispatch.scheduler)
    replay(runtime.dispatch.scheduler.log)


def test_a_hog_that_stays_is_waited_for_only_so_long_and_then_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with watched(monkeypatch, patience_s=1.0) as (hog, made):
        hog.start()
        report = run_in(tmp_path, SOURCE, "40trials", threads=1)
    assert report.job.spend.trials == 40
    [runtime] = made
    changes = [capacity for _, capacity in capacities(runtime, Role.MEASURER)]
    assert changes[:2] == [0, 1]
    timed = [r.measurement for r in records_in(tmp_path) if r.measurement.samples_s]
    dirty = sum(bool(measurement.context.get("contaminated")) for measurement in timed)
    assert [sum(getattr(task, name) for task in report.job.tasks) for name in ("contaminated", "timings")] == [
        dirty, len(timed),
    ]  # fmt: skip
    assert f"disturbed   {dirty} of {len(timed)} timings" in tune_text(report, request_in(tmp_path, SOURCE))
    late = [r.measurement for r in records_in(tmp_path, Mode.RACE) if r.candidate.origin is not Origin.BASELINE]
    said = Counter((m.context.get("contaminated"), m.context.get("foreign_cores")) for m in late if m.samples_s)
    assert said[True, 1.0] > 0


def test_a_short_budget_is_not_spent_on_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(*args: object, **more: object) -> Runtime:
        more["foreign"] = ForeignWatch(FakeForeignLoad(itertools.repeat(1.0)), Foreign(2, patience_s=1000.0))
        return Runtime(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(opening, "Runtime", make)
    report = run_in(tmp_path, SOURCE, "6s", threads=1)
    assert report.job.spend.trials > 0
    assert report.job.spend.wall_s < 60.0, "the hog never leaves"


def test_without_others_nothing_waits_and_nothing_is_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with watched(monkeypatch, patience_s=1.0) as (_, made):
        run_in(tmp_path, SOURCE, "20trials", threads=1)
    assert capacities(made[0], Role.MEASURER) == []
    assert {r.measurement.context.get("foreign_cores") for r in records_in(tmp_path, Mode.RACE)} <= {0.0, None}


def test_jobs_of_every_thread_count_go_on_beside_a_hog_that_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cores = sorted(os.sched_getaffinity(0))

    def make(*args: object, **more: object) -> Runtime:
        more["foreign"] = ForeignWatch(FakeForeignLoad(itertools.repeat(1.0)), Foreign(len(cores), 1.0))
        return Runtime(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(opening, "Runtime", make)

    async def main() -> list[JobState]:
        with open_store(str(tmp_path / "store.db")) as store:
            async with JobManager(store) as room:
                # The wide one first: the narrow one's workers, which come later, must not take its cores away.
                asked = [
                    request_in(tmp_path, f"fake:t{n}?tasks=1&build_s=0.02", "20trials", n) for n in (len(cores), 1)
                ]
                return [(await room.wait(job)).state for job in [await room.submit(request) for request in asked]]

    assert asyncio.run(asyncio.wait_for(main(), PATIENCE_S)) == [JobState.DONE] * 2
