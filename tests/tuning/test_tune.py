import fcntl
import os
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from job_tools import PATIENCE_S, outcomes_of, raced, records_in, request_in, run_in, runtimes, task_named

from tunery._errors import StoreError
from tunery._locks import open_lock
from tunery.cli.console.live import line
from tunery.domain import JobState, Mode, Origin, Outcome
from tunery.domain.request import Progress, TuneReport
from tunery.engines import Role
from tunery.reports.text import tune_text
from tunery.runtime.runtime import Runtime
from tunery.service.session import query, tune
from tunery.store import Store, open_store
from tunery.testing.fake_dialect import FakeDialect
from tunery.tuning.account import RunBudget
from tunery.tuning.calls import FIRST_RACE_DEADLINE_S

pytestmark = pytest.mark.jobs

TRIALS = 48
SOURCE = "fake:whole?tasks=3&frozen=1&weights=3,1"


def test_a_job_says_that_it_waits_for_another_that_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunery.tuning.job.HEARTBEAT_S", 0.02)
    monkeypatch.setattr("tunery.tuning.reporting._WAITED_S", 0.1)
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    lock = open_lock(cache / "measuring.lock")
    fcntl.flock(lock, fcntl.LOCK_EX)
    gives_up = threading.Timer(PATIENCE_S, fcntl.flock, (lock, fcntl.LOCK_UN))
    gives_up.start()
    seen: list[Progress] = []

    def let_go(progress: Progress) -> None:
        seen.append(progress)
        if progress.waited:
            fcntl.flock(lock, fcntl.LOCK_UN)

    report = run_in(tmp_path, "fake:waits?tasks=1", "4trials", on_progress=let_go)
    os.close(lock)
    gives_up.cancel()
    first = next(progress for progress in seen if progress.waited)
    assert (first.trials, first.phase) == (0, "baseline"), "it says so while it waits"
    for text in (line(first), report.job.message):
        assert "for another tunery that measures here" in text


def test_a_whole_tune(tmp_path: Path) -> None:
    seen: list[Progress] = []
    report = run_in(tmp_path, SOURCE, f"{TRIALS}trials", on_progress=seen.append)
    job = report.job
    assert (job.state, report.resumed, job.message) == (JobState.DONE, False, "")
    assert report.before_s is not None
    assert report.after_s is not None
    assert report.after_s < report.before_s / 2

    # The budget is kept exactly, and every trial is one durable record.
    assert job.spend.trials == TRIALS == raced(tmp_path).total() == outcomes_of(report).total()
    assert set(raced(tmp_path).values()) == {1}

    dialect = FakeDialect()
    for state, task in zip(job.tasks, report.tasks, strict=True):
        assert state.baseline_s == pytest.approx(dialect.latency_s(task, dialect.baseline(task)), rel=0.1)
        assert state.best_s is not None
        if not state.tunable:
            assert (state.measured, state.best_s) == (0, state.baseline_s)
            continue
        assert state.best_s < state.baseline_s
        with open_store(report.store) as store:
            [best] = store.best(task.key, records_in(tmp_path)[0].provenance)
        assert best.candidate.key == state.best_candidate
        assert best.measurement.mode is Mode.FINAL
        assert best.measurement.verification is not None
        assert best.measurement.verification.deliverable
        assert state.best_s == pytest.approx(dialect.latency_s(task, best.candidate), rel=0.1)

    phases = [progress.phase for progress in seen]
    assert [phase for i, phase in enumerate(phases) if phase not in phases[:i]] == [
        "importing",
        "baseline",
        "search",
        "finals",
    ]
    assert [p.trials for p in seen] == sorted(p.trials for p in seen)
    assert not list((tmp_path / "cache").glob("run-*"))


