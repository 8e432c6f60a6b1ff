import asyncio
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from job_tools import raced, records_in, register_model, request_in

from tunery._errors import UsageError, WorkError
from tunery.costmodels import BoostedModel, Dataset, FeatureRows, Layout, registry
from tunery.costmodels.training.replay import generator, load
from tunery.domain import Artifact, Budget, Candidate, JobState, Mode, Origin, Record, Target, Task, Workload
from tunery.domain.request import Progress, Trimming
from tunery.measuring.settings import FULL_LENGTH
from tunery.runtime.extraction import Extraction, extract_beside
from tunery.runtime.record_checks import import_records
from tunery.runtime.runtime import Runtime
from tunery.service.manager import JobManager
from tunery.service.session import collect
from tunery.store import open_store
from tunery.testing.fake_dialect import FakeDialect, fake_network
from tunery.tuning.collect import affordable, spread

pytestmark = [pytest.mark.jobs, pytest.mark.usefixtures("inline_workers")]

FIRST, SECOND = "fake:one?tasks=3&frozen=1", "fake:two?tasks=3&seed=7"


def named(kind: str, flop: float, name: str, tunable: bool = True) -> Task:
    return Task(Workload(name, name, kind, "", (), 0, flop), Target("fake", {}, 1), 1, tunable)


def test_kinds_and_networks_take_turns_and_sizes_are_mixed() -> None:
    networks = {
        "a": [named("conv2d", flop, f"a{flop}") for flop in (1, 2, 3, 4, 5)] + [named("pool", 1, "ap")],
        "b": [named("matmul", 1, "b1"), named("norm", 1, "b2"), named("conv2d", 9, "b3"), named("x", 1, "bx", False)],
    }
    chosen = [task.workload.key for task in spread(networks, 6)]
    assert {"b1", "b2", "b3", "ap"} <= set(chosen)
    assert len(chosen) == 6
    everything = [task.workload.key for task in spread(networks, 100)]
    assert Counter(everything) == Counter(["a1", "a2", "a3", "a4", "a5", "ap", "b1", "b2", "b3"])
    assert spread({"a": [named("conv2d", 1e12, "huge")]}, 5) == []
    assert spread({}, 5) == []


def test_a_task_of_two_networks_is_taken_once() -> None:
    assert len(spread({"a": [named("conv2d", 1, "t")], "b": [named("conv2d", 1, "t")]}, 5)) == 1


def test_candidates_that_build_slowly_are_capped() -> None:
    rng = np.random.default_rng(0)
    rows = rng.random((200, 4)).astype(np.float32)
    layout = Layout("made-up", 1, tuple("abcd"))
    dataset = Dataset(layout)
    for i, row in enumerate(rows):
        dataset.add("t", str(i), row, 1.0 + float(row[0]))
    model = BoostedModel.fit(dataset).with_build_cost(FeatureRows(rows, layout), np.where(rows[:, 1] > 0.5, 5.0, 0.05))
    candidates = [Candidate(str(i), "t", "") for i in range(16)]
    batch = np.zeros((16, 4), np.float32)
    batch[4:, 1] = 1.0
    kept = affordable(candidates, [row.tobytes() for row in batch], layout, model)
    assert [candidate.key for candidate in kept] == ["0", "1", "2", "3", "4", "5"]
    assert affordable(candidates, [row.tobytes() for row in batch], layout, None) == candidates


def test_a_collection_goes_on_where_it_was(tmp_path: Path) -> None:
    request = request_in(tmp_path, "collect", "20trials")
    report = collect(request, [FIRST, SECOND], tasks=5, per_task=12)
    assert 0 < report.candidates <= 20
    first = raced(tmp_path)
    assert first.total() == report.candidates
    rest = collect(replace(request, budget=Budget()), [FIRST, SECOND], tasks=5, per_task=12)
    assert rest.left == 0
    done = raced(tmp_path)
    assert set(done.values()) == {1}, "nothing is measured twice"
    assert sorted(Counter(task for task, _ in done).values()) == [12] * 5
    assert collect(request, [FIRST, SECOND], tasks=5, per_task=12).candidates == 0


