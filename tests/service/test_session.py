"""Several verbs in one session: one set of workers, and each model read once."""

import asyncio
import os
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx.helper
import psutil
import pytest

from tunery.delivery.files.loading import load_compiled
from tunery.domain import Budget, JobState, JobStatus
from tunery.domain.request import MODEL_CHANGED, CompileOptions, Progress, Request
from tunery.engines.local import nursery
from tunery.reports.data import compile_report
from tunery.reports.job import COMPILED
from tunery.runtime.importing import stamp_of
from tunery.service.codec import request_data, request_of
from tunery.service.kinds import answer_of
from tunery.service.manager import JobManager
from tunery.service.session import Session
from tunery.store import Store, open_store


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


@pytest.mark.jobs
def test_all_verbs_of_a_session_share_its_workers(tmp_path: Path) -> None:
    nursery.end()
    before = children()
    request = Request("fake:demo?tasks=2", dialect="fake", threads=1, budget=Budget.parse("8trials"))
    with Session(str(tmp_path / "store.db")) as session:
        tuned = session.tune(request)
        started = children() - before
        assert started
        assert session.extract(request).tasks == tuned.tasks
        assert {choice.task_key for choice in session.query(request).choices} == {task.key for task in tuned.tasks}
        report, _ = session.compile(request, tmp_path / "demo.tunery")
        assert all(key is not None for _, key in report.coverage.values())
        assert children() - before == started, "no verb starts an engine of its own"
    nursery.end()
    assert children() <= before


@pytest.mark.jobs
@pytest.mark.usefixtures("inline_workers")
def test_a_job_delivers_what_it_tuned_and_pays_for_it_and_goes_on_wherever_its_file_is(tmp_path: Path) -> None:
    request = Request("fake:demo?tasks=2", dialect="fake", threads=1, budget=Budget.parse("8trials"))
    stop = threading.Event()
    with Session(str(tmp_path / "store.db")) as session:
        stop.set()
        stopped = session.tune(replace(request, options={"output": str(tmp_path / "a.tunery")}), stop=stop)
        assert (stopped.job.state, stopped.compiled) == (JobState.STOPPED, None)
        done = session.tune(replace(request, options={"output": str(tmp_path / "b.tunery")}))
    assert (done.resumed, done.job.job_id, done.job.state) == (True, stopped.job.job_id, JobState.DONE)
    assert done.compiled is not None
    assert Path(done.compiled.path) == tmp_path / "b.tunery"
    assert [path.name for path in tmp_path.glob("*.tunery")] == ["b.tunery"]
    with open_store(str(tmp_path / "store.db")) as store:
        assert "compile" in {charge.stage for charge in store.ledger(done.job.job_id)}
        answer = answer_of(store, store.job(done.job.job_id))
    assert answer is not None
    assert compile_report(answer[COMPILED])[0].coverage == done.compiled.coverage


@pytest.mark.jobs
@pytest.mark.usefixtures("inline_workers")
def test_a_job_that_goes_on_without_a_file_forgets_that_of_its_earlier_run(tmp_path: Path) -> None:
    request = Request("fake:demo?tasks=2", dialect="fake", threads=1, budget=Budget.parse("8trials"))
    stop = threading.Event()
    stop.set()
    with Session(str(tmp_path / "store.db")) as session:
        delivers = replace(request, options={"output": str(tmp_path / "a.tunery"), "force": True})
        first = session.tune(delivers, stop=stop).job
        again = session.tune(request, stop=stop).job
        assert again.job_id == first.job_id
        assert request_of(again, "").options == {}
        done = session.tune(request_of(again, ""), job_id=again.job_id)
    assert (done.job.state, done.compiled) == (JobState.DONE, None)
    assert not list(tmp_path.glob("*.tunery"))
    with open_store(str(tmp_path / "store.db")) as store:
        answer = answer_of(store, done.job)
    assert answer is not None
    assert COMPILED not in answer


def test_a_verb_that_is_cancelled_while_importing_ends_at_once_and_the_session_goes_on(tmp_path: Path) -> None:
    before = children()
    slow, quick = (
        Request(source, dialect="fake", threads=1, budget=Budget.parse("4trials"))
        for source in ("fake:slow?extract_s=1000", "fake:quick?tasks=1")
    )
    with Session(str(tmp_path / "store.db")) as session:
        assert not session.cancel(), "nothing is at work"
        with pytest.raises(KeyboardInterrupt):
            session.tune(slow, lambda _: None if session.cancel() else pytest.fail("importing is no work"))
        assert not session.cancel()
        assert session.tune(quick).job.state is JobState.DONE
    nursery.end()
    assert children() <= before