def test_records_and_ledger(tmp_path: Path) -> None:
    report = run_in(tmp_path, SOURCE, f"{TRIALS}trials")
    records = records_in(tmp_path)
    assert {(record.job_id, record.provenance) for record in records} == {(report.job.job_id, records[0].provenance)}
    assert records[0].provenance.dialect == "fake"
    assert all((records[0].provenance.compiler, records[0].provenance.device, records[0].provenance.settings))
    assert {record.candidate.task_key for record in records} <= {task.key for task in report.tasks}
    baselines = Counter(
        r.candidate.task_key
        for r in records
        if r.measurement.mode is Mode.RACE and r.candidate.origin is Origin.BASELINE
    )
    assert baselines == {task.key: 1 for task in report.tasks}

    spend = report.job.spend
    assert {"propose", "build", "measure", "finals"} <= spend.stage_s.keys()
    assert min(spend.stage_s.values()) > 0
    assert min(spend.wall_s, spend.core_s, spend.device_s) > 0
    with open_store(report.store) as store:
        rows = store.ledger(report.job.job_id)
    assert all(min(row.wall_s, row.core_s, row.device_s) >= 0 for row in rows)
    assert sum(row.wall_s for row in rows) == pytest.approx(sum(spend.stage_s.values()))


@pytest.mark.slow  # what a limit of each kind allows is told in test_limits.py
def test_a_time_budget_is_kept(tmp_path: Path) -> None:
    report = run_in(tmp_path, "fake:timed?tasks=2&build_s=0.02&space=64x64x64", "10s")
    assert report.job.state is JobState.DONE
    # Not a race against the clock: a search that ignored its budget would go on for hours. How much of it the import
    # took, and what was left for finals, depends on the machine.
    assert report.job.spend.wall_s < 60.0
    assert 0 < report.job.spend.trials < 10_000
    assert all(task.baseline_s is not None for task in report.job.tasks)
    assert any(task.measured for task in report.job.tasks)


def test_a_budget_that_only_reads_the_model_says_so(tmp_path: Path) -> None:
    report = run_in(tmp_path, "fake:slow?tasks=1&extract_s=2", "2s")
    assert (report.job.spend.trials, report.job.tasks[0].best_s) == (0, None)
    assert "give a larger --budget" in report.job.message
    said = tune_text(report, request_in(tmp_path, "fake:slow"), output=Path("mine.tunery"))
    assert report.job.message in said
    assert "-o mine.tunery" in said


def test_time_that_the_finals_do_not_need_is_not_kept_for_them(tmp_path: Path) -> None:
    # Reading the model takes more than half of the budget: no more than the rest was ever kept for finals.
    report = run_in(tmp_path, "fake:slow?tasks=1&frozen=30&extract_s=5", "9s,3trials")
    assert report.job.spend.trials > 0
    assert report.job.tasks[0].baseline_s is not None


def test_the_time_left_in_the_finals_is_that_of_the_finals(tmp_path: Path) -> None:
    seen: list[Progress] = []
    run_in(tmp_path, "fake:whole?tasks=2&frozen=20&space=1x1x1", "300s", on_progress=seen.append)
    told = [(progress.current, progress.remaining_s) for progress in seen if progress.phase == "finals"]
    assert [current for current, _ in told] == ["0 of 2", "1 of 2", "2 of 2"]
    left = [seconds or 0.0 for _, seconds in told]
    assert 10.0 > left[0] > left[1] > left[2] == 0.0, "not the budget's 300 s"


def test_while_one_untuned_kernel_is_timed_the_next_are_built(tmp_path: Path) -> None:
    seen: list[Progress] = []
    with runtimes() as made:
        run_in(tmp_path, "fake:slow?tasks=4&build_s=0.2", "1trials", on_progress=seen.append)
    assert [p.current for p in seen if p.phase == "baseline"] == [f"{done} of 4" for done in range(5)]
    [runtime] = made
    built = [(span.start_s, span.end_s) for span in runtime.dispatch.spans if span.kind == "build"]
    if len(runtime.workers(Role.BUILDER)) > 1:
        assert any(a < c < b for a, b in built for c, _ in built)


def test_exhausted_tasks_end_early(tmp_path: Path) -> None:
    report = run_in(tmp_path, "fake:small?tasks=2&exhaust=5", "1000trials")
    assert report.job.state is JobState.DONE
    assert [task.measured for task in report.job.tasks] == [5, 5]
    assert raced(tmp_path).total() == 10


