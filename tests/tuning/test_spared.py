"""What is spared: candidates that are not built, tasks that are not tuned, and networks that are fast enough."""

import threading
from collections import Counter
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from job_tools import outcomes_of, raced, records_in, request_in, run_in, runtimes

from tunery.domain import Budget, Candidate, JobState, Measurement, Mode, Origin, Outcome, Record, Rung, Task
from tunery.domain.request import NO_TRIMMING, Request, Trimming
from tunery.runtime.runtime import Runtime
from tunery.service.session import query, tune
from tunery.store import open_store
from tunery.tuning.allocation.allocator import TaskProgress
from tunery.tuning.calls import Context
from tunery.tuning.job import TuningJob
from tunery.tuning.search import finals
from tunery.tuning.search.task_search import TaskSearch

pytestmark = [pytest.mark.jobs, pytest.mark.usefixtures("inline_workers")]

# The landscape is smooth and its model learns it: enough rounds for the filter to earn its trust.
SMOOTH = "fake:smooth?tasks=2&space=32x32x16&spread=50&noise=0.003"
TRIALS = 240


def tried(directory: Path) -> list[Record]:
    return [
        r for r in records_in(directory, Mode.RACE)
        if r.candidate.origin is not Origin.BASELINE and r.measurement.outcome is not Outcome.FILTERED
    ]  # fmt: skip


def counted_builds(into: Counter[str]) -> object:
    def patch(runtime: Runtime) -> None:
        original = runtime.call

        async def call(worker: str, method: str, *args: object, **limits: float) -> object:
            if method == "build":
                candidate = args[1]
                assert isinstance(candidate, Candidate)
                into[candidate.key] += 1
            return await original(worker, method, *args, **limits)  # type: ignore[arg-type]

        runtime.call = call  # type: ignore[method-assign]

    return patch


def test_the_filter_drops_before_the_build_once_it_is_trusted_and_knows_its_errors(tmp_path: Path) -> None:
    builds: Counter[str] = Counter()
    with runtimes(counted_builds(builds)):  # type: ignore[arg-type]
        one, trials = SMOOTH.replace("tasks=2", "tasks=1") + "&propose_s=0.2", 2 * TRIALS
        request = replace(request_in(tmp_path, one, f"{trials}trials"), trimming=Trimming(audit_share=0.3))
        report = tune(request)
    assert report.job.spend.trials == trials == len(tried(tmp_path)), "what is dropped is no trial"
    filtered = [r for r in records_in(tmp_path) if r.measurement.outcome is Outcome.FILTERED]
    assert len(filtered) == outcomes_of(report)["filtered"] > 0
    assert not {r.candidate.key for r in filtered} & builds.keys(), "never built"
    assert all(r.measurement.detail and not r.measurement.samples_s for r in filtered)
    audited = sum(task.audited for task in report.job.tasks)
    assert 0 < audited < trials / 2
    assert sum(task.false_drops for task in report.job.tasks) <= 1, "one task has one winner"

    # Another job does not inherit the verdict of this one's model, and repeats nothing that was measured.
    again: Counter[str] = Counter()
    before = raced(tmp_path)
    with runtimes(counted_builds(again)):  # type: ignore[arg-type]
        second = tune(replace(request, seed=7))
    measured = {record.candidate.key for record in tried(tmp_path)}
    in_finals = {r.candidate.key for r in records_in(tmp_path, Mode.FINAL) if r.job_id == second.job.job_id}
    baselines = builds.keys() - {key for _, key in before}
    assert {key for key in again if key in builds} <= in_finals | baselines
    assert len(measured) == len(tried(tmp_path)), "no candidate was measured twice"


def test_without_trimming_nothing_is_dropped_and_all_tasks_get_the_same(tmp_path: Path) -> None:
    request = replace(request_in(tmp_path, SMOOTH, f"{TRIALS}trials"), trimming=NO_TRIMMING)
    report = tune(request)
    assert outcomes_of(report)["filtered"] == 0
    each = Counter(record.candidate.task_key for record in tried(tmp_path))
    assert max(each.values()) - min(each.values()) <= 32, "one batch at most"
    assert Counter(r.measurement.outcome for r in tried(tmp_path))[Outcome.ABANDONED] == 0
    assert min(len(r.measurement.samples_s) for r in tried(tmp_path)) >= 3
    assert {choice.rung for choice in query(request).choices} == {Rung.EXACT}


