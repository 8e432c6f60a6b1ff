"""Products with constant weights of 4 bits in blocks: MatMulNBits of com.microsoft, or DequantizeLinear before."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper
from onnx.external_data_helper import uses_external_data

from tunery.dialects.metaschedule._tvm import relax, tvm
from tunery.dialects.metaschedule.importing.rules.common import emitter, shape_of
from tunery.dialects.metaschedule.loading.preparing import DOT_CHANNELS, DOT_DEPTH, dot_groups
from tunery.dialects.metaschedule.variants import nibbles

_LOW, _BITS = 15, 4
_MANY = 16  # rows, from which on weights are scaled once for all of them
_BYTES = 4  # the accuracy level that bytes of data are enough for

Array = npt.NDArray[Any]


def product(builder: Any, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
    """Multiply by a matrix of 4 bits, with bytes of data where that is accurate enough and the target has products."""
    data, weights, scales, zeros, _, bias = (*inputs, None, None, None)[:6]
    run, sizes = emitter(builder), shape_of(inputs[0], "MatMulNBits")
    if len(sizes) == 1:
        data = run(relax.op.reshape(data, [1, *sizes]))
    channels, depth, block = (int(attributes[name]) for name in ("N", "K", "block_size"))
    blocks = depth // block
    target = tvm.target.Target.current(allow_none=True)
    in_bytes = int(attributes.get("accuracy_level", 0)) == _BYTES and target is not None and nibbles.supported(target)
    bits = numbers(weights.value.numpy().reshape(channels, depth // 2))
    given = [
        relax.const(packed(bits, DOT_DEPTH if in_bytes else 1)),
        relax.const(_grouped(scales.value.numpy().reshape(channels, blocks))),
    ]
    if zeros is not None:
        points = numbers(zeros.value.numpy().reshape(channels, -1))[:, :blocks]
        given.append(relax.const(_grouped(points)))
    few = math.prod(sizes[:-1]) < _MANY
    form = nibbles.quantised if in_bytes else nibbles.exact if few else nibbles.dequantised

    def expression(data: Any, weights: Any, scales: Any, zeros: Any = None) -> Any:
        return form(data, weights, scales, zeros, channels)

    made = run(builder.call_te(expression, data, *given, primfunc_name_hint="matmul_4_bits"))
    if len(sizes) == 1:
        made = run(relax.op.reshape(made, [channels]))
    return made if bias is None else relax.op.add(made, bias)


def numbers(array: Array) -> Array:
    """Return the numbers of 4 bits in the bytes of a row, that in the low bits first.

    >>> numbers(np.array([[0x21, 0x43]], np.uint8))
    array([[1, 2, 3, 4]], dtype=uint8)
    """
    return np.stack([array & _LOW, array >> _BITS], -1).reshape(len(array), -1)


def packed(weights: Array, side: int) -> Array:
    """Return weights (channels x depth) in vectors of channels, with zeros behind the last. A byte has two numbers that
    are `side` apart, of which as many are side by side: that in the low bits comes first."""
    both = _grouped(weights.reshape(len(weights), -1, 2, side))
    made: Array = both[..., 0, :] | both[..., 1, :] << _BITS
    return made if side > 1 else made[..., 0]


def _grouped(array: Array) -> Array:
    """Return an array of channels as vectors of 16 of them: channels / 16 x the second axis x 16 x the others."""
    groups = dot_groups(len(array))
    wide = np.pad(array, [(0, groups * DOT_CHANNELS - len(array)), *((0, 0) for _ in array.shape[1:])])
    apart = wide.reshape(groups, DOT_CHANNELS, *array.shape[1:])
    return np.ascontiguousarray(apart.swapaxes(1, 2))


# -- the graph ------------------------------------------------------------------------------------------------------


def as_products(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with products of weights that are dequantised in blocks as MatMulNBits; itself without such."""
    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer if not uses_external_data(tensor)}
    made_by = {node.output[0]: node for node in graph.node if node.op_type == "DequantizeLinear"}
    found = [(at, _Weights.of(node, made_by, constants)) for at, node in enumerate(graph.node)]
    taken = [(at, weights) for at, weights in found if weights is not None]
    if not taken:
        return model
    outputs = [value.name for value in graph.output]
    read_by = Counter([name for node in graph.node for name in node.input] + outputs)
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for at, weights in taken:
        node = graph.node[at]
        in_bytes = node.op_type == "MatMul" and read_by[node.input[1]] == 1  # as ONNX Runtime has it, if not told more
        changed.graph.node[at].CopyFrom(weights.product(node, _BYTES if in_bytes else 0))
        changed.graph.initializer.extend(weights.constants(node))
    read = {name for node in changed.graph.node for name in node.input}.union(outputs)
    kept = [node for node in changed.graph.node if node.op_type != "DequantizeLinear" or node.output[0] in read]
    del changed.graph.node[:]
    changed.graph.node.extend(kept)
    read = {name for node in kept for name in node.input}.union(outputs)
    used = [tensor for tensor in changed.graph.initializer if tensor.name in read]  # TVM reads none of 4 bits
    del changed.graph.initializer[:]
    changed.graph.initializer.extend(used)
    return changed


