"""Operators imported by our own rules compute what ONNX Runtime computes, also at the edges of their definitions."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from tunery.delivery.files.loading import load_compiled
from tunery.dialects import Dialect
from tunery.domain import Target
from tunery.models import prepare

pytestmark = pytest.mark.tvm
EDGES = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 6e-8, 6e4, -1.5], np.float32)
RNG = np.random.default_rng(0)
TIES = np.array([[3, 1, 3, 2, 3], [-7, -7, 5, -9, 5]], np.int64)
FAR = (RNG.standard_normal((2, 6, 5, 4)) + 3e2).astype(np.float32)
BYTES = RNG.integers(0, 256, (2, 4, 16), np.uint8)
SIGNED = RNG.integers(-128, 128, (16, 3), np.int8)


def far(channels: int) -> np.ndarray:
    return np.linspace(-2, 2, channels, dtype=np.float32)


def scale(*values: float) -> np.ndarray:
    return np.array(values if len(values) > 1 else values[0], np.float32)


CASES: list[tuple[str, int, np.ndarray, list[Any], int, dict[str, Any]]] = [
    ("IsNaN", 20, EDGES, [], 1, {}),
    ("IsNaN", 20, EDGES.astype(np.float16), [], 1, {}),
    ("IsNaN", 20, EDGES.astype(np.float64), [], 1, {}),
    ("MeanVarianceNormalization", 13, FAR, [], 1, {"axes": [0, 2, 3]}),
    ("MeanVarianceNormalization", 13, FAR, [], 1, {"axes": [1]}),
    ("MeanVarianceNormalization", 8, FAR, [], 1, {"across_channels": 1}),
    ("GroupNormalization", 18, FAR - 290, [far(3), far(3)], 1, {"num_groups": 3}),
    ("GroupNormalization", 21, FAR - 290, [far(6), far(6)], 1, {"num_groups": 3}),
    ("GroupNormalization", 21, FAR - 290, [np.ones(6, np.float32), far(6)], 1, {"num_groups": 1}),
    ("GroupNormalization", 21, FAR[:, :, 0] - 290, [far(6), far(6)], 1, {"num_groups": 2}),
    ("GroupNormalization", 21, FAR[..., None] - 290, [far(6), far(6)], 1, {"num_groups": 2}),
    ("GroupNormalization", 21, FAR[..., None, None] - 290, [far(6), far(6)], 1, {"num_groups": 2}),
    ("GroupNormalization", 21, FAR[:, :, 0, 0] - 300, [far(6), far(6)], 1, {"num_groups": 2}),
    ("InstanceNormalization", 6, FAR - 290, [far(6), far(6)], 1, {}),
    ("InstanceNormalization", 6, FAR[..., 0], [far(6), np.zeros(6, np.float32)], 1, {"epsilon": 1e-3}),
    ("RMSNormalization", 23, FAR, [np.ones(FAR.shape, np.float32)], 1, {"axis": 0}),
    ("Det", 13, FAR[..., :3, :3] - 3e2, [], 1, {}),
    ("Det", 13, FAR[..., :4, :4] - 3e2, [], 1, {}),
    ("Pow", 15, TIES, [np.float32(3)], 1, {}),
    ("Pow", 15, EDGES, [np.float32(3)], 1, {}),
    ("Pow", 15, EDGES, [np.array([[4]], np.float32)], 1, {}),
    ("Pow", 15, TIES.astype(np.float32), [np.array([0, 1, 2, 3, -1])], 1, {}),
    ("Slice", 9, FAR, [], 1, {"starts": [1, -3], "ends": [9223372036854775807, -1], "axes": [0, 2]}),
    ("Slice", 9, FAR, [], 1, {"starts": [0, 2], "ends": [1, 100]}),
    ("Upsample", 9, FAR - 300, [np.array([1, 1, 2, 3], np.float32)], 1, {"mode": "nearest"}),
    ("Upsample", 9, FAR - 300, [np.array([1, 1, 2, 3], np.float32)], 1, {"mode": "linear"}),
    ("EyeLike", 17, TIES, [], 1, {"dtype": onnx.TensorProto.FLOAT, "k": -1}),
    ("Col2Im", 18, RNG.standard_normal((1, 12, 6)).astype(np.float32), [np.array([5, 7]), np.array([2, 3])], 1,
     {"strides": [2, 2], "pads": [0, 1, 1, 0], "dilations": [2, 1]}),
    ("QLinearMatMul", 10, BYTES, [scale(0.02), np.uint8(113), SIGNED, scale(0.01, 0.02, 0.03), np.zeros(3, np.int8),
                                  scale(0.5), np.uint8(120)], 1, {}),
    ("QLinearMatMul", 10, BYTES, [scale(0.5), np.uint8(0), SIGNED, scale(0.5), np.int8(3), scale(0.25), np.uint8(5)], 1,
     {}),
    ("RoiAlign", 16, FAR - 300, [np.array([[0, 0, 9, 7], [2, 3, 12, 14]], np.float32), np.array([0, 1])], 1,
     {"output_height": 3, "output_width": 2, "sampling_ratio": 2, "spatial_scale": 0.5}),
    ("RoiAlign", 16, FAR - 300, [np.array([[0, 0, 3, 4]], np.float32), np.array([1])], 1, {"output_height": 2}),
    ("FusedMatMul", 17, FAR[:, :4] - 300, [FAR[:, :4] - 300], 1, {"transB": 1, "alpha": 0.25}),
    ("FusedMatMul", 17, FAR[0, 0].astype(np.float16) - 300, [FAR[0, 1].astype(np.float16) - 300], 1, {"transA": 1}),
]  # fmt: skip
MICROSOFT = ("FusedMatMul",)


@pytest.mark.parametrize("kind", [np.float32, np.int64])
@pytest.mark.parametrize(("keep", "elsewhere"), [(0, {}), (1, {}), (1, {"Equal comparison": "it is faster there"})])
@pytest.mark.parametrize("operator", ["ReduceMax", "ReduceMin"])
def test_an_extreme_that_is_compared_may_be_infinite(
    operator: str,
    keep: int,
    elsewhere: dict[str, str],
    kind: Any,
    dialect: Dialect,
    target: Target,
    tmp_path: Path,
) -> None:
    low, high = (-np.inf, np.inf) if kind is np.float32 else (np.iinfo(kind).min, np.iinfo(kind).max)
    finite = np.finfo(np.float32).min if kind is np.float32 else -7
    end = np.array(low if operator == "ReduceMax" else high, kind)
    x = np.stack([np.full((3, 4), value, kind) for value in (end, finite, 1)])
    constants = [numpy_helper.from_array(np.array([2]), "axes"), numpy_helper.from_array(end, "end")]
    graph = helper.make_graph(
        [
            helper.make_node(operator, ["x", "axes"], ["y"], keepdims=keep),
            helper.make_node("Equal", ["y", "end"], ["z"], "comparison"),
        ],
        "extreme",
        [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)],
        [onnx.ValueInfoProto(name=name) for name in ("y", "z")],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(onnx.shape_inference.infer_shapes(model, data_prop=True), tmp_path / "one.onnx")
    network = replace(prepare(str(tmp_path / "one.onnx"), {}, tmp_path), elsewhere=elsewhere)
    assert len(dialect.compile(network, target, {}, tmp_path / "one.tunery").elsewhere) == len(elsewhere)
    y, z = load_compiled(tmp_path / "one.tunery")(x)
    reduced = (np.max if operator == "ReduceMax" else np.min)(x, axis=2, keepdims=bool(keep))
    np.testing.assert_array_equal(y, reduced)
    np.testing.assert_array_equal(z, reduced == end)


@pytest.mark.parametrize("case", CASES, ids=[f"{case[0]}_{number}" for number, case in enumerate(CASES)])
def test_it_computes_what_onnx_runtime_does(
    case: tuple[str, int, np.ndarray, list[Any], int, dict[str, Any]], dialect: Dialect, target: Target, tmp_path: Path
) -> None:
    operator, opset, x, constants, outputs, attributes = case
    domain = "com.microsoft" if operator in MICROSOFT else ""
    names, made = [f"c{number}" for number in range(len(constants))], [f"y{number}" for number in range(outputs)]
    graph = helper.make_graph(
        [helper.make_node(operator, ["x", *names], made, domain=domain, **attributes)],
        "one",
        [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)],
        [onnx.ValueInfoProto(name=name) for name in made],
        [numpy_helper.from_array(np.asarray(value), name) for value, name in zip(constants, names, strict=True)],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = session.run(None, {"x": x})
    for output, value in zip(model.graph.output, wanted, strict=True):
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        output.CopyFrom(helper.make_tensor_value_info(output.name, kind, value.shape))
    path = tmp_path / "one.onnx"
    onnx.save(model, path)
    network = prepare(str(path), {}, tmp_path)
    compiled = dialect.compile(network, target, {}, tmp_path / "one.tunery")
    left = (operator == "Det" and x.shape[-1] > 3) or {"across_channels", "sorted", "spatial_scale"} & {*attributes}
    assert bool(compiled.elsewhere) == bool(left)
    for ours, theirs in zip(load_compiled(tmp_path / "one.tunery")(x), wanted, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT8E4M3FN, onnx.TensorProto.FLOAT16])
@pytest.mark.parametrize("between", [[], [helper.make_node("Transpose", ["narrow"], ["turned"])]])
def test_a_number_that_is_rounded_stays_so_when_it_is_widened(
    kind: int, between: list[onnx.NodeProto], dialect: Dialect, target: Target, tmp_path: Path
) -> None:
    x = RNG.standard_normal((3, 4)).astype(np.float32)
    nodes = [
        helper.make_node("Cast", ["x"], ["narrow"], to=kind), *between,
        helper.make_node("Cast", ["turned" if between else "narrow"], ["wide"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Mul", ["wide", "wide"], ["y"]),
    ]  # fmt: skip
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "rounded", [value("x", onnx.TensorProto.FLOAT, x.shape)], [value("y", onnx.TensorProto.FLOAT, None)]
    )
    path = tmp_path / "rounded.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    [wanted] = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"x": x})
    dialect.compile(prepare(str(path), {}, tmp_path), target, {}, tmp_path / "one.tunery")
    [ours] = load_compiled(tmp_path / "one.tunery")(x)
    np.testing.assert_allclose(ours, wanted, rtol=1e-6)
