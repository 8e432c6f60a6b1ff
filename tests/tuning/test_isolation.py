"""Each planted candidate costs only itself: its outcome is recorded and the run goes on to its budget."""

from pathlib import Path

import pytest
from job_tools import outcomes_of, raced, records_in, run_in, runtimes, task_named
from scheduler_tools import validate

from tunery.domain import Artifact, Candidate, JobState, Measurement, Mode, Origin, Outcome, Task
from tunery.domain.request import TuneReport
from tunery.engines import Role
from tunery.runtime import worker_bytes
from tunery.runtime.dispatch import Dispatch, Span
from tunery.runtime.hosts import workers
from tunery.testing.fake_dialect import FakeDialect
from tunery.tuning import calls
from tunery.tuning.calls import Context
from tunery.tuning.search import finals

pytestmark = pytest.mark.jobs

TRIALS = 24
# A space of 24: every planted candidate is tried.
BASE = "fake:planted?tasks=1&space=4x3x2&noise=0.002"


@pytest.fixture(autouse=True)
def _short_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "BUILD_DEADLINE_S", 2.0)
    monkeypatch.setattr(calls, "RACE_DEADLINE_S", 4.0)
    monkeypatch.setattr(calls, "FIRST_RACE_DEADLINE_S", 5.0)
    monkeypatch.setattr(finals, "FINALS_DEADLINE_S", 5.0)

    def little(role: Role, granted: int | None = None) -> int:
        return 128 << 20 if role is Role.MEASURER else worker_bytes(role, granted)

    monkeypatch.setattr(workers, "worker_bytes", little)


def expect_sound(report: TuneReport, directory: Path) -> None:
    """The run ended, used its budget, measured nothing twice, and delivers healthy candidates only."""
    dialect = FakeDialect()
    assert report.job.state is JobState.DONE
    assert set(raced(directory).values()) == {1}
    records = {record.candidate.key: record.candidate for record in records_in(directory)}
    for state, task in zip(report.job.tasks, report.tasks, strict=True):
        if state.best_candidate is not None:
            assert dialect.fault(task, records[state.best_candidate]) is None
            assert state.best_s == pytest.approx(dialect.latency_s(task, records[state.best_candidate]), rel=0.05)


KINDS = {
    "refuse": Outcome.BUILD_FAILED,
    "build_crash": Outcome.CRASHED,
    "build_hang": Outcome.TIMEOUT,
    "fail": Outcome.RUN_FAILED,
    "segfault": Outcome.CRASHED,
    "hang": Outcome.TIMEOUT,
    "hang_gil": Outcome.TIMEOUT,
    "eat": Outcome.RUN_FAILED,
    "all_nan": Outcome.WRONG_RESULT,
    "constant": Outcome.WRONG_RESULT,
    "one_off": Outcome.WRONG_RESULT,
    "partial": Outcome.WRONG_RESULT,
    "zero_time": Outcome.RUN_FAILED,
    "nan_time": Outcome.RUN_FAILED,
}
KILLING = {"build_crash": Role.BUILDER, "build_hang": Role.BUILDER} | dict.fromkeys(
    ["segfault", "hang", "hang_gil"], Role.MEASURER
)


def test_each_kind_costs_only_itself(tmp_path: Path) -> None:
    planted = {fault: number for number, fault in enumerate(KINDS)}
    options = "&".join(f"{fault}={number}" for fault, number in planted.items())
    generations = {}
    with runtimes() as made:
        original = Dispatch.end

        def end(self: Dispatch, job_id: str) -> list[Span]:
            for role in (Role.BUILDER, Role.MEASURER):
                generations[role] = sum(made[0].engine.generation(worker) - 1 for worker in made[0].workers(role))
            return original(self, job_id)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Dispatch, "end", end)
            report = run_in(tmp_path, f"{BASE}&memory_mib=1024&{options}", f"{TRIALS}trials")
    validate(made[0].dispatch.scheduler)
    expect_sound(report, tmp_path)
    assert report.job.spend.trials == TRIALS == raced(tmp_path).total()
    assert report.job.tasks[0].best_candidate is not None

    dialect = FakeDialect()
    found = {r.candidate.key: r.measurement.outcome for r in records_in(tmp_path, Mode.RACE)}
    for fault, number in planted.items():
        assert found[dialect.candidate(report.tasks[0], number).key] is KINDS[fault], fault
    assert outcomes_of(report)[Outcome.OK] >= 1
    for role in (Role.BUILDER, Role.MEASURER):
        assert generations[role] >= sum(where is role for where in KILLING.values())