def test_what_another_job_measured_meanwhile_is_served_not_built(tmp_path: Path) -> None:
    first = run_in(tmp_path / "a", "fake:shared?tasks=1&space=4x4x2", "30trials")
    known = [r for r in records_in(tmp_path / "a", Mode.RACE) if r.candidate.origin is Origin.SEARCH]
    builds: Counter[str] = Counter()
    planted: list[str] = []

    def plant(runtime: Runtime) -> None:
        counted_builds(builds)(runtime)  # type: ignore[operator]
        original = runtime.call

        async def call(worker: str, method: str, *args: object, **limits: float) -> object:
            if method == "propose" and not planted:
                # Another process writes while this one runs.
                with open_store(str(tmp_path / "b" / "store.db")) as store:
                    job = store.create_job({"model": "other"})
                    for record in known[:20]:
                        store.add_record(first.tasks[0], replace(record, job_id=job.job_id))
                        planted.append(record.candidate.key)
            return await original(worker, method, *args, **limits)  # type: ignore[arg-type]

        runtime.call = call  # type: ignore[method-assign]

    (tmp_path / "b").mkdir()
    with runtimes(plant):
        report = run_in(tmp_path / "b", "fake:shared?tasks=1&space=4x4x2", "30trials")
    assert planted
    assert report.job.spend.trials == 32 - 20, "what is left of the space"
    best = report.job.tasks[0].best_candidate
    assert {key for key in planted if key in builds} <= {best, *finalist_keys(tmp_path / "b")}


def finalist_keys(directory: Path) -> set[str]:
    return {r.candidate.key for r in records_in(directory, Mode.FINAL)}


def test_a_target_that_is_met_by_what_is_stored_tunes_nothing(tmp_path: Path) -> None:
    source = "fake:fast?tasks=2&frozen=1"
    first = run_in(tmp_path, source, "30trials")
    assert first.after_s is not None
    before = len(records_in(tmp_path))
    request = replace(request_in(tmp_path, source, "500trials"), latency_target_s=first.after_s * 1.01)
    report = tune(request)
    assert (report.job.state, report.job.spend.trials) == (JobState.DONE, 0)
    assert "nothing was tuned" in report.job.message
    assert len(records_in(tmp_path)) == before
    assert report.after_s == pytest.approx(first.after_s)


def test_tuning_ends_as_soon_as_the_target_is_met(tmp_path: Path) -> None:
    loose = run_in(tmp_path / "loose", SMOOTH, f"{TRIALS}trials")
    assert loose.after_s is not None
    assert loose.before_s is not None
    target_s = (loose.after_s * loose.before_s) ** 0.5
    request = replace(request_in(tmp_path, SMOOTH, f"{TRIALS}trials"), latency_target_s=target_s)
    report = tune(request)
    assert report.after_s is not None
    assert report.after_s <= target_s
    assert 0 < report.job.spend.trials < TRIALS
    assert "met" in report.job.message


def other_finals(monkeypatch: pytest.MonkeyPatch, times: float = 1.4) -> Counter[str]:
    """Let all finals say so many times what races say, and count them by task."""
    ask, held = finals.time_in_turns, Counter[str]()

    async def other(context: Context, task: Task, *others: Any) -> list[Measurement]:
        held[task.key] += 1
        measured = await ask(context, task, *others)
        return [replace(one, samples_s=tuple(times * sample for sample in one.samples_s)) for one in measured]

    monkeypatch.setattr(finals, "time_in_turns", other)
    return held


