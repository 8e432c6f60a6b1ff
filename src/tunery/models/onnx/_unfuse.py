"""Operators that ONNX Runtime's optimiser put together are taken apart: compilers know the parts."""

from collections.abc import Callable, Iterator
from itertools import count

import onnx
from onnx import helper

_DOMAIN = "com.microsoft"
_QUICK = 1.702
_ACTIVATIONS = {"Relu": (), "Sigmoid": (), "Tanh": (), "LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta")}
"""Activations behind a convolution, with what the numbers in `activation_params` are called."""
_MOST_INPUTS = 3  # of a convolution; a fourth one is added to its result
_OTHER_KINDS = frozenset({onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16, onnx.TensorProto.DOUBLE})
_NAMING = frozenset({"to", "dtype", "value"})
"""Attributes that give a node's result its element type."""

Unfuse = Callable[[onnx.NodeProto, "_Names"], list[onnx.NodeProto]]
"""From a node to those that compute the same; none where it has to stay."""


class _Names:
    """Names for new values and constants that the graph does not have."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._graph = graph
        self._taken = {name for node in graph.node for name in (*node.input, *node.output)}
        self._numbers = count()

    def new(self) -> str:
        name = next(name for number in self._numbers if (name := f"unfused_{number}") not in self._taken)
        self._taken.add(name)
        return name

    def number(self, value: float) -> str:
        name = self.new()
        self._graph.initializer.append(helper.make_tensor(name, onnx.TensorProto.FLOAT, [], [value]))
        return name


def fused(model: onnx.ModelProto) -> list[str]:
    """Return the operators that `unfuse` looks at, in order; of a model in half or double precision none."""
    found = sorted({node.op_type for node in model.graph.node if _rule(node)})
    return found if found and _OTHER_KINDS.isdisjoint(_kinds(model.graph)) else []


def _kinds(graph: onnx.GraphProto) -> Iterator[int]:
    """Yield the element types that are named in a graph: those of operators of other domains cannot be inferred."""
    yield from (tensor.data_type for tensor in graph.initializer)
    yield from (value.type.tensor_type.elem_type for value in (*graph.input, *graph.output, *graph.value_info))
    for node in graph.node:
        yield from (one.t.data_type if one.HasField("t") else one.i for one in node.attribute if one.name in _NAMING)


def unfuse(model: onnx.ModelProto) -> None:
    if not fused(model):
        return
    names = _Names(model.graph)
    nodes = [part for node in model.graph.node for part in _parts(node, names)]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _parts(node: onnx.NodeProto, names: _Names) -> Iterator[onnx.NodeProto]:
    rule = _rule(node)
    yield from (rule(node, names) if rule else []) or [onnx.NodeProto.FromString(node.SerializeToString())]


def _rule(node: onnx.NodeProto) -> Unfuse | None:
    return _RULES.get(node.op_type) if node.domain == _DOMAIN else None


def _convolution(node: onnx.NodeProto, names: _Names) -> list[onnx.NodeProto]:
    attributes = {one.name: helper.get_attribute_value(one) for one in node.attribute}
    activation = attributes.pop("activation", b"").decode()
    given = attributes.pop("activation_params", [])
    keys = _ACTIVATIONS.get(activation)
    if keys is None or len(given) not in {0, len(keys)}:
        return []
    made = names.new()
    nodes = [helper.make_node("Conv", node.input[:_MOST_INPUTS], [made], node.name, **attributes)]
    if len(node.input) > _MOST_INPUTS and node.input[_MOST_INPUTS]:
        total = names.new()
        nodes.append(helper.make_node("Add", [made, node.input[_MOST_INPUTS]], [total]))
        made = total
    nodes.append(helper.make_node(activation, [made], node.output, **dict(zip(keys, given, strict=False))))
    return nodes


def _product(node: onnx.NodeProto, names: _Names) -> list[onnx.NodeProto]:
    attributes = {one.name: helper.get_attribute_value(one) for one in node.attribute}
    turned, factor = [attributes.get(name, 0) for name in ("transA", "transB")], attributes.get("alpha", 1.0)
    if any(turned) or attributes.get("transBatchA") or attributes.get("transBatchB"):
        return []  # which dimensions are exchanged depends on their number
    if factor == 1:
        return [helper.make_node("MatMul", node.input, node.output, node.name)]
    made = names.new()
    scaled = helper.make_node("Mul", [made, names.number(factor)], node.output)
    return [helper.make_node("MatMul", node.input, [made], node.name), scaled]


def _quick_gelu(node: onnx.NodeProto, names: _Names) -> list[onnx.NodeProto]:
    (x,), (alpha,) = node.input, [one.f for one in node.attribute if one.name == "alpha"] or [_QUICK]
    scaled, gate = names.new(), names.new()
    return [
        helper.make_node("Mul", [x, names.number(alpha)], [scaled]),
        helper.make_node("Sigmoid", [scaled], [gate]),
        helper.make_node("Mul", [x, gate], node.output, node.name),
    ]


_RULES: dict[str, Unfuse] = {"FusedConv": _convolution, "FusedMatMul": _product, "QuickGelu": _quick_gelu}
