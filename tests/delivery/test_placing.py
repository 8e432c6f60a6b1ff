"""A compiled network that computes something else is mended by leaving the operators at fault to ONNX Runtime."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tunery
from tunery.domain.request import Request
from tunery.runtime.services import Importer
from tunery.service.session import Session

FLOAT = TensorProto.FLOAT


def network_with_nan(directory: Path) -> str:
    """A product with its activation, and beside it the sign of NaN: for ONNX Runtime that is NaN, for TVM a number."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Relu", ["m"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["y"]),
        helper.make_node("Sqrt", ["x"], ["root"]),
        helper.make_node("Sign", ["root"], ["sign"]),
    ]
    rng = np.random.default_rng(3)
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", FLOAT, [4, 16])],
        [helper.make_tensor_value_info("y", FLOAT, [4, 8]), helper.make_tensor_value_info("sign", FLOAT, [4, 16])],
        [numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
         for name, shape in (("w", (16, 16)), ("v", (16, 8)))],
    )  # fmt: skip
    path = directory / "nan.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return str(path)


@pytest.mark.tvm
@pytest.mark.parametrize("alone", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["alone", "by halves"])
def test_an_operator_that_differs_runs_in_onnx_runtime_and_all_others_do_not(
    alone: bool, tmp_path: Path, let_win: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    let_win("tunery")
    if not alone:  # as where it is right alone, and wrong beside others
        monkeypatch.setattr(Importer, "differing", lambda *_: {})
    request = Request(network_with_nan(tmp_path), threads=1, store=str(tmp_path / "s.db"))
    with Session(request.store) as session:
        report, _ = session.compile(request, tmp_path / "nan.tunery")
        assert {node.partition(" ")[0] for node in report.elsewhere} <= {"Sqrt", "Sign"}
        assert "Sign sign" in report.elsewhere
        assert report.coverage
        assert session.extract(request).elsewhere == report.elsewhere
    with Session(request.store) as session:  # it is known from now on
        assert session.extract(request).elsewhere == report.elsewhere
    compiled = tunery.load_compiled(tmp_path / "nan.tunery")
    x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(4, 16)
    _, sign = compiled(x)
    np.testing.assert_array_equal(sign, np.where(x > 0, 1.0, np.nan))