def test_nothing_tunable_is_measured_once(tmp_path: Path) -> None:
    seen: list[Progress] = []
    report = run_in(tmp_path, "fake:frozen?tasks=0&frozen=2", on_progress=seen.append)
    assert report.job.state is JobState.DONE
    assert "finals" not in {progress.phase for progress in seen}, "nobody is told of finals that nobody needs"
    assert (report.job.spend.trials, len(records_in(tmp_path))) == (0, 2)
    assert report.before_s == report.after_s is not None


def test_the_same_request_after_its_end_is_a_new_job_that_repeats_nothing(tmp_path: Path) -> None:
    first = run_in(tmp_path, SOURCE, "30trials")
    second = run_in(tmp_path, SOURCE, "30trials")
    assert first.job.job_id != second.job.job_id
    assert (second.resumed, second.job.spend.trials) == (False, 30)
    assert raced(tmp_path).total() == 60
    assert set(raced(tmp_path).values()) == {1}
    baselines = [r for r in records_in(tmp_path, Mode.RACE) if r.candidate.origin is Origin.BASELINE]
    assert len(baselines) == len(first.tasks)
    assert first.after_s is not None
    assert second.after_s is not None
    assert second.after_s < first.after_s * 1.05


def test_stop_and_go_on(tmp_path: Path) -> None:
    stop = threading.Event()
    source = SOURCE + "&build_s=0.01"

    def watch(progress: Progress) -> None:
        if progress.trials >= 12:
            stop.set()

    stopped = run_in(tmp_path, source, f"{TRIALS}trials", on_progress=watch, stop=stop)
    assert stopped.job.state is JobState.STOPPED
    assert "same command" in stopped.job.message
    assert "were not timed again yet" in stopped.job.message
    before = raced(tmp_path)
    assert 12 <= stopped.job.spend.trials == before.total() < TRIALS

    done = run_in(tmp_path, source, f"{TRIALS}trials")
    assert (done.resumed, done.job.job_id, done.job.state) == (True, stopped.job.job_id, JobState.DONE)
    assert done.job.spend.trials == raced(tmp_path).total() == TRIALS
    assert set(raced(tmp_path).values()) == {1}
    assert before <= raced(tmp_path)
    assert done.job.spend.wall_s > stopped.job.spend.wall_s


def stopped_in(phase: str, directory: Path, source: str) -> TuneReport:
    """Tune until the job is in `phase`, and stop it there."""
    stop = threading.Event()
    report = run_in(directory, source, on_progress=lambda now: stop.set() if now.phase == phase else None, stop=stop)
    assert report.job.state is JobState.STOPPED
    return report


def test_what_races_find_after_a_resume_counts_as_it_does_without_one(tmp_path: Path) -> None:
    source = SOURCE + "&build_s=0.01"
    assert stopped_in("search", tmp_path, source).job.spend.trials == 0, "only the untuned kernels were timed"
    stop, seen = threading.Event(), list[Progress]()

    def watch(progress: Progress) -> None:
        seen.append(progress)
        if progress.trials >= 12:
            stop.set()

    report = run_in(tmp_path, source, on_progress=watch, stop=stop)
    assert (report.resumed, report.job.state) == (True, JobState.STOPPED)
    latest = seen[-1]
    assert latest.best_s is not None
    assert latest.baseline_s is not None
    assert latest.best_s < 0.8 * latest.baseline_s
    best_s = {(r.candidate.task_key, r.measurement.latency_s) for r in records_in(tmp_path, Mode.RACE)}
    for state in (one for one in report.job.tasks if one.tunable):
        assert state.best_s == min(latency_s for key, latency_s in best_s if key == state.task_key and latency_s)
    assert all(prospect.high_s <= latest.best_s for prospect in report.job.outlook)