def test_a_collection_is_a_job_that_pays_for_each_record(tmp_path: Path) -> None:
    source = "fake:paid?tasks=2&refuse=0.2"
    report = collect(request_in(tmp_path, source, "40trials"), [source], tasks=2, per_task=20)
    with open_store(str(tmp_path / "store.db")) as store:
        [job] = store.jobs()
        charges, records = store.ledger(job.job_id), store.records(job_id=job.job_id)
    assert (job.state, job.request["kind"]) == (JobState.DONE, "collect")
    assert len(records) == report.candidates == 40
    counts = Counter[str]()
    for charge in charges:
        counts[charge.outcome if charge.outcome == "build-failed" else charge.stage] += charge.count
    assert counts["measure"] + counts["build-failed"] == report.candidates
    assert counts["import"]
    assert sum(charge.core_s for charge in charges) == pytest.approx(job.spend.core_s, rel=0.1)


def test_a_manager_collects_beside_a_job_that_tunes(tmp_path: Path) -> None:
    async def main() -> None:
        with open_store(str(tmp_path / "store.db")) as store:
            async with JobManager(store) as manager:
                options = {"networks": [SECOND], "tasks": 5, "per_task": 4}
                asked = replace(request_in(tmp_path, FIRST, "100trials"), kind="collect", options=options)
                jobs = [await manager.submit(one) for one in (asked, request_in(tmp_path, FIRST, "8trials"))]
                assert [(await manager.wait(job)).state for job in jobs] == [JobState.DONE] * 2
                [answer] = [e.payload for e in store.events.after(job_id=jobs[0]) if e.kind == "answer"]
                assert answer["candidates"] == len(store.records(job_id=jobs[0])) > 0
                for wrong in ({"per_task": 0}, {"colours": 3}):
                    with pytest.raises(UsageError):
                        await manager.submit(replace(asked, options=wrong))

    asyncio.run(main())


def test_a_collection_can_be_of_some_kinds_of_operators_only(tmp_path: Path) -> None:
    everything = collect(request_in(tmp_path / "all", "collect"), [FIRST, SECOND], tasks=5, per_task=2)
    assert len(everything.kinds) > 1
    kind = min(everything.kinds)
    narrow = collect(request_in(tmp_path / "one", "collect"), [FIRST, SECOND], tasks=5, per_task=2, kinds=[kind])
    assert set(narrow.kinds) == {kind}
    with pytest.raises(UsageError, match=f"no tunable operator is a 'convolution'; these networks have .*{kind}"):
        collect(request_in(tmp_path / "none", "collect"), [FIRST], tasks=5, per_task=2, kinds=["convolution"])


def test_without_abandoning_every_candidate_is_sampled_to_the_end(tmp_path: Path) -> None:
    source = "fake:slow?tasks=1&space=16x16x4"
    assert "abandoned" in collect(request_in(tmp_path / "raced", "collect"), [source], tasks=1, per_task=24).outcomes
    whole = replace(request_in(tmp_path / "whole", "collect"), trimming=Trimming(abandon=False))
    assert set(collect(whole, [source], tasks=1, per_task=24).outcomes) == {"ok"}
    [settings] = {record.provenance.settings for record in records_in(tmp_path / "whole")}
    assert settings == FULL_LENGTH.key, "what was measured otherwise stands apart"


