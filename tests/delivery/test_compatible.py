"""Two machines of one type of processor, of which the second has more cores: what the first measured serves it."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from job_tools import request_in, run_in
from onnx import TensorProto, helper, numpy_helper

from tunery.costmodels import registry
from tunery.domain import Budget, Mode, Origin, Rung
from tunery.domain.request import CompileOptions, FillPolicy, Request
from tunery.reports.data import compile_data, query_data, tune_data
from tunery.service.session import compile_model, query, tune
from tunery.store import open_store

pytestmark = [pytest.mark.jobs, pytest.mark.usefixtures("inline_workers")]

SOURCE = "fake:lent?tasks=2"
OTHER = "another fingerprint"


@pytest.fixture(scope="module", autouse=True)
def _no_cost_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(registry.VARIABLE, str(tmp_path_factory.mktemp("none")))
        yield


@pytest.fixture(scope="module")
def there(_no_cost_model: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a store is that was filled on another machine; there is no cost model."""
    directory = tmp_path_factory.mktemp("there")
    run_in(directory, SOURCE, "24trials")
    return directory


def moved(there: Path, here: Path, **facts: Any) -> Request:
    """Store what was measured `there` as measured on host-b with these `facts`; return a request for that store.

    Without `facts` its device has the fingerprint of this one.
    """
    here.mkdir()
    request = request_in(here, SOURCE)
    with open_store(request_in(there, SOURCE).store) as source, open_store(request.store) as store:
        [device] = source.devices.find()
        known: Mapping[str, Any] = {**device.facts, **facts}
        fingerprint = OTHER if facts else device.fingerprint
        store.devices.save(fingerprint, known, "host-b")
        for task in source.tasks():
            for record in source.records(task.key):
                moved_to = replace(record.provenance, device=fingerprint)
                job = "" if facts else record.job_id  # whose finals count
                store.add_record(task, replace(record, provenance=moved_to, job_id=job, host="host-b"))
    return request


def keys_of(answer: Any) -> set[str]:
    return {choice.candidate.key for choice in answer.choices}


def test_a_query_names_where_the_best_of_a_compatible_device_was_measured(there: Path, tmp_path: Path) -> None:
    best = keys_of(query(request_in(there, SOURCE)))
    request = moved(there, tmp_path / "two", cores=64)
    answer = query(request)
    assert {choice.rung for choice in answer.choices} == {Rung.COMPATIBLE}
    assert keys_of(answer) == best
    assert answer.forecast.latency_s is None, "how fast it is here is not known"
    for row in query_data(answer)["tasks"]:
        assert row["rung"] == "compatible-device"
        assert "64 cores" in row["source"]
        assert "host-b" in row["source"]
        assert row["latency_s"] > 0


def test_another_type_of_processor_offers_nothing(there: Path, tmp_path: Path) -> None:
    answer = query(moved(there, tmp_path / "two", name="Another Processor"))
    assert answer.nothing
    assert not any(choice.candidate or choice.source for choice in answer.choices)


def test_a_compiled_file_has_what_a_compatible_device_measured_once_it_is_verified_here(
    there: Path, tmp_path: Path
) -> None:
    request = moved(there, tmp_path / "two", cores=64)
    report, _ = compile_model(request, tmp_path / "net", CompileOptions(predict=True))
    assert {rung for rung, _ in report.coverage.values()} == {"compatible-device"}
    data = compile_data(report)
    assert set(data["sources"]) == set(report.coverage)
    assert all("host-b" in source for source in data["sources"].values())


def test_few_shot_times_what_a_compatible_device_offers_and_it_is_exact_from_then_on(
    there: Path, tmp_path: Path
) -> None:
    request = moved(there, tmp_path / "two", cores=64)
    best = keys_of(query(request))
    answer = query(request, FillPolicy(few_shot=1))
    assert {choice.rung for choice in answer.choices} == {Rung.EXACT}
    assert keys_of(answer) == best
    assert {choice.rung for choice in query(request).choices} == {Rung.EXACT}


def test_tuning_tries_what_a_compatible_device_offers_first(there: Path, tmp_path: Path) -> None:
    request = moved(there, tmp_path / "two", cores=64)
    best = keys_of(query(request))
    tune(replace(request, budget=request_in(there, SOURCE, "8trials").budget))
    with open_store(request.store) as store:
        for task in store.tasks():
            races = [
                record
                for record in store.records(task.key, origins=[Origin.SEARCH], modes=[Mode.RACE, Mode.SHARED])
                if record.provenance.device != OTHER
            ]
            assert best.intersection(record.candidate.key for record in races[:3])