def test_a_target_costs_few_finals_though_all_races_promise_more_than_finals_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = other_finals(monkeypatch)
    source = "fake:promising?tasks=3&space=64x64x16&spread=200&noise=0.002"
    (tmp_path / "loose").mkdir()
    loose = run_in(tmp_path / "loose", source, "240trials")
    assert loose.after_s is not None
    held.clear()
    report = tune(replace(request_in(tmp_path, source, "240trials"), latency_target_s=1.05 * loose.after_s))
    assert report.after_s is not None
    assert report.after_s <= 1.05 * loose.after_s or report.job.spend.trials == 240
    assert report.job.spend.trials > 24, "the races' promise was met before"
    assert sum(held.values()) <= 3 * len(held), f"finals after nearly every batch: {held}"


def test_finals_are_held_where_the_races_are_near_the_target_for_they_may_hold_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "fake:nearly?tasks=2&space=32x32x16&spread=50&noise=0.003"
    (tmp_path / "loose").mkdir()
    loose = run_in(tmp_path / "loose", source, "240trials")
    assert loose.after_s is not None
    other_finals(monkeypatch, 0.6)
    monkeypatch.setattr("tunery.tuning.job._NEAR", 2.0)
    for looks in (100.0, 0.0):  # a search of the fake is over before finals are worth a fifth of it
        monkeypatch.setattr("tunery.tuning.reporting._LOOKS", looks)
        (tmp_path / str(looks)).mkdir()
        asked = request_in(tmp_path / str(looks), source, "320trials")
        report = tune(replace(asked, latency_target_s=0.7 * loose.after_s))
        assert "not met" not in report.job.message
        assert (report.job.spend.trials < 320) == (looks > 0), "only finals that cost little beside the search"


def test_what_is_on_its_way_when_the_target_is_met_ends(tmp_path: Path) -> None:
    builds: Counter[str] = Counter()
    with runtimes(counted_builds(builds)):  # type: ignore[arg-type]
        request = request_in(tmp_path, "fake:draining?tasks=3&build_s=0.05&space=32x32x16", "240trials")
        report = tune(replace(request, latency_target_s=1.0))
    assert "not met" not in report.job.message
    measured = {record.candidate.key for record in records_in(tmp_path)}
    reference = {key for key, count in builds.items() if key not in measured}
    assert len(reference) <= len(report.tasks), "all that was built was raced, but for the unscheduled programs"


def test_what_finals_held_corrects_races_also_after_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other_finals(monkeypatch)
    source, stop = "fake:promising?tasks=1&space=64x64x16&spread=200&noise=0.002", threading.Event()
    run_in(tmp_path, source, "24trials")
    run_in(tmp_path, source, "200trials", on_progress=lambda p: p.trials >= 150 and stop.set(), stop=stop)
    races = [record.measurement.latency_s for record in records_in(tmp_path, Mode.RACE)]
    said: list[float] = []
    run_in(tmp_path, source, "200trials", on_progress=lambda p: p.phase == "search" and said.append(p.best_s or 0.0))
    assert said[0] == pytest.approx(1.4 * min(filter(None, races)), rel=0.05)


def test_a_target_that_the_untuned_program_meets_is_verified_all_the_same(tmp_path: Path) -> None:
    report = tune(replace(request_in(tmp_path, "fake:easy?tasks=2", "40trials"), latency_target_s=1.0))
    assert "met" in report.job.message
    assert "not met" not in report.job.message
    assert 0 < report.job.spend.trials < 40


def test_a_target_is_met_though_of_one_task_all_are_slower_than_the_default(tmp_path: Path) -> None:
    source = "fake:default?tasks=2&fault_tasks=1&baseline=0.5&space=16x16x8"
    report = tune(replace(request_in(tmp_path, source, "80trials"), latency_target_s=1.0))
    assert report.job.spend.trials < 80, "one batch of each is enough"
    assert "not met" not in report.job.message
    assert {state.best_candidate is None for state in report.job.tasks} == {True}, (
        "all were given up against the default"
    )


def test_a_target_out_of_reach_says_so(tmp_path: Path) -> None:
    report = tune(replace(request_in(tmp_path, "fake:slow?tasks=1", "20trials"), latency_target_s=1e-6))
    assert report.job.spend.trials == 20
    assert "not met" in report.job.message