def model(path: Path, weight: float, *, beside: bool = False) -> Path:
    """Write a model, with its weights in a file `weights` beside it if asked for."""
    value = onnx.helper.make_tensor_value_info
    weights = onnx.numpy_helper.from_array(np.full((16, 16), weight, np.float32), "w")
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])], "g",
        [value("x", onnx.TensorProto.FLOAT, (4, 16))], [value("y", onnx.TensorProto.FLOAT, (4, 16))], [weights],
    )  # fmt: skip
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8),
        path,
        save_as_external_data=beside,
        location="weights",
        size_threshold=0,
    )
    return path


def test_a_file_with_other_bytes_has_changed_though_its_size_and_time_are_the_same(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"one")
    before, times = stamp_of(str(path)), path.stat()
    path.write_bytes(b"two")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert stamp_of(str(path)) != before


@pytest.mark.tvm
@pytest.mark.parametrize("beside", [False, True])
def test_a_file_that_is_replaced_after_tuning_changes_nothing_of_what_is_delivered(
    tmp_path: Path, beside: bool
) -> None:
    source = model(tmp_path / "model.onnx", 1.0, beside=beside)
    request = Request(str(source), threads=1, budget=Budget.parse("4trials"))
    with Session(str(tmp_path / "store.db")) as session:
        tuned = session.tune(request)
        assert MODEL_CHANGED not in tuned.job.message
        assert not session.compile(request, tmp_path / "model.tunery", CompileOptions(predict=True))[0].model_changed
        if beside:
            (tmp_path / "weights").write_bytes(np.full((16, 16), 2.0, np.float32).tobytes())
        else:
            model(source, 2.0)
        assert session.compile(request, tmp_path / "model.tunery", CompileOptions(predict=True))[0].model_changed
        source.unlink()
        report = session.bench(request, ("onnxruntime", "untuned"), 0.1, tmp_path / "model.tunery")
    assert report.latency_s.keys() == {"tunery", "untuned", "onnxruntime"}
    [output] = load_compiled(tmp_path / "model.tunery")(np.ones((4, 16), np.float32))
    np.testing.assert_array_equal(output, np.full((4, 16), 16.0, np.float32))


def test_a_stored_request_keeps_the_trust_that_it_was_given(tmp_path: Path) -> None:
    for trust in (False, True):
        asked = Request("net.pt2", trust=trust)
        stored = JobStatus("job", JobState.QUEUED, request_data(asked))
        assert request_of(stored, "").trust is trust


def test_a_stored_request_keeps_its_shapes() -> None:
    asked = Request("x.onnx", {"batch": (1,)}, more_shapes=({"batch": (4,)}, {"x": (1, 3)}))
    stored = JobStatus("job", JobState.QUEUED, request_data(asked))
    found = request_of(stored, "")
    assert [one.shapes for one in found.each_shape] == [{"batch": (1,)}, {"batch": (4,)}, {"x": (1, 3)}]


@pytest.mark.tvm
def test_a_file_that_is_deleted_while_its_job_runs_costs_nothing_and_is_said(tmp_path: Path) -> None:
    source = model(tmp_path / "model.onnx", 1.0)
    request = Request(str(source), threads=1, budget=Budget.parse("4trials"))

    def delete(progress: Progress) -> None:
        if progress.job_id:  # the model has been read
            source.unlink(missing_ok=True)

    with Session(str(tmp_path / "store.db")) as session:
        tuned = session.tune(request, delete)
        assert not source.exists()
        assert tuned.job.state is JobState.DONE
        assert MODEL_CHANGED in tuned.job.message
        report, _ = session.compile(request, tmp_path / "model.tunery", CompileOptions(predict=True))
    assert report.model_changed
    [output] = load_compiled(tmp_path / "model.tunery")(np.ones((4, 16), np.float32))
    np.testing.assert_array_equal(output, np.full((4, 16), 16.0, np.float32))


@pytest.mark.tvm
def test_a_daemons_job_whose_file_is_deleted_after_it_was_read_is_done(tmp_path: Path) -> None:
    source = model(tmp_path / "model.onnx", 1.0)

    async def run(store: Store) -> JobStatus:
        async with JobManager(store) as manager:
            job = await manager.submit(Request(str(source), threads=1, budget=Budget.parse("4trials")))
            async for _ in manager.follow(job):
                if store.job(job).request.get("network"):
                    source.unlink(missing_ok=True)
            return store.job(job)

    with open_store(str(tmp_path / "store.db")) as store:
        status = asyncio.run(run(store))
    assert not source.exists()
    assert (status.state, MODEL_CHANGED in status.message) == (JobState.DONE, True)
