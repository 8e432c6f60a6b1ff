"""What a compiled network computes wrongly, or slowly, is left to ONNX Runtime: that operator, not the network."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from inline_engine import run_workers_here
from onnx import TensorProto, helper, numpy_helper

import tunery
from tunery._errors import WorkError
from tunery.delivery.files.inspection import inspect
from tunery.domain import Budget
from tunery.domain.request import CompileOptions, Request
from tunery.reports.text import value_lines
from tunery.runtime.services import Importer
from tunery.service.session import Session

FLOAT = TensorProto.FLOAT


def network_with_nan(directory: Path) -> str:
    """A product with its activation, and beside it the largest of numbers of which some are NaN, another one in TVM,
    and the largest of numbers among zeros, which ONNX Runtime's optimiser takes for none."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Relu", ["m"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["y"]),
        helper.make_node("Sqrt", ["x"], ["root"]),
        helper.make_node("ReduceMax", ["root"], ["most"], axes=[1]),
        helper.make_node("Reshape", ["x", "image"], ["drawn"]),
        helper.make_node("Pad", ["drawn", "border"], ["framed"]),
        helper.make_node("MaxPool", ["framed"], ["pooled"], kernel_shape=[3, 3]),
    ]
    rng = np.random.default_rng(3)
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", FLOAT, [4, 16])],
        [helper.make_tensor_value_info(name, FLOAT, shape)
         for name, shape in (("y", [4, 8]), ("most", [4, 1]), ("pooled", [1, 1, 8, 8]))],
        [numpy_helper.from_array(np.array([1, 1, 8, 8]), "image"),
         numpy_helper.from_array(np.array([0, 0, 1, 1, 0, 0, 1, 1]), "border"),
         *(numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
           for name, shape in (("w", (16, 16)), ("v", (16, 8))))],
    )  # fmt: skip
    path = directory / "nan.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return str(path)