def test_a_stop_does_not_wait_for_a_kernel_that_never_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop, call = threading.Event(), Runtime.call

    async def begun(self: Runtime, worker: str, method: str, *args: Any, **more: Any) -> Any:
        if method == "race":
            stop.set()
        return await call(self, worker, method, *args, **more)

    monkeypatch.setattr(Runtime, "call", begun)
    began = time.monotonic()
    report = run_in(tmp_path, "fake:stuck?tasks=1&baseline_fault=hang", stop=stop)
    assert report.job.state is JobState.STOPPED
    assert time.monotonic() - began < FIRST_RACE_DEADLINE_S


def test_a_latency_target_is_found_met_after_a_resume(tmp_path: Path) -> None:
    source = "fake:awaited?tasks=1&build_s=0.01&noise=0"
    before_s = stopped_in("search", tmp_path, source).before_s
    assert before_s
    target_s = 0.5 * before_s
    report = tune(replace(request_in(tmp_path, source, "120trials"), latency_target_s=target_s))
    assert report.resumed
    assert report.after_s is not None
    assert report.after_s <= target_s
    assert report.job.spend.trials < 120, "it ended when the target was met"


def test_what_had_finals_is_not_said_to_have_had_none(tmp_path: Path) -> None:
    first = run_in(tmp_path, SOURCE + "&build_s=0.01", "16trials")
    stop = threading.Event()

    def watch(progress: Progress) -> None:
        if progress.trials >= 20:
            stop.set()

    again = run_in(tmp_path, SOURCE + "&build_s=0.01", "64trials", on_progress=watch, stop=stop)
    assert again.job.state is JobState.STOPPED
    assert again.after_s == first.after_s, "the finals of before count"
    assert "were not timed again" not in again.job.message


