"""Which values of its inputs a network can read, traced backwards from what reads them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx
from onnx import numpy_helper

from tunery.domain import InputRange

_MOVES = frozenset(
    {"Identity", "Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Tile", "Slice", "Split"}
    | {"Concat", "Gather", "GatherElements", "GatherND", "Where", "DepthToSpace", "SpaceToDepth"}
)
"""Operators whose outputs hold their inputs' values."""
_AWARE = frozenset(
    {"ArgMax", "ArgMin", "Ceil", "Clip", "Equal", "Floor", "GlobalMaxPool", "Greater", "GreaterOrEqual", "Hardmax"}
    | {"IsInf", "IsNaN", "LeakyRelu", "Less", "LessOrEqual", "LogSoftmax", "Max", "MaxPool", "Min", "Mod", "PRelu"}
    | {"ReduceLogSumExp", "ReduceMax", "ReduceMin", "Relu", "Round", "Sign", "Softmax", "TopK", "Where", "Exp", "Log"}
    | {"Sigmoid", "Tanh", "Erf", "Softplus", "Gelu", "Elu", "HardSigmoid", "HardSwish", "Mish", "Sqrt", "Pow", "Cast"}
)
"""Operators to which an infinity, or NaN, is another case."""
_SUMS = frozenset({"Conv", "ConvTranspose", "MatMul", "Gemm", "Einsum", "LSTM", "GRU", "RNN", "Attention", "Resize"})
"""Operators behind which nothing but NaN is left of one infinity."""
_REARRANGED = frozenset({"Conv", "ConvTranspose", "Resize", "GridSample", "RoiAlign"})
"""Operators whose algorithms may multiply what they do not use by 0."""
_ORDERED = frozenset({"GlobalMaxPool", "MaxPool", "ReduceMax", "ReduceMin"})
"""Operators of which ONNX Runtime loses NaN, or not, by its place."""
_BOUNDED = frozenset(
    {"ArgMax", "ArgMin", "Clip", "Equal", "Greater", "GreaterOrEqual", "Hardmax", "IsInf", "IsNaN", "Less"}
    | {"LessOrEqual", "Sigmoid", "Softmax", "Tanh", "Erf"}
)
_NARROW = frozenset({"Max", "Min", "Mod", "Pow", "Range", "Sign"})
"""Operators that ONNX Runtime, as its sums and means, computes in floats or of 32 bits of a 64-bit integer."""
_KEEPS = frozenset({"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Tile"})
"""Operators whose outputs hold all values of their first input, and no others."""
_MASK = (0.0, 1.0)
_INDICES = {"Gather": 1, "GatherElements": 1, "ScatterElements": 1, "GatherND": 1, "ScatterND": 1, "RoiAlign": 2}
_COUNTS = {"LSTM": 4, "GRU": 4, "RNN": 4, "ReverseSequence": 1, "TopK": 1}
_TAKEN: Mapping[str, Mapping[int, tuple[float, float]]] = {
    "Attention": {3: _MASK},
    "BitShift": {1: (0, 7)},
    "Div": {1: (1, 64)},
    "Expand": {1: (1, 4)},
    "Loop": {0: (1, 4)},
    "Mod": {1: (1, 64)},
    "MultiHeadAttention": {4: _MASK},
    "NonMaxSuppression": {2: (1, 8)},
    "Pad": {1: (0, 2)},
    "Pow": {1: (0, 3)},
    "Range": {0: (0, 0), 1: (1, 8), 2: (1, 1)},
    "Slice": {1: (0, 0), 2: (1, 4), 4: (1, 1)},
    "Tile": {1: (1, 2)},
}
"""Which operand of an operator is an index, a count, or has values of its own."""
_COMPARE = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
_INTEGERS = frozenset(
    getattr(onnx.TensorProto, name)
    for name in ("INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32", "INT64", "UINT64", "BOOL")
)
_WIDE = frozenset({onnx.TensorProto.INT32, onnx.TensorProto.INT64})
_FEW = 4096
_ANY = (-math.inf, math.inf)
_Bounds = tuple[float, float]