def test_reading_the_networks_is_not_part_of_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passed, clock = [0.0], time.monotonic
    seen: list[Progress] = []

    async def slow(*args: Any, **options: Any) -> Extraction:
        found = await extract_beside(*args, **options)
        passed.append(3600.0)
        return replace(found, wall_s=3600.0)

    monkeypatch.setattr("tunery.tuning.collect.extract_beside", slow)
    hands = SimpleNamespace(monotonic=lambda: clock() + sum(passed), time=time.time)
    monkeypatch.setattr("tunery.tuning.collect.time", hands)
    report = collect(request_in(tmp_path, "collect", "10min"), [FIRST], tasks=1, per_task=12, on_progress=seen.append)
    assert report.candidates == 12
    assert report.import_s == 3600.0 > report.wall_s
    began = next(progress for progress in seen if progress.phase == "collecting")
    assert began.current == "1 tasks, after 3600 s of reading the networks"
    assert began.remaining_s is not None
    assert 500 < began.remaining_s <= 600


def test_half_is_drawn_by_one_that_hears_no_latency_half_searched_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: dict[str, list[tuple[bool, int]]] = {}
    closed = []
    original = Runtime.call

    async def call(self: Runtime, worker: str, method: str, *args: Any, **limits: Any) -> Any:
        result = await original(self, worker, method, *args, **limits)
        if method == "propose":
            known = any(told.latency_s is not None for told in args[2])
            heard.setdefault(args[0], []).append((known, len(result.candidates)))
        elif method == "open":
            known = any(told.latency_s is not None for told in args[1])
            heard.setdefault(args[0].key, []).append((known, 0))
        elif method == "close":
            closed.append(args[0])
        return result

    monkeypatch.setattr(Runtime, "call", call)
    collect(request_in(tmp_path, "collect", "500trials"), [FIRST], tasks=3, per_task=96)
    assert len(heard) == 3
    for calls in heard.values():
        first = next(i for i, (known, _) in enumerate(calls) if known)
        assert sum(count for _, count in calls[:first]) == 48 == sum(count for _, count in calls[first:])
    assert sorted(closed) == sorted(heard)


@pytest.fixture
def _with_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(registry.VARIABLE, str(tmp_path / "models"))
    register_model()