def test_a_stop_before_the_start_measures_nothing(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    report = run_in(tmp_path, SOURCE, stop=stop)
    assert (report.job.state, records_in(tmp_path)) == (JobState.STOPPED, [])


@pytest.mark.parametrize("change", [{"target": "fake-fast"}, {"threads": 2}])
def test_other_targets_and_threads_are_never_cross_served(tmp_path: Path, change: dict[str, str | int]) -> None:
    if change.get("threads", 1) == 2 and len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    here = run_in(tmp_path, SOURCE, "24trials")
    there = run_in(tmp_path, SOURCE, "24trials", **change)  # type: ignore[arg-type]
    assert not {task.key for task in here.tasks} & {task.key for task in there.tasks}
    assert {task.workload.key for task in here.tasks} == {task.workload.key for task in there.tasks}
    assert not there.resumed
    # Baselines anew, nothing of the other target's history counted or served.
    assert there.job.spend.trials == 24
    served = query(request_in(tmp_path, SOURCE, **change))  # type: ignore[arg-type]
    mine = {r.candidate.key for r in records_in(tmp_path) if r.candidate.task_key in {t.key for t in there.tasks}}
    assert {choice.candidate.key for choice in served.choices if choice.candidate} <= mine
    dialect = FakeDialect()
    for state in there.job.tasks:
        task = task_named(there, state.name)
        assert state.baseline_s == pytest.approx(dialect.latency_s(task, dialect.baseline(task)), rel=0.1)


def test_the_cost_model_is_trained_and_handed_to_the_proposers(tmp_path: Path) -> None:
    handed: list[str] = []

    def listen(runtime: Runtime) -> None:
        original = runtime.call

        async def call(worker: str, method: str, *args: object, **limits: float) -> object:
            result = await original(worker, method, *args, **limits)  # type: ignore[arg-type]
            if method == "learn" and (result or "proposer" in worker):
                handed.append(worker.partition("-")[0])
            return result

        runtime.call = call  # type: ignore[method-assign]

    with runtimes(listen):
        run_in(tmp_path, "fake:learn?tasks=2&build_s=0.02", "40trials")
        assert handed == [], "48 rows are needed"
        run_in(tmp_path, "fake:learn?tasks=2&build_s=0.02", "150trials")
    assert handed.count("trainer") >= 1
    assert handed.index("trainer") < handed.index("proposer")


def test_a_heartbeat_that_a_busy_store_refuses_is_not_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beats: list[str] = []

    def refuse_the_first(self: Store, job_id: str) -> bool:
        beats.append(job_id)
        if len(beats) == 1:
            raise StoreError("the database is locked")
        return heartbeat(self, job_id)

    heartbeat = Store.heartbeat
    monkeypatch.setattr(Store, "heartbeat", refuse_the_first)
    monkeypatch.setattr("tunery.service.job.HEARTBEAT_S", 0.02)
    report = run_in(tmp_path, SOURCE, f"{TRIALS}trials")
    assert report.job.state is JobState.DONE
    assert len(beats) > 1


def test_tasks_that_were_not_reached_are_counted(tmp_path: Path) -> None:
    few = run_in(tmp_path / "few", "fake:many?tasks=6&space=8x8x2", "4trials")
    reached = sum(state.measured > 0 for state in few.job.tasks)
    assert 0 < reached < 6
    assert few.job.message.startswith(f"{6 - reached} of 6 tasks were not reached")
    assert run_in(tmp_path / "all", "fake:many?tasks=2&space=2x2x1", "30trials").job.message == ""


def test_batches_that_are_lost_are_told_of_at_once_and_at_the_end(tmp_path: Path) -> None:
    seen: list[Progress] = []
    report = run_in(tmp_path, "fake:lost?tasks=2&fault_tasks=0&fail=1.0", "32trials", on_progress=seen.append)
    failed = report.job.tasks[0].outcomes["run-failed"]
    first = next(progress for progress in seen if progress.lost)
    assert first.trials < 32
    assert 0 < failed <= 32
    with open_store(report.store) as store:
        said = store.job(report.job.job_id).message
    for text in (first.lost, said):
        assert "run-failed: " in text, "with its reason"
    assert f"{failed} run-failed" in said
    assert said in tune_text(report, request_in(tmp_path, "fake:lost"))
    assert not run_in(tmp_path / "some", "fake:some?tasks=2&fail=0.3", "32trials").job.message


def test_every_task_has_a_first_look_before_any_has_a_long_one(tmp_path: Path) -> None:
    stop = threading.Event()

    def stop_after_the_first_looks(progress: Progress) -> None:
        if progress.trials >= 32:
            stop.set()

    run_in(tmp_path, "fake:look?tasks=6", "600trials", on_progress=stop_after_the_first_looks, stop=stop)
    looks = [record.candidate.task_key for record in records_in(tmp_path, Mode.RACE)
             if record.candidate.origin is Origin.SEARCH]  # fmt: skip
    assert len(set(looks[:32])) == 6


def test_what_finals_leave_of_a_budget_goes_into_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunery.tuning.search.finals.predicted_s", lambda *_: 2.4)  # they take nothing
    monkeypatch.setattr(RunBudget, "elapsed_s", lambda self: 0.05 * self.trials)  # a clock that no other load moves
    phases: list[str] = []

    def note(progress: Progress) -> None:
        if progress.phase != (phases[-1] if phases else ""):
            phases.append(progress.phase)

    run_in(tmp_path, "fake:rest?tasks=2&space=64x64x64", "8s", on_progress=note)
    assert phases[phases.index("finals") :][:3] == ["finals", "search", "finals"]


def test_baselines_that_would_take_the_budget_are_timed_with_the_finals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunery.tuning.job._BASELINES", 1e-9)
    report = run_in(tmp_path, "fake:slow?tasks=2", "16trials,60s")
    assert all(state.baseline_s and state.best_s and state.best_s <= state.baseline_s for state in report.job.tasks)
    raced = [r for r in records_in(tmp_path) if r.measurement.mode is Mode.RACE and r.measurement.outcome is Outcome.OK]
    first = {}
    for record in raced:
        first.setdefault(record.candidate.task_key, record.candidate.origin)
    assert set(first.values()) == {Origin.SEARCH}, "the search did not wait for them"
    assert report.before_s


def test_a_task_without_a_finalist_still_has_its_default_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunery.tuning.job._BASELINES", 1e-9)
    report = run_in(tmp_path, "fake:faulty?tasks=2&fault_tasks=0&fail=1.0", "8trials,60s")
    assert all(state.baseline_s for state in report.job.tasks)
    assert report.before_s
    assert report.after_s