def input_ranges(model: onnx.ModelProto) -> dict[str, InputRange]:
    tracer = _Tracer(model.graph)
    tracer.trace(model.graph)
    rows = tracer.rows_of(model.graph)
    return {
        value.name: replace(tracer.range_of(value.name), rows=rows.get(value.name, 0)) for value in model.graph.input
    }


class _Tracer:
    def __init__(self, graph: onnx.GraphProto) -> None:
        self._constants = {one.name: one for one in graph.initializer if math.prod(one.dims) <= _FEW}
        self._shapes = {one.name: tuple(one.dims) for one in graph.initializer}
        self._integers = {one.name for one in graph.initializer if one.data_type in _INTEGERS}
        for value in (*graph.input, *graph.value_info, *graph.output):
            self._shapes[value.name] = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
            if value.type.tensor_type.elem_type in _INTEGERS:
                self._integers.add(value.name)
        self._bounds: dict[str, _Bounds] = {}
        self._aware, self._rearranged, self._ordered, self._narrowed = (set[str]() for _ in range(4))

    def range_of(self, name: str) -> InputRange:
        low, high = self._bounds.get(name, _ANY)
        if low > high:
            low = high = max(0.0, min(low, high))
        special = name in self._aware and name not in self._rearranged and name not in self._integers
        return InputRange(
            None if low == -math.inf else low, None if high == math.inf else high, special,
            special and name not in self._ordered, name in self._integers and name not in self._narrowed,
        )  # fmt: skip

    def rows_of(self, graph: onnx.GraphProto) -> dict[str, int]:
        """Return the inputs all of whose values are indices of tables, and how many rows the smallest of these has."""
        whole = {value.name: value.name for value in graph.input if value.name in self._integers}
        rows: dict[str, int] = {}
        for node in graph.node:
            to = next((one.i for one in node.attribute if one.name == "to"), 0) if node.op_type == "Cast" else 0
            if node.input and node.input[0] in whole and (node.op_type in _KEEPS or to in _WIDE):
                whole[node.output[0]] = whole[node.input[0]]
            reads = node.op_type in {"Gather", "GatherElements"} and node.input[1] in whole
            if reads and (most := self._rows(node)) > 1:
                name = whole[node.input[1]]
                rows[name] = min(most, rows.get(name, most))
        return rows

    def trace(self, graph: onnx.GraphProto) -> None:
        for node in reversed(graph.node):
            for attribute in node.attribute:
                for body in (attribute.g, *attribute.graphs):
                    self.trace(body)
            self._read(node)
            self._meet(node)

    def _meet(self, node: onnx.NodeProto) -> None:
        outputs = set(node.output)
        if node.op_type in _AWARE or (node.op_type not in _SUMS and not self._aware.isdisjoint(outputs)):
            self._aware.update(node.input)
        if node.op_type in _ORDERED or not self._ordered.isdisjoint(outputs):
            self._ordered.update(node.input)
        sums = node.op_type.startswith("Reduce") and node.op_type not in _ORDERED
        if sums or node.op_type in _NARROW or not self._narrowed.isdisjoint(outputs):
            self._narrowed.update(node.input)
        passes = node.op_type not in _BOUNDED and not self._rearranged.isdisjoint(outputs)
        if node.op_type in _REARRANGED or passes:
            self._rearranged.update(node.input)

    def _read(self, node: onnx.NodeProto) -> None:
        """Narrow what a node reads to what it takes, and to what gives its outputs the values that others take."""
        inputs, kind = list(node.input), node.op_type
        bounds = _ANY
        for name in node.output:
            bounds = _both(bounds, self._bounds.get(name, _ANY))
        for at, taken in self._taken(node).items():
            if at < len(inputs):
                self._narrow(inputs[at], taken)
        if kind in _MOVES:
            moved = inputs if kind == "Concat" else inputs[1:] if kind == "Where" else inputs[:1]
            for name in moved:
                self._narrow(name, bounds)
        elif kind in {"Add", "Sub", "Mul"} and len(inputs) == 2:
            self._through(kind, inputs, bounds)

    def _through(self, kind: str, inputs: Sequence[str], bounds: _Bounds) -> None:
        low, high = bounds
        for at, name in enumerate(inputs):
            other = self._constant(inputs[1 - at])
            if other is None:
                if kind == "Add":
                    self._narrow(name, (low / 2, high / 2))
                continue
            least, most = float(other.min()), float(other.max())
            if kind == "Add":
                self._narrow(name, (low - least, high - most))
            elif kind == "Sub":
                self._narrow(name, (low + most, high + least) if at == 0 else (most - high, least - low))
                if at == 1 and least == most == 1:  # of a mask, the rest
                    self._narrow(name, (0, 1))
            elif least > 0:
                self._narrow(name, (low / least, high / most))

    def _taken(self, node: onnx.NodeProto) -> Mapping[int, _Bounds]:
        inputs, kind = list(node.input), node.op_type
        if kind in _INDICES:
            return {_INDICES[kind]: (0, max(0, self._rows(node) - 1))}
        if kind == "EmbedLayerNormalization":
            tables = {0: 2, 1: 4, 8: 3}
            rows = {at: self._shapes.get(inputs[table], (1,))[0] for at, table in tables.items() if table < len(inputs)}
            return {at: (0, max(0, count - 1)) for at, count in rows.items()}
        if kind in _COMPARE or kind == "OneHot":
            return self._compared(inputs) if kind in _COMPARE else self._depth(inputs[1])
        if kind == "Cast" and any(one.name == "to" and one.i == onnx.TensorProto.BOOL for one in node.attribute):
            return {0: _MASK}
        if kind in _COUNTS:
            return {_COUNTS[kind]: (1, max(1, self._rows(node)))}
        is_float = kind in {"Div", "Mod", "Pow"} and inputs[1] not in self._integers
        return {} if is_float else _TAKEN.get(kind, {})

    def _rows(self, node: onnx.NodeProto) -> int:
        """Return how many places along its axis a node's data has, or along any, where several are indexed."""
        data = self._shapes.get(node.input[0], ()) if node.input else ()
        axis = next((one.i for one in node.attribute if one.name == "axis"), 0)
        several = node.op_type not in {"Gather", "GatherElements", "ScatterElements", "RoiAlign"}
        return min(data, default=1) if several else data[axis] if -len(data) <= axis < len(data) else 1

    def _depth(self, name: str) -> Mapping[int, _Bounds]:
        depth = self._constant(name)
        return {0: (0, 7 if depth is None else float(depth.min()) - 1), 1: (1, 8)}

    def _compared(self, inputs: Sequence[str]) -> Mapping[int, _Bounds]:
        found: dict[int, _Bounds] = {}
        for at in (0, 1):
            other = self._constant(inputs[1 - at])
            if other is not None and other.dtype.kind in "iu" and abs(other).max(initial=0) <= _FEW:
                found[at] = float(other.min()), float(other.max()) + 1
        return found

    def _constant(self, name: str) -> np.ndarray | None:
        tensor = self._constants.get(name)
        if tensor is None or tensor.data_location == onnx.TensorProto.EXTERNAL or not math.prod(tensor.dims):
            return None
        return np.asarray(numpy_helper.to_array(tensor))

    def _narrow(self, name: str, bounds: _Bounds) -> None:
        self._bounds[name] = _both(self._bounds.get(name, _ANY), bounds)


def _both(one: _Bounds, other: _Bounds) -> _Bounds:
    return max(one[0], other[0]), min(one[1], other[1])
