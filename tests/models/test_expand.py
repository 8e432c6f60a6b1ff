"""Functions in the place of their calls, and sparse constants written out, compute what they did before."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from frontend_models import model, run, save
from onnx import TensorProto, helper, numpy_helper

from tunery._errors import ModelError
from tunery.models import prepare
from tunery.models.onnx._expand import expand

DATA = np.array([[-2, -0.5, 0, 3]], np.float32)
KNOWN = [helper.make_opsetid("", 18), helper.make_opsetid("my", 1)]


def compared(proto: onnx.ModelProto, tmp_path: Path) -> list[str]:
    """Compare a model before and after, and return the operators of the latter."""
    path = save(proto, tmp_path / "m.onnx")
    network = prepare(path, {}, tmp_path)
    for before, after in zip(run(path, {"x": DATA}), run(network.path, {"x": DATA}), strict=True):
        np.testing.assert_allclose(after, before, rtol=1e-6, atol=1e-6)
    return [node.op_type for node in onnx.load(network.path).graph.node]


@pytest.mark.parametrize("inside", [False, True], ids=["called by the graph", "called by another function"])
def test_a_functions_default_for_an_attribute_counts_where_it_is_left_out(inside: bool, tmp_path: Path) -> None:
    part = helper.make_node("Elu", ["a"], ["b"])
    part.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    default = [helper.make_attribute("slope", 0.3)]
    functions = [helper.make_function("my", "Soft", ["a"], ["b"], [part], KNOWN, attribute_protos=default)]
    call = helper.make_node("Soft", ["x"], ["y"], domain="my")
    if inside:
        body = [helper.make_node("Soft", ["a"], ["b"], domain="my")]
        functions.append(helper.make_function("my", "Outer", ["a"], ["b"], body, KNOWN))
        call.op_type = "Outer"
    other = helper.make_node("Soft", ["x"], ["z"], domain="my", slope=2.0)
    value = helper.make_tensor_value_info
    outputs = [value(name, TensorProto.FLOAT, [1, 4]) for name in "yz"]
    graph = helper.make_graph([call, other], "g", [value("x", TensorProto.FLOAT, [1, 4])], outputs)
    found = helper.make_model(graph, opset_imports=KNOWN, ir_version=9, functions=functions)
    assert compared(found, tmp_path) == ["Elu", "Elu"]


def test_a_functions_default_counts_where_the_outer_call_leaves_out_what_the_inner_one_refers_to(
    tmp_path: Path,
) -> None:
    def referring(kind: str, given: str, source: str, name: str, end: str, domain: str = "") -> onnx.NodeProto:
        node = helper.make_node(kind, [source], [end], domain=domain)
        node.attribute.add(name=given, ref_attr_name=name, type=onnx.AttributeProto.FLOAT)
        return node

    default = [helper.make_attribute("slope", 0.3)]
    twice = [referring("Soft", "slope", "a", "s", "t", "my"), referring("Soft", "slope", "t", "s", "b", "my")]
    functions = [
        helper.make_function("my", "Outer", ["a"], ["b"], twice, KNOWN, ["s"]),
        helper.make_function(
            "my", "Soft", ["a"], ["b"], [referring("Elu", "alpha", "a", "slope", "b")], KNOWN, [], default
        ),
    ]
    calls = [
        helper.make_node("Outer", ["x"], ["t"], domain="my"),
        helper.make_node("Outer", ["t"], ["y"], domain="my", s=2.0),
    ]
    value = helper.make_tensor_value_info
    ends = [value(name, TensorProto.FLOAT, [1, 4]) for name in "xy"]
    graph = helper.make_graph(calls, "g", ends[:1], ends[1:])
    found = helper.make_model(graph, opset_imports=KNOWN, ir_version=9, functions=functions)
    assert compared(found, tmp_path) == ["Elu"] * 4


def test_functions_that_call_each_other_stay_as_they_are() -> None:
    default = [helper.make_attribute("slope", 0.3)]
    functions = [
        helper.make_function("my", name, ["a"], ["b"], [helper.make_node(other, ["a"], ["b"], domain="my")], KNOWN)
        for name, other in [("F", "G"), ("G", "F")]
    ]
    functions[0].attribute_proto.extend(default)
    found = model([helper.make_node("F", ["x"], ["y"], domain="my")], {"x": (1, 4)}, {"y": (1, 4)})
    found.opset_import.append(KNOWN[1])
    found.functions.extend(functions)
    assert [one.name for one in expand(found).functions] == ["F", "G"]


@pytest.mark.parametrize(
    ("node", "opset", "constants"),
    [
        (helper.make_node("Swish", ["x"], ["y"]), 24, {}),
        (helper.make_node("NegativeLogLikelihoodLoss", ["x", "t"], ["y"]), 18, {"t": np.array([3])}),
    ],
    ids=lambda value: value.op_type if isinstance(value, onnx.NodeProto) else "",
)
def test_an_operator_is_its_parts_whatever_version_they_are_of(
    node: onnx.NodeProto, opset: int, constants: dict[str, np.ndarray], tmp_path: Path
) -> None:
    value = helper.make_tensor_value_info
    weights = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    output = value("y", TensorProto.FLOAT, [] if constants else [1, 4])
    graph = helper.make_graph([node], "g", [value("x", TensorProto.FLOAT, [1, 4])], [output], weights)
    opsets = [helper.make_opsetid("", opset)]
    assert node.op_type not in compared(helper.make_model(graph, opset_imports=opsets, ir_version=10), tmp_path)


def sparse(places: list[int], *dims: int) -> onnx.SparseTensorProto:
    values = helper.make_tensor("k", TensorProto.FLOAT, [2], [1.5, -2.0])
    rank = [2, len(places) // 2] if len(places) > 2 else [2]
    return helper.make_sparse_tensor(values, helper.make_tensor("places", TensorProto.INT64, rank, places), dims)


@pytest.mark.parametrize("places", [[1, 5], [0, 1, 1, 1]], ids=["counted", "by dimension"])
@pytest.mark.parametrize("initialiser", [False, True])
def test_a_sparse_constant_is_written_out(places: list[int], initialiser: bool, tmp_path: Path) -> None:
    nodes = [helper.make_node("Constant", [], ["k"], sparse_value=sparse(places, 2, 4))]
    nodes.append(helper.make_node("Add", ["x", "k"], ["y"]))
    found = model(nodes[initialiser:], {"x": (1, 4)}, {"y": (2, 4)})
    if initialiser:
        found.graph.sparse_initializer.append(sparse(places, 2, 4))
    assert compared(found, tmp_path) == ["Add"]
    assert not onnx.load(prepare(str(tmp_path / "m.onnx"), {}, tmp_path).path).graph.sparse_initializer


@pytest.mark.parametrize(("places", "size"), [([1, 5], 4), ([1, 5], 2**40), ([-1, 3], 4), ([-1, 3, 0, 1], 4)])
def test_a_sparse_constant_that_lies_is_refused(places: list[int], size: int, tmp_path: Path) -> None:
    nodes = [helper.make_node("Constant", [], ["k"], sparse_value=sparse(places, size))]
    nodes.append(helper.make_node("Add", ["x", "k"], ["y"]))
    path = save(model(nodes, {"x": (1, 1)}, {"y": (1, size)}), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="sparse constant 'k'"):
        prepare(path, {}, tmp_path)