def test_what_an_earlier_version_of_the_compiler_has_found_here_is_timed_again(there: Path, tmp_path: Path) -> None:
    best = keys_of(query(request_in(there, SOURCE)))
    (tmp_path / "two").mkdir()
    request = request_in(tmp_path / "two", SOURCE)
    with open_store(request_in(there, SOURCE).store) as source, open_store(request.store) as store:
        [device] = source.devices.find()
        store.devices.save(device.fingerprint, device.facts, device.host)
        for task in source.tasks():
            for record in source.records(task.key):
                earlier = replace(record.provenance, compiler="fake 0")
                store.add_record(task, replace(record, provenance=earlier, job_id=""))
    offered = query(request)
    assert {choice.rung for choice in offered.choices} == {Rung.COMPATIBLE}
    assert all("fake 0" in row["source"] for row in query_data(offered)["tasks"])
    answer = query(request, FillPolicy(few_shot=1))
    assert {choice.rung for choice in answer.choices} == {Rung.EXACT}
    assert keys_of(answer) == best


def test_what_an_equal_machine_has_measured_is_exact_and_names_it(there: Path, tmp_path: Path) -> None:
    assert {row["source"] for row in query_data(query(request_in(there, SOURCE)))["tasks"]} == {""}
    request = moved(there, tmp_path / "two")
    rows = query_data(query(request))["tasks"]
    assert {(row["rung"], row["source"]) for row in rows} == {("exact", "host host-b")}
    report, _ = compile_model(request, tmp_path / "net", CompileOptions(predict=True))
    data = compile_data(report)
    assert {one["rung"] for one in data["coverage"].values()} == {"exact"}
    assert data["sources"] == dict.fromkeys(data["coverage"], "host host-b")


def test_a_job_names_the_equal_machine_that_measured_its_best(there: Path, tmp_path: Path) -> None:
    request = moved(there, tmp_path / "two")
    with open_store(request_in(there, SOURCE).store) as store:
        assert {task.best_host for job in store.jobs() for task in job.tasks} == {""}
    report = tune(replace(request, budget=Budget(trials=1), seed=1))
    assert "host-b" in {row["best_host"] for row in tune_data(report)["tasks"]}, "one trial is of one task"


@pytest.mark.tvm
@pytest.mark.usefixtures("worker_processes")  # the importer changes settings of its whole process
@pytest.mark.slow
@pytest.mark.parametrize("elsewhere", [{"device": OTHER}, {"compiler": "apache-tvm of yesterday"}], ids=str)
def test_real_kernels_are_verified_and_timed_where_they_are_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: dict[str, str]
) -> None:
    monkeypatch.setenv(registry.VARIABLE, str(tmp_path / "none"))
    model = matmul_in(tmp_path)
    requests = [Request(model, threads=1, budget=Budget(trials=24), store=str(tmp_path / name)) for name in "ab"]
    tune(requests[0])
    best = {choice.candidate.key for choice in query(requests[0]).choices if choice.candidate}
    with open_store(requests[0].store) as source, open_store(requests[1].store) as store:
        [device] = source.devices.find()
        store.devices.save(elsewhere.get("device", device.fingerprint), device.facts, device.host)
        for task in source.tasks():
            for record in source.records(task.key):
                there = replace(record.provenance, **elsewhere)
                store.add_record(task, replace(record, provenance=there, job_id=""))
    report, _ = compile_model(requests[1], tmp_path / "net", CompileOptions(predict=True))
    assert "compatible-device" in {rung for rung, _ in report.coverage.values()}
    query(requests[1], FillPolicy(few_shot=1))
    with open_store(requests[1].store) as store:
        timed = [record for task in store.tasks() for record in store.records(task.key, origins=[Origin.SEARCH])
                 if replace(record.provenance, **elsewhere) != record.provenance]  # fmt: skip
    assert best.intersection(record.candidate.key for record in timed)
    assert all(record.measurement.verification is not None for record in timed)


def matmul_in(directory: Path) -> str:
    """Write a model of one product with a rectifier, and return its path."""
    weights = numpy_helper.from_array(np.ones((256, 512), np.float32) / 256, "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Relu", ["m"], ["y"])]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in
            (("x", (128, 256)), ("y", (128, 512)))]  # fmt: skip
    graph = helper.make_graph(nodes, "product", [ends[0]], [ends[1]], [weights])
    path = directory / "product.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return str(path)
