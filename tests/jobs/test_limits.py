"""What a job may use is a hard limit."""

from pathlib import Path

from job_tools import records_in, run_in

from tunery.dialects import Told
from tunery.domain import Candidate, Mode, Outcome
from tunery.jobs.finals import predicted_s
from tunery.jobs.known import Known


def test_finals_that_would_not_end_in_time_are_left_out_and_a_cheaper_task_still_has_its_own(tmp_path: Path) -> None:
    # Latencies are virtual, so all go fast; by the prediction the slow task's finals take as long as the whole budget.
    report = run_in(tmp_path, "fake:dear?tasks=2&space=2x2x2&spread=1.2&best_us=45000", "30s,16trials")
    light, heavy = sorted(report.job.tasks, key=lambda state: state.best_s or 0.0)
    assert {record.candidate.task_key for record in records_in(tmp_path, Mode.FINAL)} == {light.task_key}
    assert "the finals of 1 of 2 tasks" in report.job.message
    assert heavy.measured > 0


def test_what_is_not_at_hand_makes_finals_longer() -> None:
    assert predicted_s(0.1, 0.01, builds_s=7.0) == predicted_s(0.1, 0.01) + 7.0
    known = Known()
    for name, outcome, latency_s in [
        ("slow", Outcome.OK, 2e-3), ("close", Outcome.ABANDONED, 1.05e-3), ("best", Outcome.OK, 1e-3),
        ("wrong", Outcome.WRONG_RESULT, None),
    ]:  # fmt: skip
        known.keep(Told(Candidate(name, "task", "{}"), outcome, latency_s))
    assert known.near_best(0.1) == ["best", "close"]
