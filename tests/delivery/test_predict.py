import gzip
import itertools
import json
import sqlite3
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from job_tools import records_in, register_model, request_in, run_in

from tunery._errors import UsageError
from tunery.costmodels import BoostedModel, registry
from tunery.delivery import compile as compiling
from tunery.delivery import predict
from tunery.delivery.comparing.compare import Expected
from tunery.delivery.predict import heavy, looks, urgency, wanted
from tunery.delivery.query import Answer
from tunery.dialects import Suggestions
from tunery.domain import JobState, Mode, Origin, Outcome, Rung, Target, Task, TensorSpec, Workload
from tunery.domain.request import CompileOptions, FillPolicy, Request
from tunery.reports.text import refused_lines
from tunery.runtime.runtime import Runtime
from tunery.runtime.services import Builder, Prediction, ProposerHost
from tunery.service.session import Session, compile_model, extract, query
from tunery.store import open_store
from tunery.testing.fake_blobs import FakeBlobs
from tunery.testing.fake_dialect import FakeDialect

pytestmark = [pytest.mark.jobs, pytest.mark.usefixtures("inline_workers")]

SOURCE = "fake:unseen?tasks=3"


@pytest.fixture
def request_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Request:
    """A request for a machine with a model of its own, whatever it predicts."""
    monkeypatch.setenv(registry.VARIABLE, str(tmp_path / "models"))
    register_model()
    return request_in(tmp_path, SOURCE)


def test_a_network_nobody_measured_is_delivered_by_prediction(request_: Request, tmp_path: Path) -> None:
    answer = query(request_, FillPolicy())
    assert {choice.rung for choice in answer.choices} == {Rung.ZERO_SHOT}
    assert all(choice.candidate and choice.latency_s is None for choice in answer.choices)
    assert records_in(tmp_path) == [], "nothing was measured, so nothing is recorded"
    report, _ = compile_model(request_, tmp_path / "net", CompileOptions(predict=True))
    assert {rung for rung, _ in report.coverage.values()} == {"zero-shot"}
    assert all(key for _, key in report.coverage.values())