def test_a_preempted_task_does_not_make_the_total_look_better(tmp_path: Path) -> None:
    # Task 0 is most of the network and still falls; the others are small and soon have nothing to give.
    report = run_in(tmp_path, "fake:uneven?tasks=3&weights=400,1,1&space=64x64x64&spread=500", "120trials")
    assert any(task.preempted for task in report.job.tasks)
    total = sum(task.weight * task.best_s for task in report.job.tasks if task.best_s is not None)
    assert report.after_s == pytest.approx(total)
    assert all(task.best_s is not None for task in report.job.tasks)
    each = Counter(record.candidate.task_key for record in tried(tmp_path))
    heavy = next(task for task in report.job.tasks if task.weight == 400)
    assert each[heavy.task_key] > 120 / 3
    assert min(each.values()) > 0


def test_what_a_dialect_rejects_is_not_built(tmp_path: Path) -> None:
    builds: Counter[str] = Counter()
    with runtimes(counted_builds(builds)):  # type: ignore[arg-type]
        report = run_in(tmp_path, "fake:rejects?tasks=1&space=4x4x4&absurd=0.3", "64trials")
    rejected = [r for r in records_in(tmp_path) if r.measurement.outcome is Outcome.FILTERED]
    assert 5 < len(rejected) == outcomes_of(report)["filtered"]
    assert {record.measurement.detail for record in rejected} == {"its loops are scripted to be absurd"}
    assert not {record.candidate.key for record in rejected} & builds.keys()
    assert report.job.spend.trials == 64 - len(rejected)
    assert Measurement(Outcome.FILTERED).latency_s is None


def standing_at_start(monkeypatch: pytest.MonkeyPatch, request: Request) -> dict[str, TaskProgress]:
    """How a job's tasks stood before it did anything."""
    found: dict[str, TaskProgress] = {}
    baselines = TuningJob._measure_baselines

    async def look(self: TuningJob) -> None:
        found.update((one.task.key, deepcopy(one.state.progress)) for one in self.searches)
        await baselines(self)

    with monkeypatch.context() as patch:
        patch.setattr(TuningJob, "_measure_baselines", look)
        tune(request)
    return found


def test_what_was_tried_before_counts_without_baselines_and_what_was_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run_in(tmp_path, SMOOTH.replace("tasks=2", "tasks=3"), "1trials")
    again = replace(request_in(tmp_path, SMOOTH.replace("tasks=2", "tasks=3"), f"{TRIALS}trials"), seed=1)
    before = standing_at_start(monkeypatch, again)
    assert sorted(one.trials for one in before.values()) == [[], [], [1]], "a baseline is no trial"
    assert all(task.baseline_s for task in first.job.tasks)

    known = Counter(record.candidate.task_key for record in tried(tmp_path))
    dropped = [r for r in records_in(tmp_path) if r.measurement.outcome is Outcome.FILTERED]
    after = standing_at_start(monkeypatch, replace(again, seed=2, budget=Budget(trials=1)))
    assert dropped, "else this shows nothing"
    assert {key: sum(one.trials) for key, one in after.items()} == known


def test_what_finals_take_is_no_part_of_what_a_trial_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finals, left = TaskSearch.finals, list[float]()

    async def hold(self: TaskSearch, payer: Context) -> None:
        await finals(self, payer)
        left.append(self._cost_since(payer).held_core_s)

    monkeypatch.setattr(TaskSearch, "finals", hold)
    run_in(tmp_path, "fake:apart?tasks=2", "16trials")
    assert left == [0.0, 0.0]


def test_a_task_whose_baseline_is_known_is_built_only_when_it_gets_a_trial(tmp_path: Path) -> None:
    first, second = Counter[str](), Counter[str]()
    with runtimes(counted_builds(first)):  # type: ignore[arg-type]
        run_in(tmp_path, "fake:known?tasks=4", "16trials")
    with runtimes(counted_builds(second)):  # type: ignore[arg-type]
        again = tune(replace(request_in(tmp_path, "fake:known?tasks=4", "1trials"), seed=3))
    assert again.job.spend.trials == 1
    baselines = {key for key in first if key not in {record.candidate.key for record in tried(tmp_path)}}
    assert sum(second[key] for key in baselines) <= 2, "of one task, not of four"
