"""What a job may use is a hard limit."""

from pathlib import Path

import pytest
from job_tools import records_in, run_in, runtimes

from tunery.budgets import load_prices
from tunery.dialects import Told
from tunery.domain import Budget, Candidate, JobState, Mode, Outcome
from tunery.jobs.finals import predicted_s
from tunery.jobs.known import Known
from tunery.measure import usable_cores
from tunery.measure.energy import MODELLED_W_PER_CORE

BUSY = "fake:busy?tasks=2&space=64x64x64&build_s=0.05&propose_s=0.02&spin=1&real=1&best_us=2000"
TEN_SECONDS = f"${load_prices().of_machine(10.0 * len(usable_cores())):.9f}"


def test_finals_that_would_not_end_in_time_are_left_out_and_a_cheaper_task_still_has_its_own(tmp_path: Path) -> None:
    # Latencies are virtual, so all go fast; by the prediction the slow task's finals take as long as the whole budget.
    report = run_in(tmp_path, "fake:dear?tasks=2&space=2x2x2&spread=1.2&best_us=45000", "30s,16trials")
    light, heavy = sorted(report.job.tasks, key=lambda state: state.best_s or 0.0)
    assert {record.candidate.task_key for record in records_in(tmp_path, Mode.FINAL)} == {light.task_key}
    assert "the finals of 1 of 2 tasks" in report.job.message
    assert heavy.measured > 0


def test_what_is_not_at_hand_makes_finals_longer() -> None:
    assert predicted_s(0.1, 0.01, builds_s=7.0) == pytest.approx(predicted_s(0.1, 0.01) + 7.0)
    assert predicted_s(0.1, 0.01, 12) > predicted_s(0.1, 0.01, 2)
    assert predicted_s(0.1, 0.01, 12, inputs_mb=10.0) > predicted_s(0.1, 0.01, 12) + 2.0, "large weights are dear"
    known = Known()
    for name, outcome, latency_s in [
        ("slow", Outcome.OK, 2e-3), ("close", Outcome.ABANDONED, 1.05e-3), ("best", Outcome.OK, 1e-3),
        ("wrong", Outcome.WRONG_RESULT, None),
    ]:  # fmt: skip
        known.keep(Told(Candidate(name, "task", "{}"), outcome, latency_s))
    assert known.near_best(0.1) == ["best", "close"]


@pytest.mark.parametrize(
    ("budget", "kind"), [("6s", "seconds"), ("50trials", "trials"), (TEN_SECONDS, "money"), ("80J", "joules")]
)
def test_a_limit_is_exceeded_by_no_more_than_one_stage(tmp_path: Path, budget: str, kind: str) -> None:
    with runtimes() as made:
        job = run_in(tmp_path, BUSY, budget).job
    [runtime] = made
    lasted = [(span.kind, span.end_s - span.start_s) for span in runtime.dispatch.spans]
    # A task's finals are one, though a finalist that is not at hand is built for it before.
    longest_s = max(s for _, s in lasted) + max((s for kind, s in lasted if kind == "build"), default=0.0)
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
    assert used <= 1.02 * limit + longest[kind]
    assert job.remaining[kind] == pytest.approx(limit - used, abs=0.02 * limit)