@dataclass(frozen=True)
class _Weights:
    """Weights of a product (channels x depth) in numbers of 4 bits, with their scales and zero points by block."""

    bits: Array
    scales: Array
    zeros: Array | None

    @classmethod
    def of(
        cls, node: onnx.NodeProto, made_by: Mapping[str, onnx.NodeProto], constants: Mapping[str, onnx.TensorProto]
    ) -> "_Weights | None":
        """Return the weights of a product that are dequantised in blocks of what is summed over, else None."""
        attributes = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        turned = bool(attributes.get("transB"))
        plain = node.op_type == "MatMul" or (node.op_type == "Gemm" and _is_plain(attributes))
        before = made_by.get(node.input[1]) if plain else None
        if before is None or any(name and name not in constants for name in before.input):
            return None
        told = {one.name: one.i for one in before.attribute}
        weights, scales, *zeros = (constants[name] for name in before.input if name)
        if weights.data_type not in _MIDDLES or len(weights.dims) != 2 or scales.data_type != onnx.TensorProto.FLOAT:
            return None
        block, axis = told.get("block_size", 0), 1 if turned else 0
        if told.get("axis", 1) % 2 != axis or block not in _BLOCKS or weights.dims[axis] % block:
            return None
        middle = _MIDDLES[weights.data_type]

        def by_channel(tensor: onnx.TensorProto) -> Array:
            array: Array = numpy_helper.to_array(tensor)
            return array if turned else array.T

        def unsigned(tensor: onnx.TensorProto) -> Array:
            return (by_channel(tensor).astype(np.int8) + middle).astype(np.uint8)

        points = unsigned(zeros[0]) if zeros else None
        if points is None and not middle:
            points = np.zeros(by_channel(scales).shape, np.uint8)
        return cls(unsigned(weights), by_channel(scales), points)

    def product(self, node: onnx.NodeProto, level: int) -> onnx.NodeProto:
        channels, depth = self.bits.shape
        bias = list(node.input[2:3])
        given = [node.input[0], *self._names(node), *([""] * (2 if self.zeros is None else 1) if bias else []), *bias]
        kind = {"N": channels, "K": depth, "bits": _BITS, "block_size": depth // self.scales.shape[1]}
        kind["accuracy_level"] = level
        return helper.make_node("MatMulNBits", given, node.output, node.name, domain="com.microsoft", **kind)

    def constants(self, node: onnx.NodeProto) -> list[onnx.TensorProto]:
        arrays = [_in_bytes(self.bits), self.scales, *([] if self.zeros is None else [_in_bytes(self.zeros)])]
        return [
            numpy_helper.from_array(np.ascontiguousarray(array), name)
            for array, name in zip(arrays, self._names(node), strict=True)
        ]

    def _names(self, node: onnx.NodeProto) -> list[str]:
        parts = ("bits", "scales") if self.zeros is None else ("bits", "scales", "zeros")
        return [f"{node.output[0]}/tunery_{part}" for part in parts]


_BLOCKS = frozenset({16, 32, 64, 128, 256})
"""What MatMulNBits is for."""
_MIDDLES = {onnx.TensorProto.INT4: 8, onnx.TensorProto.UINT4: 0}
"""What makes a number of 4 bits unsigned, by its type."""


def _is_plain(attributes: Mapping[str, Any]) -> bool:
    return not attributes.get("transA") and attributes.get("alpha", 1.0) == attributes.get("beta", 1.0) == 1.0


def _in_bytes(bits: Array) -> Array:
    even = np.pad(bits, [(0, 0), (0, bits.shape[1] % 2)])
    made: Array = even[:, 0::2] | even[:, 1::2] << _BITS
    return made
