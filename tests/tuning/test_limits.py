"""What a job may use is a hard limit."""

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from job_tools import PATIENCE_S, records_in, request_in, run_in, runtimes

from tunery._errors import UsageError
from tunery.accounting.prices import load_prices
from tunery.devices.cpu.facts import usable_cores
from tunery.devices.cpu.load import MODELLED_W_PER_CORE
from tunery.dialects import Observation
from tunery.domain import Budget, Candidate, JobState, JobStatus, Mode, Outcome
from tunery.domain.request import Progress, ShareRequest
from tunery.engines import Role
from tunery.service.checks import check
from tunery.service.codec import request_of
from tunery.service.manager import JobManager
from tunery.service.session import tune
from tunery.store import open_store
from tunery.tuning.calls import Context
from tunery.tuning.job import TuningJob
from tunery.tuning.search.finals import predicted_s
from tunery.tuning.search.state import KnownCandidates
from tunery.tuning.search.task_search import TaskSearch

pytestmark = [pytest.mark.jobs, pytest.mark.usefixtures("inline_workers")]

BUSY = "fake:busy?tasks=2&space=64x64x64&build_s=0.05&propose_s=0.02&spin=1&real=1&best_us=500"
FIVE_SECONDS = f"${load_prices().of_machine(5.0 * len(usable_cores())):.9f}"


def test_finals_that_would_not_end_in_time_are_left_out_and_a_cheaper_task_still_has_its_own(tmp_path: Path) -> None:
    # Latencies are virtual, so all go fast; by the prediction the slow task's finals take as long as the whole budget.
    report = run_in(tmp_path, "fake:dear?tasks=2&space=2x2x2&spread=1.2&best_us=45000", "30s,16trials")
    light, heavy = sorted(report.job.tasks, key=lambda state: state.best_s or 0.0)
    assert {record.candidate.task_key for record in records_in(tmp_path, Mode.FINAL)} == {light.task_key}
    assert "the best of 1 of 2 tasks again" in report.job.message
    assert heavy.measured > 0


def test_what_is_not_at_hand_makes_finals_longer() -> None:
    assert predicted_s(0.1, 0.01, builds_s=7.0) == pytest.approx(predicted_s(0.1, 0.01) + 7.0)
    assert predicted_s(0.1, 0.01, 12) > predicted_s(0.1, 0.01, 2)
    assert predicted_s(0.1, 0.01, 12, inputs_mb=10.0) > predicted_s(0.1, 0.01, 12) + 2.0, "large weights are dear"
    known = KnownCandidates()
    for name, outcome, latency_s in [
        ("slow", Outcome.OK, 2e-3), ("close", Outcome.ABANDONED, 1.05e-3), ("best", Outcome.OK, 1e-3),
        ("wrong", Outcome.WRONG_RESULT, None),
    ]:  # fmt: skip
        known.keep(Observation(Candidate(name, "task", "{}"), outcome, latency_s))
    assert known.near_best(0.1) == ["best", "close"]


@pytest.mark.parametrize(
    ("budget", "kind"), [("5s", "seconds"), ("16trials", "trials"), (FIVE_SECONDS, "money"), ("40J", "joules")]
)
def test_a_limit_is_exceeded_by_no_more_than_one_stage(tmp_path: Path, budget: str, kind: str) -> None:
    with runtimes() as made:
        job = run_in(tmp_path, BUSY, budget).job
    [runtime] = made
    lasted = [(span.kind, span.end_s - span.start_s) for span in runtime.dispatch.spans]
    # A task's finals are one, though a finalist that is not at hand is built for it before.
    longest_s = max(s for kind, s in lasted if kind in {"import", "measure", "finals"})
    longest_s += max((s for kind, s in lasted if kind == "build"), default=0.0)
    prices, watts = load_prices(), MODELLED_W_PER_CORE * len(runtime.cores)
    longest = {
        "seconds": longest_s,
        "trials": 1.0,
        "money": prices.of_machine(longest_s * len(runtime.cores)) + prices.of_energy(longest_s * watts),
        "joules": longest_s * watts,
    }
    used = job.spend.wall_s if kind == "seconds" else getattr(job.spend, kind)
    limit = getattr(Budget.parse(budget), kind)
    assert job.state is JobState.DONE
    assert len(job.tasks) == 2, "also those that were not reached"
    assert used <= 1.02 * limit + longest[kind]
    assert job.remaining[kind] == pytest.approx(limit - used, abs=0.02 * limit)


def test_a_limit_of_time_is_kept_while_another_job_holds_the_device(tmp_path: Path) -> None:
    async def main() -> JobStatus:
        with open_store(str(tmp_path / "store.db")) as store:
            async with JobManager(store) as room:
                request, over = request_in(tmp_path, "fake:waits?tasks=2", "3s"), asyncio.Event()
                runtime, began = room.runtime(request), asyncio.Event()

                async def hold() -> None:
                    runtime.dispatch.submit("other")
                    async with runtime.stage("other", "measure", Role.MEASURER):
                        began.set()
                        await over.wait()

                other = asyncio.create_task(hold())
                await began.wait()
                status = await room.wait(await room.submit(request))
                over.set()
                await other
                assert room.dispatch.waiting == {}
                return status

    job = asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
    assert (job.state, job.spend.trials) == (JobState.DONE, 0)
    assert [task.baseline_s for task in job.tasks] == [None, None]


def test_finals_that_take_longer_than_predicted_leave_tasks_unproven_and_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finals, out_of_time, held = TaskSearch.finals, TuningJob._out_of_time, list[str]()

    async def hold(self: TaskSearch, payer: Context) -> None:
        await finals(self, payer)
        held.append(self.task.key)

    monkeypatch.setattr(TaskSearch, "finals", hold)
    monkeypatch.setattr(TuningJob, "_out_of_time", lambda self: bool(held) or out_of_time(self))
    job = run_in(tmp_path, "fake:late?tasks=3", "24trials").job
    assert len(held) == 1
    assert {record.candidate.task_key for record in records_in(tmp_path, Mode.FINAL)} == set(held)
    assert "the best of 2 of 3 tasks again" in job.message


def test_a_job_that_goes_on_with_another_limit_keeps_it(tmp_path: Path) -> None:
    stop = threading.Event()

    def stop_at_eight(progress: Progress) -> None:
        if progress.trials >= 8:
            stop.set()

    first = run_in(tmp_path, "fake:larger?tasks=1&run_s=0.01", "24trials", on_progress=stop_at_eight, stop=stop).job
    stop.set()
    again = run_in(tmp_path, "fake:larger?tasks=1&run_s=0.01", "48trials", stop=stop).job
    assert (again.job_id, again.state) == (first.job_id, JobState.STOPPED)
    with open_store(str(tmp_path / "store.db")) as store:
        assert request_of(store.job(first.job_id), store.url).budget == Budget(trials=48)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"budget": Budget(trials=-5)}, "not positive"),
        ({"budget": Budget(seconds=float("inf"))}, "finite"),
        ({"budget": Budget(money=2.0, currency="EUR")}, "2USD"),
        ({"latency_target_s": 0.0}, "12ms"),
        ({"latency_target_s": float("nan")}, "12ms"),
    ],
)
def test_wrong_limits_are_refused_however_a_request_was_made(tmp_path: Path, changed: dict[str, Any], why: str) -> None:
    request = replace(request_in(tmp_path, "fake:checked"), **changed)
    with pytest.raises(UsageError, match=why):
        tune(request)
    assert not (tmp_path / "store.db").exists()
    with pytest.raises(UsageError, match=why):
        check(request, ShareRequest())
