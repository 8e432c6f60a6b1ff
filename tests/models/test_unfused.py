"""Operators as ONNX Runtime's optimiser puts them together are prepared as their parts, which compute the same."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from tunery.models import prepare

RNG = np.random.default_rng(0)
IMAGE, WEIGHT, BIAS = (RNG.standard_normal(shape).astype(np.float32) for shape in ((1, 4, 6, 6), (8, 4, 3, 3), (8,)))
ADDEND = RNG.standard_normal((1, 8, 4, 4)).astype(np.float32)
SQUARE = RNG.standard_normal((2, 3, 6, 6)).astype(np.float32)
CASES: list[tuple[str, list[np.ndarray], dict[str, Any], list[str]]] = [
    ("FusedConv", [IMAGE, WEIGHT], {"activation": "Relu"}, ["Conv", "Relu"]),
    ("FusedConv", [IMAGE, WEIGHT, BIAS, ADDEND], {"activation": "Tanh"}, ["Conv", "Add", "Tanh"]),
    ("FusedConv", [IMAGE, WEIGHT, BIAS], {"activation": "LeakyRelu", "activation_params": [0.2], "strides": [2, 2]},
     ["Conv", "LeakyRelu"]),
    ("FusedConv", [IMAGE, WEIGHT, BIAS], {"activation": "Clip", "activation_params": [0.0, 6.0]}, ["FusedConv"]),
    ("FusedMatMul", [SQUARE, SQUARE[0, 0]], {"alpha": 0.25}, ["MatMul", "Mul"]),
    ("FusedMatMul", [SQUARE, SQUARE], {"transB": 1}, ["FusedMatMul"]),
    ("QuickGelu", [SQUARE], {"alpha": 1.5}, ["Mul", "Sigmoid", "Mul"]),
    ("QuickGelu", [SQUARE.astype(np.float64)], {}, ["QuickGelu"]),
    ("FusedMatMul", [SQUARE.astype(np.float64), SQUARE[0, 0].astype(np.float64)], {"alpha": 0.25}, ["FusedMatMul"]),
    ("QuickGelu", [SQUARE.astype(np.float16)], {}, ["QuickGelu"]),
]  # fmt: skip


@pytest.mark.parametrize(("operator", "values", "attributes", "parts"), CASES)
def test_its_parts_compute_the_same(
    operator: str, values: list[np.ndarray], attributes: dict[str, Any], parts: list[str], tmp_path: Path
) -> None:
    names, kind = [f"v{number}" for number in range(len(values))], helper.np_dtype_to_tensor_dtype(values[0].dtype)
    graph = helper.make_graph(
        [helper.make_node(operator, names, ["y"], domain="com.microsoft", **attributes)],
        "fused",
        [helper.make_tensor_value_info("v0", kind, values[0].shape)],
        [helper.make_tensor_value_info("y", kind, [None] * values[0].ndim)],
        [numpy_helper.from_array(value, name) for value, name in zip(values[1:], names[1:], strict=True)],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    path = tmp_path / "fused.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    network = prepare(str(path), {}, tmp_path)
    assert [node.op_type for node in onnx.load(network.path).graph.node] == parts
    before, after = (
        onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"]).run(None, {"v0": values[0]})[0]
        for file in (path, network.path)
    )
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5)