def test_records_come_before_predictions_and_need_no_model(
    request_: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_in(tmp_path, SOURCE, "30trials")
    assert {choice.rung for choice in query(request_, FillPolicy()).choices} == {Rung.EXACT}
    monkeypatch.setenv(registry.VARIABLE, str(tmp_path / "none"))
    assert {choice.rung for choice in query(request_, FillPolicy()).choices} == {Rung.EXACT}


def test_what_a_budget_did_not_reach_is_predicted_and_what_was_tried_is_not(request_: Request, tmp_path: Path) -> None:
    tuned = run_in(tmp_path, SOURCE, "1trials")
    reached = {task.workload_key for task in tuned.job.tasks if task.measured}
    assert len(reached) == 1
    said: list[str] = []
    report, _ = compile_model(request_, tmp_path / "net", CompileOptions(predict=True), said.append)
    assert Counter(rung for rung, _ in report.coverage.values()) == {"exact": 1, "zero-shot": 2}
    assert (report.untuned, report.measured) == (0, 0)
    assert [line.split()[0] for line in said] == ["reading", "predicting", "compiling"]
    assert len(query(request_).open) == 2
    report, _ = compile_model(request_, tmp_path / "net")
    assert {rung for rung, _ in report.coverage.values()} == {"exact"}, "the compiler's default was measured"
    assert report.untuned == 2
    report, _ = compile_model(request_, tmp_path / "net", CompileOptions(few_shot=3))
    assert (report.untuned, report.measured) == (0, 6)


def test_few_shots_are_measured_recorded_and_delivered_as_records(request_: Request, tmp_path: Path) -> None:
    answer = query(request_, FillPolicy(few_shot=4))
    tunable = {task.key for task in answer.tasks if task.tunable}
    chosen = {c.task_key: c for c in answer.choices}
    assert {chosen[key].rung for key in tunable} == {Rung.EXACT}
    for key in tunable:
        raced = [r.measurement.latency_s for r in records_in(tmp_path) if r.candidate.task_key == key]
        assert len(raced) == 4
        assert chosen[key].latency_s == min(s for s in raced if s)
    with open_store(str(tmp_path / "store.db")) as store:
        [job] = store.jobs()
        charges = store.ledger(job.job_id)
    assert (job.state, job.request["kind"]) == (JobState.DONE, "query")
    assert {record.job_id for record in records_in(tmp_path)} == {job.job_id}
    for stage in ("build", "measure"):
        counted = sum(charge.count for charge in charges if charge.stage == stage and charge.outcome)
        assert counted == len(records_in(tmp_path, Mode.RACE)), stage


def test_few_shots_with_large_weights_are_decided_with_weights_from_memory(
    request_: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunery.delivery.predict._HEAVY_BYTES", 0)
    answer = query(request_, FillPolicy(few_shot=4))
    finals = {r.candidate.key: r.measurement for r in records_in(tmp_path, Mode.FINAL)}
    assert finals
    assert {measurement.outcome for measurement in finals.values()} == {Outcome.OK}
    chosen = [choice for choice in answer.choices if choice.candidate and choice.candidate.key in finals]
    assert chosen
    for choice in chosen:
        assert choice.candidate
        held = finals[choice.candidate.key]
        assert choice.latency_s == held.latency_s
        assert held.verification
        assert held.verification.deliverable


def test_finals_of_few_shots_do_not_outrank_a_default_that_may_win(
    request_: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunery.delivery.predict._HEAVY_BYTES", 0)
    monkeypatch.setattr("tunery.delivery.predict._FAR", 1e9)
    run_in(tmp_path, SOURCE, "1trials")  # the defaults of all three tasks are known now
    finals = len(records_in(tmp_path, Mode.FINAL))
    query(request_, FillPolicy(few_shot=4))
    assert len(records_in(tmp_path, Mode.RACE)) >= 8, "two tasks were open"
    assert len(records_in(tmp_path, Mode.FINAL)) == finals


def test_weights_are_large_from_a_megabyte_on() -> None:
    def task(*channels: int) -> Task:
        specs = tuple(TensorSpec("x", (size, size), "float32") for size in (*channels, 4))
        return Task(Workload("w", "w", "matmul", "", specs, 1, 50.0), Target("fake", {}, 1), 1, tunable=True)

    assert heavy(task(8, 512))
    assert not heavy(task(2048, 511))
    assert not heavy(task(2048))


def test_where_measurements_follow_more_is_looked_at() -> None:
    task = Task(Workload("w", "w", "conv2d", "", (), 0, 50.0), Target("fake", {}, 1), 2, tunable=True)
    assert [looks(task, whole, FillPolicy()) for whole in (100.0, 2000.0, 1e6)] == [32, 16, 4]
    assert [looks(task, whole, FillPolicy(few_shot=4)) for whole in (100.0, 2000.0, 1e6)] == [64, 32, 8]
    assert looks(task, 100.0, FillPolicy(few_shot=64)) == 128
    assert looks(replace(task, tunable=False), 100.0, FillPolicy(few_shot=4)) == 1


def test_without_time_to_measure_predictions_are_delivered(request_: Request, tmp_path: Path) -> None:
    answer = query(request_, FillPolicy(few_shot=4, seconds=0.0))
    assert {choice.rung for choice in answer.choices} == {Rung.ZERO_SHOT}
    assert records_in(tmp_path) == []


def test_where_time_has_ended_nothing_more_is_predicted(request_: Request) -> None:
    answer = query(request_, FillPolicy(until=0.0))
    assert {choice.rung for choice in answer.choices} == {Rung.DEFAULT}
    assert len(answer.refused) == 3
    assert all("budget of time ended" in why for why in answer.refused.values())


def test_where_time_ends_between_predictions_only_the_others_are_left_out(
    request_: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = itertools.count()  # at the clock: once before all predictions, then before each
    monkeypatch.setattr(predict, "time", SimpleNamespace(monotonic=lambda: 0.0 if next(looks) < 3 else 100.0))
    answer = query(request_, FillPolicy(until=60.0))
    assert sorted(choice.rung for choice in answer.choices) == [Rung.DEFAULT, Rung.ZERO_SHOT, Rung.ZERO_SHOT]
    assert [*answer.refused.values()] == [predict.LATE]


@pytest.mark.usefixtures("worker_processes")  # one of the faults ends the process
def test_nothing_unverified_is_delivered(request_: Request) -> None:
    with Session(request_.store) as session:
        for fault in ("one_off", "all_nan", "constant", "partial", "infinite", "segfault", "refuse", "fail"):
            asked = replace(request_, model=f"fake:bad?tasks=2&fault_tasks=0&{fault}=1.0")
            expect_nothing_unverified(session.query(asked, FillPolicy()))


def aged(directory: Path) -> None:
    """Make all records of a store those of the time before verifications had a version, and three inputs."""
    with sqlite3.connect(directory / "store.db") as connection:
        for number, document in connection.execute("select id, document from records").fetchall():
            data = json.loads(document)
            if verification := data["measurement"]["verification"]:
                del verification["version"]
                verification["inputs"] = min(verification["inputs"], 3)
            connection.execute("update records set document = ? where id = ?", (json.dumps(data), number))


def test_a_record_of_before_the_special_inputs_is_verified_once_again(request_: Request, tmp_path: Path) -> None:
    """One task's kernels are wrong on infinities, which nobody knew then."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tunery.measuring.inputs._SPECIAL", {"sparse": (0.0, -0.0)})
        run_in(tmp_path, "fake:old?tasks=2&ops=matmul&fault_tasks=1&infinite=1.0", "24trials")
    asked = replace(request_, model="fake:old?tasks=2&ops=matmul&fault_tasks=1&infinite=1.0")
    assert [one.rung for one in query(asked).choices] == [Rung.EXACT] * 2
    aged(tmp_path)
    before = len(records_in(tmp_path))
    report, _ = compile_model(asked, tmp_path / "net", CompileOptions())
    wrong = [one for one in records_in(tmp_path) if one.measurement.outcome is Outcome.WRONG_RESULT]
    assert {one.candidate.task_key for one in wrong} == {query(asked).choices[1].task_key}
    right, refused = query(asked).choices
    assert right.rung is Rung.EXACT
    assert refused.candidate is None or refused.candidate.origin is Origin.BASELINE, "the default alone is right"
    assert [key for _, key in report.coverage.values()] == [
        one.candidate and one.candidate.key for one in (right, refused)
    ]
    after = len(records_in(tmp_path))
    compile_model(asked, tmp_path / "net", CompileOptions())
    assert before < after == len(records_in(tmp_path)), "nothing is verified twice"


def test_designs_that_the_special_inputs_refuse_are_counted_in_one_line(request_: Request, tmp_path: Path) -> None:
    source = "fake:bad?tasks=3&ops=matmul&fault_tasks=0,2&infinite=1.0"
    report, _ = compile_model(replace(request_, model=source), tmp_path / "net", CompileOptions(predict=True))
    assert Counter(rung for rung, _ in report.coverage.values()) == {"zero-shot": 1, "compiler-default": 2}
    [line] = refused_lines(report)
    assert "2 of 3 operators" in line
    assert all(why in line for why in report.refused.values())


def expect_nothing_unverified(answer: Answer) -> None:
    dialect = FakeDialect()
    by_key = {task.key: task for task in answer.tasks}
    rungs = [choice.rung for choice in answer.choices]
    assert sorted(rungs) == [Rung.DEFAULT, Rung.ZERO_SHOT]
    for choice in answer.choices:
        if choice.candidate:
            assert dialect.fault(by_key[choice.task_key], choice.candidate) is None
    [(refused, why)] = answer.refused.items()
    assert refused == next(choice.task_key for choice in answer.choices if choice.rung is Rung.DEFAULT)
    assert why


def test_what_one_task_teaches_reaches_the_workers_of_those_after_it(
    request_: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[list[str]] = []

    def suggest(
        self: FakeDialect,
        task: Task,
        n: int,
        model: str,
        seed: int,
        transfer_states: Sequence[str] = (),
        **_: bool,
    ) -> Suggestions:
        heard.append(list(transfer_states))
        return Suggestions(tuple(self.open(task, (), model, seed).propose(n)), f"of {task.workload.name}")

    monkeypatch.setattr(FakeDialect, "suggest", suggest)
    tasks = extract(request_).tasks
    blobs = FakeBlobs()
    model = blobs.put((registry.starting("fake", "fake") or ("", ""))[1].encode())
    transfer_states: list[str] = []
    for task in tasks:
        pick = Builder("fake", blobs).pick(task, 4, 3, model, 0, list(transfer_states))
        assert pick.candidate is not None
        assert pick.refused == ""
        transfer_states.append(pick.transfer_state)
    assert heard == [transfer_states[:count] for count in range(len(tasks))]


def test_builders_read_the_model_while_tasks_are_extracted_and_only_then(
    request_: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    call = Runtime.call

    async def noted(self: Runtime, worker: str, method: str, *args: object, **more: object) -> object:
        calls.append(method)
        return await call(self, worker, method, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Runtime, "call", noted)
    compile_model(request_, tmp_path / "cold", CompileOptions(predict=True))
    assert calls.count("read") in {1, 2}, "once for each builder"
    assert max(i for i, each in enumerate(calls) if each == "read") < calls.index("pick")
    run_in(tmp_path, SOURCE, "30trials")
    calls.clear()
    compile_model(request_, tmp_path / "known", CompileOptions(predict=True))
    assert not {"read", "pick"} & set(calls), "all is known"


def test_half_of_them_wrong_costs_only_those(request_: Request) -> None:
    answer = query(replace(request_, model="fake:half?tasks=3&one_off=0.4"), FillPolicy())
    dialect = FakeDialect()
    by_key = {task.key: task for task in answer.tasks}
    for choice in answer.choices:
        assert choice.candidate is None or dialect.fault(by_key[choice.task_key], choice.candidate) is None


def test_without_a_model_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(registry.VARIABLE, str(tmp_path / "none"))
    assert "train one with `tunery costmodel collect`" in query(request_in(tmp_path, SOURCE), FillPolicy()).nothing
    with pytest.raises(UsageError, match="train one with `tunery costmodel collect`"):
        query(request_in(tmp_path, SOURCE), FillPolicy(few_shot=4))
    report, _ = compile_model(request_in(tmp_path, SOURCE), tmp_path / "net", CompileOptions(predict=True))
    assert {rung for rung, _ in report.coverage.values()} == {"compiler-default"}
    assert len(report.refused) == 3, "each task says why"


def test_a_model_for_another_compiler_predicts_nothing(request_: Request, tmp_path: Path) -> None:
    [card] = registry.versions("fake")
    document = json.loads(gzip.decompress(Path(card.path).read_bytes()))
    document["compiler"] = "fake 0.1"
    Path(card.path).write_bytes(gzip.compress(json.dumps(document).encode()))
    assert "there is no cost model for" in query(request_, FillPolicy()).nothing


@pytest.mark.parametrize("scores", [0.0, -1.0, np.nan, np.inf])
def test_scores_of_any_kind_still_give_candidates(
    scores: float, request_: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = next(t for t in extract(request_).tasks if t.tunable)
    found_model = registry.starting("fake", "fake")
    assert found_model is not None
    model = found_model[1]
    monkeypatch.setattr(BoostedModel, "predict", lambda _, rows: np.full(len(rows), scores))
    found = ProposerHost("fake").predict(task, 8, 3, model, 0)
    assert len(found.candidates) == 3
    assert np.isfinite(found.uncertainty).all()


def test_the_last_of_four_is_the_best_of_another_kind(request_: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    task = next(t for t in extract(request_).tasks if t.tunable)
    found_model = registry.starting("fake", "fake")
    assert found_model is not None
    proposed = FakeDialect().open(task, (), None, 0).propose(9)
    favourites, others = tuple(proposed[:6]), tuple(proposed[6:])

    def suggest(*_: object, several_fallbacks: bool) -> Suggestions:
        return Suggestions(favourites, fallbacks=others if several_fallbacks else others[:1])

    monkeypatch.setattr(FakeDialect, "suggest", suggest)
    monkeypatch.setattr(BoostedModel, "predict", lambda _, rows: np.arange(len(rows)) % 8.0)
    four = ProposerHost("fake").predict(task, 8, 4, found_model[1], 0).candidates
    assert four == (favourites[5], favourites[4], favourites[3], others[1])
    three = ProposerHost("fake").predict(task, 8, 3, found_model[1], 0).candidates
    assert three == (*four[:2], others[0]), "should the others fail"


def test_what_is_heavy_and_unsure_is_measured_first() -> None:
    def task(flop: float, weight: int = 1) -> Task:
        return Task(Workload("k", "n", "conv2d", "", (), 0, flop), Target("fake", {}, 1), weight)

    sure, unsure = Prediction((), (0.01,)), Prediction((), (0.5,))
    assert urgency(task(1e6), unsure) > urgency(task(1e6), sure)
    assert urgency(task(1e6, 4), sure) > urgency(task(1e6), sure)
    assert urgency(task(1e9), sure) > urgency(task(1e6), unsure)
    assert [wanted(share) for share in (1.0, 0.05, 0.01, 0.0)] == [32, 16, 8, 4]


@pytest.mark.parametrize("few_shot", [0, 2])
def test_what_the_result_is_compared_with_is_made_early_but_beside_no_measurement(
    few_shot: int, request_: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = []

    async def outputs(*_: object, **__: object) -> Expected:
        done.append("outputs")
        return Expected()

    async def chosen(*given: Any, **more: Any) -> Any:
        found = await choose(*given, **more)
        done.append("chosen")
        return found

    choose = compiling.Linker.choices
    monkeypatch.setattr(compiling, "start_onnxruntime", outputs)
    monkeypatch.setattr(compiling.Linker, "choices", chosen)
    compile_model(request_, tmp_path / "net", CompileOptions(few_shot=few_shot))
    assert done == (["chosen", "outputs"] if few_shot else ["outputs", "chosen"])