@pytest.mark.usefixtures("_with_a_model")
@pytest.mark.parametrize("budget", ["500trials", "10min"])
def test_with_a_model_a_third_is_what_it_foresees(budget: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    foreseen: dict[str, set[str]] = {}
    asked: Counter[tuple[str, bool]] = Counter()
    original = Runtime.call

    async def call(self: Runtime, worker: str, method: str, *args: Any, **limits: Any) -> Any:
        result = await original(self, worker, method, *args, **limits)
        if method == "predict":
            foreseen[args[0].key] = {candidate.key for candidate in result.candidates}
        elif method == "open":
            knows[args[0].key] = args[2] is not None
        elif method == "propose":
            asked[args[0], knows[args[0]]] += len(result.candidates)
        return result

    knows: dict[str, bool] = {}
    monkeypatch.setattr(Runtime, "call", call)
    report = collect(request_in(tmp_path, "collect", budget), [FIRST], tasks=3, per_task=84)
    assert report.candidates == 3 * 84, "what was not foreseen is drawn or searched for"
    measured = raced(tmp_path)
    assert set(measured.values()) == {1}
    assert len(foreseen) == 3
    for task, keys in foreseen.items():
        assert all((task, key) in measured for key in keys)
        assert 24 < len(keys) <= 28, "a batch is no limit for what is looked at"
        assert asked[task, False] == (84 - len(keys) + 1) // 2
        assert asked[task, True] >= (84 - len(keys)) // 2


@pytest.mark.usefixtures("_with_a_model")
def test_a_task_that_was_cut_short_gets_the_rest_with_a_model_too(tmp_path: Path) -> None:
    request = request_in(tmp_path, "collect", "10trials")
    collect(request, [FIRST], tasks=1, per_task=30)
    rest = collect(replace(request, budget=Budget()), [FIRST], tasks=1, per_task=30)
    measured = raced(tmp_path)
    assert rest.left == 0
    assert len(measured) == 30
    assert set(measured.values()) == {1}


@pytest.mark.usefixtures("_with_a_model")
def test_what_the_dialect_rejects_is_not_foreseen(tmp_path: Path) -> None:
    source = "fake:absurd?tasks=1&space=4x4x4&absurd=0.4"
    collect(request_in(tmp_path, "collect", "100trials"), [source], tasks=1, per_task=30)
    dialect = FakeDialect()
    [task] = dialect.extract(fake_network(source), dialect.resolve_target("native", 1))
    records = [record for record in records_in(tmp_path) if record.candidate.origin is Origin.SEARCH]
    assert records
    assert not any(dialect.reject(task, record.candidate) for record in records)


def test_what_is_held_out_is_not_measured(tmp_path: Path) -> None:
    request = request_in(tmp_path, "collect", "200trials")
    collect(request, [FIRST, SECOND], tasks=9, per_task=10, hold_out=[SECOND])
    table = load(request.store, "fake")
    assert {name for group in table for name in group.networks} == {"one"}
    with pytest.raises(UsageError, match="held out"):
        collect(request, [FIRST], tasks=9, per_task=10, hold_out=[FIRST])


@pytest.mark.usefixtures("worker_processes")  # one of the faults ends the process
def test_faults_cost_one_candidate_each_and_teach_what_they_can(tmp_path: Path) -> None:
    source = "fake:faulty?tasks=1&refuse=0.2&fail=0.2&segfault=0.1&constant=0.2"
    report = collect(request_in(tmp_path, "collect", "60trials"), [source], tasks=1, per_task=40)
    assert report.candidates == 40
    assert {"build-failed", "run-failed", "crashed", "wrong-result"} <= set(report.outcomes)
    [group] = load(str(tmp_path / "store.db"), "fake").groups
    assert np.isinf(group.latencies).sum() == report.outcomes["run-failed"] + report.outcomes["wrong-result"]
    assert len(group.keys) == 40 - report.outcomes["build-failed"] - report.outcomes["crashed"]


def test_what_the_dialect_rejects_is_not_collected(tmp_path: Path) -> None:
    source = "fake:absurd?tasks=1&space=4x4x4&absurd=0.4"
    report = collect(request_in(tmp_path, "collect", "100trials"), [source], tasks=1, per_task=64)
    dialect = FakeDialect()
    [task] = dialect.extract(fake_network(source), dialect.resolve_target("native", 1))
    assert 20 < report.candidates == len(raced(tmp_path)) < 60
    assert not any(dialect.reject(task, record.candidate) for record in records_in(tmp_path, Mode.RACE))


def test_a_network_that_cannot_be_had_is_named(tmp_path: Path) -> None:
    request = request_in(tmp_path, "collect", "30trials")
    report = collect(request, [FIRST, "fake:odd?unsupported=1"], tasks=3, per_task=10)
    assert "Scripted" in report.failed["fake:odd?unsupported=1"]
    assert report.candidates == 30


def test_where_no_network_can_be_had_it_says_why(tmp_path: Path) -> None:
    request = request_in(tmp_path, "collect", "30trials")
    wrong = [f"fake:odd{number}?unsupported=1" for number in range(5)]
    with pytest.raises(UsageError, match=r"fake:odd0\?unsupported=1: .*Scripted.*; fake:odd1") as told:
        collect(request, wrong, tasks=3, per_task=10)
    assert str(told.value).endswith("; and 2 more")
    with pytest.raises(UsageError, match=r"fake:odd0\?unsupported=1: .*Scripted"):
        collect(request, [wrong[0], "fake:frozen?tasks=0&frozen=2"], tasks=3, per_task=10)


def test_tasks_of_one_name_that_cannot_be_had_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(*_: object) -> Artifact:
        raise WorkError("the unscheduled program does not build: scripted")

    monkeypatch.setattr("tunery.tuning.collect.build_reference", refused)
    sources = ["fake:a?tasks=1", "fake:b?tasks=1&seed=7"]
    report = collect(request_in(tmp_path, "collect", "30trials"), sources, tasks=2, per_task=10)
    dialect = FakeDialect()
    target = dialect.resolve_target("native", 1)
    tasks = [task for source in sources for task in dialect.extract(fake_network(source), target)]
    assert len({task.workload.name for task in tasks}) == 1
    assert set(report.failed) == {f"{task.workload.name} {task.key[:8]}" for task in tasks}


def test_a_stop_is_clean(tmp_path: Path) -> None:
    stop = threading.Event()
    seen = []

    def watch(progress: object) -> None:
        seen.append(progress)
        if len(seen) > 3:
            stop.set()

    report = collect(
        request_in(tmp_path, "collect", "900trials"), [FIRST], tasks=3, per_task=200, on_progress=watch, stop=stop
    )
    assert report.stopped
    assert raced(tmp_path).total() == report.candidates < 600


def test_an_empty_store_and_foreign_records_are_named(tmp_path: Path) -> None:
    request = request_in(tmp_path, "collect", "40trials")
    with pytest.raises(UsageError, match="there is no store at"):
        load(request.store, "fake")
    open_store(request.store).close()
    with pytest.raises(UsageError, match="holds no measured candidate of fake; run `tunery costmodel collect`"):
        load(request.store, "fake")
    collect(request, [FIRST], tasks=1, per_task=12)
    with open_store(request.store) as store:
        for record in store.records():
            [task] = [t for t in store.tasks() if t.key == record.candidate.task_key]
            other = replace(record, provenance=replace(record.provenance, compiler="fake 0.9"))
            store.add_record(task, other)
    table = load(request.store, "fake")
    assert len(table) == 12
    assert table.left_out["made by another compiler (fake 0.9)"] == 12
    both = load(request.store, "fake", any_compiler=True)
    assert sorted(len(group.keys) for group in both) == [12, 12]
    with open_store(str(tmp_path / "foreign.db")) as store:
        for record in both_records(request.store, "fake 0.9"):
            store.add_record(task_of(request.store, record.candidate.task_key), record)
    with pytest.raises(UsageError, match="12 made by another compiler"):
        load(str(tmp_path / "foreign.db"), "fake")


def test_imported_records_still_know_their_networks(tmp_path: Path) -> None:
    request = request_in(tmp_path, "collect", "72trials")
    collect(request, [FIRST, SECOND], tasks=6, per_task=12)
    with open_store(request.store) as store:
        store.export_records(tmp_path / "records.jsonl")
    import_records(str(tmp_path / "copy.db"), tmp_path / "records.jsonl")
    here, there = load(request.store, "fake"), load(str(tmp_path / "copy.db"), "fake")
    assert {name for group in here for name in group.networks} == {"one", "two"}
    assert {g.workload_key: g.networks for g in there} == {g.workload_key: g.networks for g in here}


def both_records(url: str, compiler: str) -> list[Record]:
    with open_store(url) as store:
        return store.records(compiler=compiler)


def task_of(url: str, key: str) -> Task:
    with open_store(url) as store:
        return store.task(key)


def test_features_are_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = request_in(tmp_path, "collect", "24trials")
    collect(request, [FIRST], tasks=2, per_task=12)
    first = load(request.store, "fake")
    monkeypatch.setattr("tunery.costmodels.training.replay.Features._pool", lambda _: pytest.fail("computed again"))
    again = load(request.store, "fake")
    assert again.digest == first.digest
    assert all(np.array_equal(a.rows.values, b.rows.values) for a, b in zip(again.groups, first.groups, strict=True))


def test_lowering_does_not_change_what_a_candidate_is_worth() -> None:
    assert generator("apache-tvm 1 ffi 2 lowering 1 build 1") == generator("apache-tvm 1 ffi 2 lowering 22 build 1")
    assert generator("apache-tvm 1 ffi 2 build 1") != generator("apache-tvm 1 ffi 2 build 2")
