"""The operator key of a fused program is that of the ONNX nodes it was made of, whatever the importer made of them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from metaschedule_models import write_network
from onnx import TensorProto, helper

from tunery.dialects import Dialect
from tunery.domain import Network, Target, TensorSpec, operator_key

pytestmark = pytest.mark.tvm
F32 = "float32"
SEVERAL = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def keys(dialect: Dialect, target: Target, network: Network) -> list[str | None]:
    return [task.workload.operator for task in dialect.extract(network, target)]  # type: ignore[attr-defined]


def written(directory: Path, node: onnx.NodeProto, opset: int, shapes: Mapping[str, Sequence[int]],
            constants: Mapping[str, np.ndarray]) -> Network:  # fmt: skip
    """Write one node and a Relu behind it as a model of some opset."""
    nodes = [node, helper.make_node("Relu", ["y"], ["out"])]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    model = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    path = directory / "model.onnx"
    onnx.save(model, path)
    dims = model.graph.output[0].type.tensor_type.shape.dim
    specs = tuple(TensorSpec(name, tuple(shape), F32) for name, shape in shapes.items())
    result = TensorSpec("out", tuple(one.dim_value for one in dims), F32)
    return Network("model", str(path), path.read_bytes().hex()[-64:], str(path), specs, (result,), 0)


@st.composite
def convolutions(draw: st.DrawFn) -> dict[str, Any]:
    groups, inside, times = draw(st.sampled_from([(1, 3, 8), (1, 8, 3), (4, 1, 1), (4, 1, 2), (2, 4, 4)]))
    size = draw(st.tuples(st.integers(1, 3), st.integers(1, 5)))
    return {
        "x": (draw(st.integers(1, 2)), groups * inside, draw(st.integers(12, 19)), draw(st.integers(12, 19))),
        "w": (groups * times, inside, *size), "groups": groups,
        "strides": draw(st.tuples(st.integers(1, 3), st.integers(1, 3))),
        "dilations": draw(st.tuples(st.integers(1, 2), st.integers(1, 2))),
        "pads": draw(st.tuples(*[st.integers(0, 2)] * 4)), "opset": draw(st.sampled_from([11, 13, 17, 21])),
        "bias": draw(st.booleans()), "bare": draw(st.booleans()),
    }  # fmt: skip


@SEVERAL
@given(convolutions())
def test_a_convolution_has_the_key_of_its_node(
    dialect: Dialect, target: Target, tmp_path: Path, told: dict[str, Any]
) -> None:
    names = {"strides": "strides", "dilations": "dilations", "pads": "pads", "groups": "group"}
    defaults = {"strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0), "groups": 1}
    attributes = {
        theirs: told[mine] for mine, theirs in names.items() if not (told["bare"] and told[mine] == defaults[mine])
    }
    node = helper.make_node(
        "Conv", ["x", "w", "b"][: 2 + told["bias"]], ["y"], kernel_shape=told["w"][2:], **attributes
    )
    rng = np.random.default_rng(0)
    constants = {"w": rng.standard_normal(told["w"]).astype(F32)}
    if told["bias"]:
        constants["b"] = rng.standard_normal(told["w"][:1]).astype(F32)
    found = keys(dialect, target, written(tmp_path, node, told["opset"], {"x": told["x"]}, constants))
    fused = [f"add=1x{told['w'][0]}x1x1"] * told["bias"] + ["relu"]
    tensors = {name: (told[name], F32) for name in ("x", "w")}
    assert operator_key("conv2d", tensors, {name: told[name] for name in defaults}, fused) in found


@pytest.mark.parametrize(
    ("a", "b", "node", "expected"),
    [
        ((6, 8), (8, 4), "MatMul", "matmul:a=6x8:float32,b=8x4+relu"),
        ((2, 3, 6, 8), (2, 3, 8, 4), "MatMul", "matmul:a=2x3x6x8:float32,b=2x3x8x4+relu"),
        ((6, 8), (4, 8), {"transB": 1}, "matmul:a=6x8:float32,b=8x4+relu"),
        ((8, 6), (8, 4), {"transA": 1, "transB": 0, "alpha": 1.0}, "matmul:a=6x8:float32,b=8x4+relu"),
        ((6, 8), (8, 4), {}, "matmul:a=6x8:float32,b=8x4+relu"),
    ],
)  # fmt: skip
def test_a_product_has_one_key_however_its_operands_lie(
    dialect: Dialect, target: Target, tmp_path: Path, a: tuple[int, ...], b: tuple[int, ...],
    node: str | dict[str, Any], expected: str,
) -> None:  # fmt: skip
    made = helper.make_node("MatMul" if isinstance(node, str) else "Gemm", ["a", "b"], ["y"],
                            **({} if isinstance(node, str) else node))  # fmt: skip
    assert expected in keys(dialect, target, written(tmp_path, made, 17, {"a": a, "b": b}, {}))


@pytest.mark.parametrize(("opset", "axis", "expected"), [(13, 1, "2x6x8:float32,axis=-2"), (13, -1, "2x6x8:float32"),
                                                         (12, 2, "12x8:float32")])  # fmt: skip
def test_a_softmax_has_its_axis_in_its_key(
    dialect: Dialect, target: Target, tmp_path: Path, opset: int, axis: int, expected: str
) -> None:
    node = helper.make_node("Softmax", ["x"], ["y"], axis=axis)
    found = keys(dialect, target, written(tmp_path, node, opset, {"x": (2, 6, 8)}, {}))
    assert f"softmax:x={expected}" in [str(key).removesuffix("+relu") for key in found]


def test_what_is_fused_behind_is_told_and_told_apart(dialect: Dialect, target: Target, tmp_path: Path) -> None:
    constants = {"w": np.ones((8, 4)), "low": np.array(0.0), "high": np.array(6.0)}
    product = helper.make_node("MatMul", ["x", "w"], ["c"])

    def node(name: str, *inputs: str, output: str = "out") -> onnx.NodeProto:
        return helper.make_node(name, inputs, [output])

    ends = {
        "relu": [node("Relu", "c")],
        "clip=0,6": [node("Clip", "c", "low", "high")],
        "add=6x4": [node("Add", "r", "c")],
        "add=6x4+relu": [node("Add", "c", "r", output="s"), node("Relu", "s")],
        "subtract=6x4": [node("Sub", "c", "r")],
        "subtract=6x4,$0": [node("Sub", "r", "c")],
        "sigmoid+multiply=$0": [node("Sigmoid", "c", output="s"), node("Mul", "c", "s")],
        "add=6x4+multiply=@0": [node("Add", "c", "r", output="s"), node("Mul", "s", "r")],
    }
    for i, (end, nodes) in enumerate(ends.items()):
        inputs = {"x": (6, 8)} | ({"r": (6, 4)} if any("r" in one.input for one in nodes) else {})
        network = write_network(tmp_path, f"n{i}", [product, *nodes], inputs, constants)
        assert f"matmul:a=6x8:float32,b=8x4+{end}" in keys(dialect, target, network)


def test_pools_means_and_transpositions_have_keys(dialect: Dialect, target: Target, tmp_path: Path) -> None:
    expected = {
        "max_pool2d:x=1x8x12x12:float32,kernel=3x2": ("MaxPool", {"kernel_shape": [3, 2]}),
        "reduce_mean:x=1x8x12x12:float32,axes=2x3": ("GlobalAveragePool", {}),
        "transpose:x=1x8x12x12:float32,perm=0x2x1x3": ("Transpose", {"perm": [0, 2, 1, 3]}),
    }  # fmt: skip
    for i, (key, (operator, attributes)) in enumerate(expected.items()):
        network = write_network(
            tmp_path, f"n{i}", [helper.make_node(operator, ["x"], ["y"], **attributes)], {"x": (1, 8, 12, 12)}, {}
        )
        assert key in keys(dialect, target, network)


def test_operators_that_differ_in_a_detail_have_no_key_in_common(
    dialect: Dialect, target: Target, tmp_path: Path
) -> None:
    def node(name: str, *inputs: str, output: str = "y", **attributes: object) -> onnx.NodeProto:
        return helper.make_node(name, inputs, [output], **attributes)

    def pooled(inputs: Mapping[str, Sequence[int]], other: str) -> tuple[list[onnx.NodeProto], Mapping[str, object]]:
        pool = node("MaxPool", "x", output="p", kernel_shape=[3, 3], pads=[1] * 4)
        return [pool, node("Sub", "p", other)], inputs

    image = (1, 8, 12, 12)
    pairs = [
        # A part of a tensor, and a larger part of it.
        [([node("Slice", "x", "zero", end)], {"x": (8, 8)}) for end in ("four", "six")],
        # A number, and a tensor with that number of elements.
        [([node("Add", "x", "eight")], {"x": (8,)}), ([node("Add", "x", "r")], {"x": (8,), "r": (8,)})],
        [([node("Max", "x", "eight")], {"x": (8,)}), ([node("Max", "x", "r")], {"x": (8,), "r": (8,)})],
        # What is pooled, and another tensor of its shape.
        [pooled({"x": image}, "x"), pooled({"x": image, "r": image}, "r")],
        # A matrix twice, and once transposed.
        [([*before, node("Add", "x", first, output="s"), node("Mul", "s", "b")], {"x": (8, 8), "b": (8, 8)})
         for before, first in (([], "b"), ([node("Transpose", "b", output="t", perm=[1, 0])], "t"))],
    ]  # fmt: skip
    constants = {"eight": np.array(8.0, F32), **{
        name: np.array([end]) for name, end in (("zero", 0), ("four", 4), ("six", 6))
    }}  # fmt: skip
    for i, pair in enumerate(pairs):
        one, other = (
            set(keys(dialect, target, write_network(tmp_path, f"n{i}{j}", nodes, inputs, constants)))
            for j, (nodes, inputs) in enumerate(pair)
        )
        assert not (one & other) - {None}


def test_what_takes_dimensions_or_a_part_of_an_array_is_no_transposition(
    dialect: Dialect, target: Target, tmp_path: Path
) -> None:
    bounds = {"at": np.array([0]), "to": np.array([4]), "axis": np.array([1])}
    for name, node, constants in (
        ("squeeze", helper.make_node("Squeeze", ["x"], ["y"]), {}),
        ("slice", helper.make_node("Slice", ["x", *bounds], ["y"]), bounds),
    ):
        network = write_network(tmp_path, name, [node], {"x": (1, 8, 1, 12)}, constants)
        assert not any("transpose" in (key or "") for key in keys(dialect, target, network))