@pytest.mark.tvm
@pytest.mark.parametrize("alone", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["alone", "by halves"])
def test_an_operator_that_differs_runs_in_onnx_runtime_and_all_others_do_not(
    alone: bool, tmp_path: Path, let_win: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    let_win("tunery")
    if not alone:  # as where it is right alone, and wrong beside others
        run_workers_here(monkeypatch)
        monkeypatch.setattr(Importer, "differing", lambda *_: {})
    model = network_with_nan(tmp_path)
    request = Request(model, threads=1, store=str(tmp_path / "s.db"))
    with Session(request.store) as session:
        report, _ = session.compile(request, tmp_path / "nan.tunery")
        assert {node.partition(" ")[0] for node in report.elsewhere} <= {"Sqrt", "ReduceMax"}
        assert "ReduceMax most" in report.elsewhere
        assert report.coverage
        assert any("optimiser changes what this model computes" in line for line in value_lines(report))
        assert session.extract(request).elsewhere == report.elsewhere
    with Session(request.store) as session:  # it is known from now on
        assert session.extract(request).elsewhere == report.elsewhere
    compiled = tunery.load_compiled(tmp_path / "nan.tunery")
    x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(4, 16)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    wanted = onnxruntime.InferenceSession(model, options).run(["most", "pooled"], {"x": x})
    assert not np.array_equal(onnxruntime.InferenceSession(model).run(["pooled"], {"x": x})[0], wanted[1])
    for made, right in zip(compiled(x)[1:], wanted, strict=True):
        np.testing.assert_array_equal(made, right)


def slow_product(directory: Path) -> str:
    """A product, which is slow without a schedule, and activations that are one kernel here and several there."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["v0"])]
    nodes += [helper.make_node(("Exp", "Neg")[at % 2], [f"v{at}"], [f"v{at + 1}"]) for at in range(6)]
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", FLOAT, [128, 256])],
        [helper.make_tensor_value_info("v6", FLOAT, [128, 256])],
        [numpy_helper.from_array(np.full((256, 256), 1e-3, np.float32), "w")],
    )  # fmt: skip
    path = directory / "slow.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return str(path)


@pytest.mark.tvm
@pytest.mark.parametrize("better", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["part", "whole"])
def test_the_part_that_loses_runs_in_onnx_runtime_unless_the_whole_is_faster_there(
    better: bool, tmp_path: Path, let_win: Callable[..., None]
) -> None:
    let_win("onnxruntime", "tunery" if better else "onnxruntime")
    request = Request(slow_product(tmp_path), threads=1, store=str(tmp_path / "s.db"))
    with Session(request.store) as session:
        report, _ = session.compile(request, tmp_path / "slow.tunery")
        assert "MatMul v0" in report.elsewhere
        assert ("Neg v6" in report.elsewhere) == (not better)
        assert bool(report.coverage) == better
        assert (0 < report.verdict.onnxruntime_share < 1) == better
        assert not session.extract(request).elsewhere, "tuning may make it faster"
    compiled = tunery.load_compiled(tmp_path / "slow.tunery")
    x = np.linspace(-1, 1, 128 * 256, dtype=np.float32).reshape(128, 256)
    wanted = x @ np.full((256, 256), 1e-3, np.float32)
    for _ in range(3):
        wanted = -np.exp(wanted)
    np.testing.assert_allclose(compiled(x)[0], wanted, rtol=1e-4)


@pytest.mark.tvm
def test_a_budget_too_short_for_kernels_gives_a_file_that_onnx_runtime_runs(tmp_path: Path) -> None:
    output = tmp_path / "soon.tunery"
    request = Request(
        slow_product(tmp_path), threads=1, store=str(tmp_path / "s.db"), budget=Budget(seconds=0.1),
        options={"output": str(output)},
    )  # fmt: skip
    with Session(request.store) as session:
        report = session.tune(request).compiled
    assert report.no_kernels
    assert "not judged: the budget of time ended" in report.verdict.headline
    assert np.isfinite(tunery.load_compiled(output)(np.zeros((128, 256), np.float32))[0]).all()


@pytest.mark.tvm
def test_what_may_be_handed_over_is_the_users_choice(tmp_path: Path, let_win: Callable[..., None]) -> None:
    let_win("onnxruntime")
    request = Request(slow_product(tmp_path), threads=1, store=str(tmp_path / "s.db"))
    reports = {}
    with Session(request.store) as session:
        for choice in ("auto", "parts", "never"):
            options = CompileOptions(onnxruntime=choice)
            reports[choice], _ = session.compile(request, tmp_path / f"{choice}.tunery", options)
        with pytest.raises(WorkError, match="nodes need ONNX Runtime"):
            session.compile(
                Request(one_if(tmp_path), threads=1, store=request.store), tmp_path / "if.tunery", options
            )  # fmt: skip
    assert {choice: bool(report.coverage) for choice, report in reports.items()} == {
        "auto": False, "parts": True, "never": True,
    }  # fmt: skip
    assert not reports["never"].elsewhere
    verdicts = {choice: report.verdict for choice, report in reports.items()}
    assert verdicts["auto"].headline.startswith("runs: ONNX Runtime 100 % of the time")
    assert "tunery 100 %" in verdicts["never"].headline
    assert verdicts["never"].delivered == verdicts["never"].native
    assert verdicts["never"].native.ratio == verdicts["auto"].native.ratio
    assert inspect(tmp_path / "never.tunery").file.origin.verdict == verdicts["never"]


def one_if(directory: Path) -> str:
    """A model with a node that no compiler takes."""
    branches = {
        name: helper.make_graph(
            [helper.make_node(op, ["x"], ["y"])], name, [], [helper.make_tensor_value_info("y", FLOAT, [4])]
        )
        for name, op in (("then_branch", "Exp"), ("else_branch", "Neg"))
    }
    nodes = [helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0), helper.make_node("Cast", ["m"], ["c"], to=9)]
    graph = helper.make_graph(
        [*nodes, helper.make_node("If", ["c"], ["z"], **branches)], "g",
        [helper.make_tensor_value_info("x", FLOAT, [4])], [helper.make_tensor_value_info("z", FLOAT, [4])],
    )  # fmt: skip
    path = directory / "if.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return str(path)


@pytest.mark.tvm
@pytest.mark.slow
def test_a_product_without_a_schedule_is_not_delivered_slower_than_onnx_runtime(tmp_path: Path) -> None:
    request = Request(slow_product(tmp_path), threads=1, store=str(tmp_path / "s.db"))
    with Session(request.store) as session:
        report, _ = session.compile(request, tmp_path / "slow.tunery")
    assert "MatMul v0" in report.elsewhere
    if report.latency_s and report.onnxruntime_s:
        assert report.onnxruntime_s / report.latency_s > 0.98