@pytest.mark.parametrize("fault", ["some", "negative"])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_what_is_wrong_on_some_inputs_only_never_wins(tmp_path: Path, fault: str, seed: int) -> None:
    report = run_in(tmp_path, f"{BASE}&{fault}=1,4,7,10,13,16,19&seed={seed}", f"{TRIALS}trials")
    expect_sound(report, tmp_path)
    state = report.job.tasks[0]
    assert state.best_s is not None
    assert state.baseline_s is not None
    # They look ten times faster than the best healthy one, which must be found all the same.
    assert state.best_candidate is not None
    assert state.best_s < state.baseline_s


def test_many_faults_at_once(tmp_path: Path) -> None:
    shares = "&".join(
        f"{fault}=0.06" for fault in ("refuse", "segfault", "build_crash", "one_off", "fail", "negative", "nan_time")
    )
    report = run_in(tmp_path, f"fake:many?tasks=3&{shares}", "60trials")
    expect_sound(report, tmp_path)
    assert report.job.spend.trials == 60
    assert all(state.best_candidate for state in report.job.tasks)


@pytest.mark.parametrize("fault", ["refuse", "segfault", "one_off", "hang"])
def test_a_faulty_baseline_leaves_the_others_alone(tmp_path: Path, fault: str) -> None:
    source = f"fake:base?tasks=2&space=4x4x2&baseline_fault={fault}&fault_tasks=0"
    report = run_in(tmp_path, source, "30trials")
    expect_sound(report, tmp_path)
    bad, good = sorted(report.job.tasks, key=lambda state: state.name != "matmul_0")
    assert good.best_candidate is not None
    assert bad.best_candidate is not None, "its candidates are healthy"
    baselines = {r.candidate.key: r for r in records_in(tmp_path, Mode.RACE) if r.candidate.origin is Origin.BASELINE}
    if fault == "refuse":  # the unscheduled program stands in
        dialect, task = FakeDialect(), task_named(report, "matmul_0")
        assert bad.baseline_s == pytest.approx(dialect.latency_s(task, dialect.reference(task)), rel=0.1)
        assert dialect.baseline(task).key not in baselines
    else:
        assert (bad.baseline_s, report.before_s) == (None, None)

    again = run_in(tmp_path, source, "4trials")
    raced_baselines = [r for r in records_in(tmp_path, Mode.RACE) if r.candidate.origin is Origin.BASELINE]
    assert len(raced_baselines) == len(baselines) == 2, "a faulty baseline is not tried again"
    assert again.job.spend.trials == 4


def test_a_task_whose_reference_fails_is_left_out_at_once(tmp_path: Path) -> None:
    source = "fake:base?tasks=2&space=4x4x2&reference_fault=fail&fault_tasks=0"
    report = run_in(tmp_path, source, "20trials")
    bad, good = sorted(report.job.tasks, key=lambda state: state.name != "matmul_0")
    assert bad.measured == 0
    assert bad.problem
    assert good.best_candidate is not None
    assert report.job.spend.trials == 20 == good.measured


def test_a_search_that_ends_its_process_goes_on_with_the_compilers_own_space(tmp_path: Path) -> None:
    report = run_in(tmp_path, "fake:plain?tasks=2&propose_dies=1&fault_tasks=0", "24trials")
    expect_sound(report, tmp_path)
    assert {(state.measured > 0, state.problem) for state in report.job.tasks} == {(True, "")}


def test_a_task_whose_reference_does_not_build_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = finals.build_one

    async def build_one(context: Context, task: Task, candidate: Candidate) -> Artifact | Measurement:
        if candidate.origin is Origin.PLANTED and task.workload.name == "matmul_0":
            return Measurement(Outcome.BUILD_FAILED, detail="planted")
        return await original(context, task, candidate)

    monkeypatch.setattr(finals, "build_one", build_one)
    report = run_in(tmp_path, "fake:ref?tasks=2", "24trials")
    expect_sound(report, tmp_path)
    bad, good = sorted(report.job.tasks, key=lambda state: state.name != "matmul_0")
    assert (bad.measured, bad.best_s) == (0, None)
    assert "does not build: planted" in bad.problem
    assert good.measured == 24
