"""Operators on quantised values (`QLinearConv`, `QLinearAdd`, ...) as operators on numbers, between conversions. That
is the other form in which ONNX Runtime's quantiser writes a network. What it computes between DequantizeLinear and
QuantizeLinear is the same, and `quantised` knows which of it can be computed in integers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tunery.dialects.metaschedule.importing.segments.graph import Graph

_MICROSOFT = "com.microsoft"
_PLAIN = {
    "QLinearAdd": ("Add", 2), "QLinearMul": ("Mul", 2), "QLinearAveragePool": ("AveragePool", 1),
    "QLinearGlobalAveragePool": ("GlobalAveragePool", 1), "QLinearLeakyRelu": ("LeakyRelu", 1),
    "QLinearSigmoid": ("Sigmoid", 1), "QLinearSoftmax": ("Softmax", 1),
}  # fmt: skip
"""Operators that take values with their scales and zero points, then the result's: the operator on numbers, and how
many values."""
_LAYOUT, _OPSET, _SOFTMAX_OPSET = "channels_last", "opset", 13
_DATA, _WEIGHTS, _BIAS, _GEMM_RESULT = 3, 6, 8, 7
"""Behind which input each part of a product ends, and where QGemm's result begins."""


def converted(graph: Graph, node: onnx.NodeProto) -> bool:
    return _is_known(node) and _fits(node, graph.constants)


def _is_known(node: onnx.NodeProto) -> bool:
    known = node.op_type in _RULES
    return known and (node.domain == _MICROSOFT or node.op_type in {"QLinearConv", "QLinearMatMul"})


