"""Which operators compute something else than in ONNX Runtime: each is tried on what it is given there."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from tunery.dialects import Array, Dialect, NetworkCompiler
from tunery.dialects.metaschedule.codegen.trial import differing_nodes
from tunery.dialects.metaschedule.importing.segments.graph import Graph
from tunery.domain import Target
from tunery.models import prepare

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def model() -> onnx.ModelProto:
    """Two floors of which each changes what is after it, and a shape that is computed."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Floor", ["m"], ["f"]),
        helper.make_node("Shape", ["f"], ["s"]),
        helper.make_node("Reshape", ["f", "s"], ["r"]),
        helper.make_node("Cast", ["r"], ["whole"], to=INT64),
        helper.make_node("Mul", ["whole", "two"], ["d"]),
        helper.make_node("Cast", ["d"], ["c"], to=FLOAT),
        helper.make_node("Floor", ["c"], ["y"]),
    ]
    w = np.random.default_rng(1).standard_normal((6, 5)).astype(np.float32)
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", FLOAT, [4, 6])],
        [helper.make_tensor_value_info("y", FLOAT, [4, 5])],
        [numpy_helper.from_array(w, "w"), numpy_helper.from_array(np.array(2), "two")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def computed(given: onnx.ModelProto, inputs: Sequence[Array], replaced: dict[str, str]) -> list[Array]:
    """What ONNX Runtime computes with other operators in place of some."""
    changed = onnx.ModelProto()
    changed.CopyFrom(given)
    for node in changed.graph.node:
        node.op_type = replaced.get(node.op_type, node.op_type)
    session = onnxruntime.InferenceSession(changed.SerializeToString(), providers=["CPUExecutionProvider"])
    found: list[Array] = session.run(None, {one.name: x for one, x in zip(given.graph.input, inputs, strict=True)})
    return found


@pytest.mark.parametrize(
    ("replaced", "wrong"),
    [({}, []), ({"Floor": "Ceil"}, [1]), ({"Mul": "Add"}, [5]), ({"Floor": "Ceil", "Mul": "Add"}, [1, 5])],
)  # fmt: skip
def test_each_operator_that_differs_is_found_and_no_other(replaced: dict[str, str], wrong: list[int]) -> None:
    graph = Graph(model())
    inputs = {"x": np.random.default_rng(2).standard_normal((4, 6)).astype(np.float32)}
    native = [at for at in range(len(graph.nodes)) if graph.nodes[at].op_type != "Shape"]
    found = differing_nodes(graph, native, inputs, lambda apart, given: computed(apart, given, replaced))
    assert found == wrong  # the second floor is of whole numbers


@pytest.mark.tvm
def test_an_operator_that_the_compiler_computes_otherwise_is_named(
    dialect: Dialect, target: Target, tmp_path: Path
) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Relu", ["m"], ["r"]),
        helper.make_node("Sqrt", ["x"], ["root"]),
        helper.make_node("ReduceMax", ["root"], ["most"], axes=[1]),  # beside NaN another number than ONNX Runtime's
    ]
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", FLOAT, [4, 6])],
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in (("r", [4, 5]), ("most", [4, 1]))],
        [numpy_helper.from_array(np.ones((6, 5), np.float32), "w")],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "m.onnx")
    network = prepare(str(tmp_path / "m.onnx"), {}, tmp_path)
    x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(6, 4).T.copy()
    found = NetworkCompiler.of(dialect).differing(network, target, [x])
    assert "ReduceMax most" in found
    assert not {"MatMul m", "Relu r"} & set(found)
    assert not NetworkCompiler.of(dialect).differing(network, target, [np.abs(x) + 1])