def _fits(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> bool:
    """Return whether scales and zero points are constant, and the attributes known to the operator on numbers."""
    given = list(node.input)
    attributes = {one.name: helper.get_attribute_value(one) for one in node.attribute}
    if attributes.get(_LAYOUT) or attributes.get(_OPSET, _SOFTMAX_OPSET) < _SOFTMAX_OPSET:
        return False
    if node.op_type in _PLAIN:
        told = [name for at, name in enumerate(given) if at % _DATA or at == _DATA * _PLAIN[node.op_type][1]]
    elif node.op_type == "QLinearConcat":
        told = [*given[:2], *(name for at, name in enumerate(given[2:]) if at % _DATA)]
    else:
        told = [*given[1:_WEIGHTS], *given[_WEIGHTS:_BIAS]] if node.op_type != "QGemm" else given[1:]
        if node.op_type == "QGemm":
            told = [name for at, name in enumerate(told) if name or at + 1 == _WEIGHTS]  # without a bias
            if attributes.get("alpha", 1.0) != 1.0 or attributes.get("transA"):
                return False
    return all(name in constants for name in told if name) and all(told[:2])


class _Numbers:
    """Writes conversions, with the shapes of the values between them."""

    def __init__(self, model: onnx.ModelProto) -> None:
        graph = model.graph
        self.constants = {tensor.name: tensor for tensor in graph.initializer}
        self._types = {value.name: value.type for value in (*graph.input, *graph.value_info, *graph.output)}
        self.nodes: list[onnx.NodeProto] = []
        self.new: list[onnx.TensorProto] = []
        self.values: list[onnx.ValueInfoProto] = []
        self._count = 0

    def array(self, name: str) -> Any:
        return numpy_helper.to_array(self.constants[name])

    def constant(self, array: Any) -> str:
        self._count += 1
        self.new.append(numpy_helper.from_array(array, f"dequantised{self._count}/tunery"))
        return str(self.new[-1].name)

    def real(self, given: Sequence[str], axis: int = 0) -> str:
        return self._named("DequantizeLinear", given, given[0], axis=axis)

    def steps(self, node: onnx.NodeProto, kind: str, given: Sequence[str], result: Sequence[str], **more: Any) -> None:
        """Add an operator on numbers whose result is quantised to a node's, as its scale and zero point tell."""
        attributes = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        attributes = {name: value for name, value in attributes.items() if name not in {_LAYOUT, _OPSET, "alpha"}}
        made = self._named(kind, given, node.output[0], node.name, **attributes | more)
        self.nodes.append(helper.make_node("QuantizeLinear", [made, *result], node.output))

    def _named(self, kind: str, given: Sequence[str], like: str, label: str = "", **attributes: Any) -> str:
        self._count += 1
        name = f"{like}/tunery_{kind}{self._count}"
        self.nodes.append(helper.make_node(kind, given, [name], label, **attributes))
        if like in self._types:
            value = onnx.ValueInfoProto(name=name)
            value.type.CopyFrom(self._types[like])
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
            self.values.append(value)
        return name

    def bias(self, name: str, data_scale: str, weights_scale: str) -> str:
        scale = (self.array(data_scale).reshape(()) * self.array(weights_scale)).astype(np.float32)
        scale = scale.reshape(()) if scale.size == 1 else scale.reshape(-1)
        return self.real([name, self.constant(scale), self.constant(np.zeros(scale.shape, np.int32))])


def _plain(node: onnx.NodeProto, numbers: _Numbers) -> None:
    kind, count = _PLAIN[node.op_type]
    given = [numbers.real(node.input[_DATA * at : _DATA * at + _DATA]) for at in range(count)]
    more = {one.name: one.f for one in node.attribute if one.name == "alpha"}
    numbers.steps(node, kind, given, node.input[_DATA * count :], **more)


def _concatenation(node: onnx.NodeProto, numbers: _Numbers) -> None:
    given = [numbers.real(node.input[at : at + _DATA]) for at in range(2, len(node.input), _DATA)]
    numbers.steps(node, "Concat", given, node.input[:2])


def _convolution(node: onnx.NodeProto, numbers: _Numbers) -> None:
    given = [numbers.real(node.input[:_DATA]), numbers.real(node.input[_DATA:_WEIGHTS])]
    if len(node.input) > _BIAS and node.input[_BIAS]:
        given.append(numbers.bias(node.input[_BIAS], node.input[1], node.input[4]))
    numbers.steps(node, "Conv", given, node.input[_WEIGHTS:_BIAS])


def _product(node: onnx.NodeProto, numbers: _Numbers) -> None:
    given = [numbers.real(node.input[:_DATA]), numbers.real(node.input[_DATA:_WEIGHTS], axis=1)]
    numbers.steps(node, "MatMul", given, node.input[_WEIGHTS:_BIAS])


def _gemm(node: onnx.NodeProto, numbers: _Numbers) -> None:
    turned = any(one.name == "transB" and one.i for one in node.attribute)
    given = [numbers.real(node.input[:_DATA]), numbers.real(node.input[_DATA:_WEIGHTS], axis=0 if turned else 1)]
    if len(node.input) > _WEIGHTS and node.input[_WEIGHTS]:
        given.append(numbers.bias(node.input[_WEIGHTS], node.input[1], node.input[4]))
    result = [name for name in node.input[_GEMM_RESULT:] if name]
    if result:
        numbers.steps(node, "Gemm", given, result)
    else:
        numbers.nodes.append(helper.make_node("Gemm", given, node.output, node.name, transB=int(turned)))


_RULES: dict[str, Callable[[onnx.NodeProto, _Numbers], None]] = {
    **dict.fromkeys(_PLAIN, _plain),
    "QLinearConcat": _concatenation,
    "QLinearConv": _convolution,
    "QLinearMatMul": _product,
    "QGemm": _gemm,
}

OPERATORS = frozenset(_RULES)


def in_numbers(model: onnx.ModelProto, *, products: bool) -> onnx.ModelProto:
    """Return the model with such operators between conversions; itself if it has none. Products of matrices are left
    where no `products` are computed in integers then."""
    numbers = _Numbers(model)
    found = False
    for node in model.graph.node:
        if _is_known(node) and _fits(node, numbers.constants) and _is_matrix(node, numbers, products=products):
            found = True
            _RULES[node.op_type](node, numbers)
        else:
            numbers.nodes.append(node)
    if not found:
        return model
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    del changed.graph.node[:]
    changed.graph.node.extend(numbers.nodes)
    changed.graph.initializer.extend(numbers.new)
    changed.graph.value_info.extend(numbers.values)
    return changed


def with_scales_apart(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with an array of one element for each weight's scale that is times one found at run time. A
    number would be part of the program: products that differ by it alone would be tasks of their own."""
    graph = model.graph
    found = {node.output[1] for node in graph.node if node.op_type == "DynamicQuantizeLinear"}
    if not found:
        return model
    scalars = {tensor.name: tensor for tensor in graph.initializer if not tensor.dims}
    with_axes = {value.name for value in graph.value_info if value.type.tensor_type.shape.dim}
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    read = {value.name for value in graph.output}  # where a number and an array of one are not the same
    for node in graph.node:
        if node.op_type != "Mul" or not with_axes.intersection(node.input):
            read.update(node.input)
    for node in changed.graph.node:
        if node.op_type != "Mul" or node.output[0] in read or not found.intersection(node.input):
            continue
        for at, name in enumerate(node.input):
            if name in scalars:
                apart = changed.graph.initializer.add()
                apart.CopyFrom(scalars[name])
                apart.name = node.input[at] = f"{node.output[0]}/tunery_scale"
                apart.dims.append(1)
    return changed


def _is_matrix(node: onnx.NodeProto, numbers: _Numbers, *, products: bool) -> bool:
    """Return whether a product is one with a constant matrix; of any other operator whatever."""
    if node.op_type != "QLinearMatMul":
        return True
    weights = numbers.constants.get(node.input[_DATA])
    return products and weights is not None and len(weights.dims) == 2 and numbers.array(node.input[1]).size == 1
