"""Quantised networks in integers: a product between DequantizeLinear and QuantizeLinear becomes one of integers. A
product of `s (q - z)` and `s' q'` is `s s' (sum q q' - z sum q')`: the sums of the weights are known, so zero points
are part of the bias, and what is left is a product of 8-bit integers, summed up in 32 bits. Its result is scaled,
rounded (ties to even) and saturated as ONNX Runtime does it. Scales are arrays, not numbers in the program, so layers
that differ by them alone are one task."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from tunery._errors import DialectError
from tunery.dialects.metaschedule._tvm import relax, tvm
from tunery.dialects.metaschedule.loading.preparing import DOT_CHANNELS
from tunery.dialects.metaschedule.variants import dots

PRODUCT = "TuneryProduct"
"""The operator of a node that stands for a product in integers: data, weights, addend, factor, then zero and bias."""
_DOMAIN = "tunery"
_BYTE = 128
_RANGES = {"uint8": (0.0, 255.0), "int8": (-128.0, 127.0)}
_BYTES = {onnx.TensorProto.UINT8: "uint8", onnx.TensorProto.INT8: "int8"}
_FEW_SUMMED = 4
"""Channels of a group, which no dot products sum up: with more, float32 took 0.8 to 0.95 of the time with AVX2."""
_PLANE = 4  # dimensions of what a 2-D convolution takes

Array = npt.NDArray[Any]
Emit = Callable[[Any], Any]


# -- the graph ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Quantised:
    """A value as integers: their name, and the scale and the zero point, which are constant."""

    name: str
    scale: Array
    zero: Array


class _Products:
    """Finds the products of a model that can be computed in integers."""

    def __init__(self, model: onnx.ModelProto) -> None:
        graph = model.graph
        self._constants = {tensor.name: tensor for tensor in graph.initializer}
        self._made_by = {name: node for node in graph.node for name in node.output}
        self._readers: dict[str, list[onnx.NodeProto]] = {}
        for node in graph.node:
            for name in node.input:
                self._readers.setdefault(name, []).append(node)
        self._outputs = {value.name for value in graph.output}
        self._shapes = {
            value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
            for value in (*graph.input, *graph.value_info, *graph.output)
        }
        self._types = {value.name: value.type.tensor_type.elem_type for value in (*graph.input, *graph.value_info)}
        self.new: list[onnx.TensorProto] = []
        self.gone: set[int] = set()
        """The `id` of each quantisation that is part of a product."""

    def _constant(self, name: str) -> Array | None:
        return numpy_helper.to_array(self._constants[name]) if name in self._constants else None

    def _quantised(self, name: str) -> _Quantised | None:
        node = self._made_by.get(name)
        if node is None or node.op_type != "DequantizeLinear" or _attributes(node).get("block_size"):
            return None
        scale = self._constant(node.input[1])
        zero = self._constant(node.input[2]) if len(node.input) > 2 and node.input[2] else np.zeros(())
        if scale is None or zero is None or scale.dtype != np.float32:
            return None
        return _Quantised(node.input[0], scale, zero)

    def product(self, node: onnx.NodeProto) -> onnx.NodeProto | None:
        """Return the node that computes a product in integers, None where it has to stay."""
        attributes = _attributes(node)
        if node.op_type not in {"MatMul", "Gemm", "Conv"} or not _is_plain(node, attributes):
            return None
        data, weights = (self._quantised(name) for name in node.input[:2])
        kernel = None if weights is None else self._weights(weights, node, attributes)
        if data is None or weights is None or kernel is None or data.scale.size != 1 or data.zero.size != 1:
            return None
        kind = _BYTES.get(self._types.get(data.name, onnx.TensorProto.UNDEFINED))
        wide_groups = attributes.get("group", 1) > 1 and kernel.shape[1] > _FEW_SUMMED
        if kind is None or (wide_groups and not _has_wide_vectors()):
            return None
        channels = kernel.shape[0 if node.op_type == "Conv" else -1]
        if weights.scale.size not in {1, channels}:
            return None
        factor = np.broadcast_to(data.scale.reshape(-1) * weights.scale.reshape(-1), (channels,))
        addend = self._addend(node, attributes, kernel, int(data.zero.item()) + shift_of(kind))
        bias = self._bias(node, factor) if len(node.input) > 2 and node.input[2] else np.zeros(channels, np.int32)
        if addend is None or bias is None:
            return None
        behind: list[Array] = []
        if bias.dtype == np.int32:
            addend = addend + bias.reshape(-1, *[1] * (addend.ndim - 1))
        else:
            behind = [bias]
        return self._made(node, data.name, (kernel, addend.astype(np.int32), factor, behind))

    def _made(self, node: onnx.NodeProto, data: str, parts: tuple[Array, Array, Array, list[Array]]) -> onnx.NodeProto:
        kernel, addend, factor, bias = parts
        result, zero = node.output[0], np.zeros(1, np.float32)
        after = self._readers.get(result, [])
        target = self._target(after[0]) if len(after) == 1 and result not in self._outputs and not bias else None
        if target is not None:
            result, (scale, point) = after[0].output[0], target
            factor, zero = factor / scale, point
            self.gone.add(id(after[0]))
        attributes = {k: v for k, v in _attributes(node).items() if k in {"strides", "pads", "dilations", "group"}}
        named = [
            data,
            *(self._named(node, number, array) for number, array in enumerate((kernel, addend, factor, zero, *bias))),
        ]
        return onnx.helper.make_node(
            PRODUCT, named, [result], node.name, domain=_DOMAIN, kind=node.op_type, **attributes
        )

    def _target(self, node: onnx.NodeProto) -> tuple[Array, Array] | None:
        if node.op_type != "QuantizeLinear" or len(node.input) < 3:
            return None
        scale, zero = self._constant(node.input[1]), self._constant(node.input[2])
        known = scale is not None and zero is not None and scale.size == zero.size == 1
        if not known or scale.dtype != np.float32 or zero.dtype.name not in _RANGES:  # type: ignore[union-attr]
            return None
        return scale.reshape(()), zero.reshape(())  # type: ignore[union-attr]

    def _named(self, node: onnx.NodeProto, number: int, array: Array) -> str:
        name = f"{node.output[0]}/tunery{number}"
        self.new.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def _weights(self, given: _Quantised, node: onnx.NodeProto, attributes: Mapping[str, Any]) -> Array | None:
        """Return the weights less their zero point, if they are constant and that fits 8 bits; inputs x outputs."""
        array = self._constant(given.name)
        if array is None or array.dtype.name not in _RANGES or array.ndim != (_PLANE if node.op_type == "Conv" else 2):
            return None
        axis = _attributes(self._made_by[node.input[1]]).get("axis", 1) % array.ndim
        last = node.op_type != "Conv" and not attributes.get("transB")
        if given.scale.size > 1 and axis != (array.ndim - 1 if last else 0):
            return None
        zero = given.zero.astype(np.int16)
        if zero.size > 1:
            zero = zero.reshape([-1 if at == axis else 1 for at in range(array.ndim)])
        centred = array.astype(np.int16) - zero
        if centred.min(initial=0) < -_BYTE or centred.max(initial=0) >= _BYTE:
            return None
        return np.asarray(centred.T if attributes.get("transB") else centred, np.int8)

    def _addend(self, node: onnx.NodeProto, attributes: Mapping[str, Any], kernel: Array, zero: int) -> Array | None:
        """Return what is added to the sums for the data's zero point, at each place where it is padded."""
        wide = kernel.astype(np.int32)
        if node.op_type != "Conv":
            return np.asarray(-zero * wide.sum(axis=0))
        sums = wide.sum(axis=1)  # outputs x rows x columns
        if not zero or not any(attributes.get("pads", ())):
            return np.asarray(-zero * sums.sum(axis=(1, 2)))
        given, made = self._shapes.get(node.input[0]), self._shapes.get(node.output[0])
        if not given or not made or len(given) != _PLANE or len(made) != _PLANE:
            return None
        return -zero * sums_inside(sums, given[2:], made[2:], attributes)

    def _bias(self, node: onnx.NodeProto, factor: Array) -> Array | None:
        """Return the bias in steps of `factor` if it is given so, else as a float; None if it is not constant."""
        name = node.input[2]
        constant = self._constant(name)
        if constant is not None:
            fits = constant.dtype == np.float32 and constant.shape[-1:] == factor.shape and constant.size == factor.size
            return constant.reshape(-1) if fits else None
        given = self._quantised(name)
        steps = None if given is None else self._constant(given.name)
        if given is None or steps is None or steps.size != factor.size or given.zero.any():
            return None
        if steps.shape[-1:] != factor.shape:  # one for each row
            return None
        if np.allclose(given.scale.reshape(-1), factor, rtol=1e-5, atol=0):
            return steps.reshape(-1).astype(np.int32)
        return (steps.reshape(-1) * given.scale.reshape(-1)).astype(np.float32)

    def lookup(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        table = self._quantised(node.input[0]) if node.op_type == "Gather" else None
        if table is None or table.name not in self._constants or table.scale.size != 1 or table.zero.size != 1:
            return None
        inner, outer = onnx.NodeProto(), onnx.NodeProto()
        inner.CopyFrom(node)
        outer.CopyFrom(self._made_by[node.input[0]])
        inner.input[0], inner.output[0] = table.name, f"{node.output[0]}/tunery"
        outer.input[0], outer.output[0] = inner.output[0], node.output[0]
        return [inner, outer]

    def folded(self, node: onnx.NodeProto) -> bool:
        """Make a constant of dequantised constants; return whether that was done."""
        given = self._quantised(node.output[0]) if node.op_type == "DequantizeLinear" else None
        steps = None if given is None else self._constant(given.name)
        if given is None or steps is None:
            return False
        at = _attributes(node).get("axis", 1)
        shape = [-1 if one == at % steps.ndim else 1 for one in range(steps.ndim)] if given.scale.size > 1 else []
        zero, scale = (array.astype(np.float32).reshape(shape) for array in (given.zero, given.scale))
        self.new.append(numpy_helper.from_array((steps.astype(np.float32) - zero) * scale, node.output[0]))
        return True


def sums_inside(sums: Array, given: Sequence[int], made: Sequence[int], attributes: Mapping[str, Any]) -> Array:
    """Return the sums of a convolution's weights (outputs x rows x columns) that lie inside the data, by place."""
    inside = []
    for at in range(2):
        stride, step = ((attributes.get(name) or [1, 1])[at] for name in ("strides", "dilations"))
        pad = (attributes.get("pads") or [0, 0])[at]
        place = np.arange(made[at])[:, None] * stride + np.arange(sums.shape[1 + at]) * step - pad
        inside.append(((place >= 0) & (place < given[at])).astype(np.int32))
    return np.asarray(np.einsum("ya,xb,oab->oyx", *inside, sums))


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    found = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in found.items()}


def _is_plain(node: onnx.NodeProto, attributes: Mapping[str, Any]) -> bool:
    if node.op_type == "Gemm":
        return not attributes.get("transA") and attributes.get("alpha", 1.0) == attributes.get("beta", 1.0) == 1.0
    return attributes.get("auto_pad", "NOTSET") in {"NOTSET", "VALID"}


def in_integers(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with products of dequantised values computed in integers; itself if it has none."""
    if not any(node.op_type == "DequantizeLinear" for node in model.graph.node):
        return model
    products = _Products(model)
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        made = products.product(node)
        nodes += products.lookup(node) or [node] if made is None else [made]
    nodes = [node for node in nodes if id(node) not in products.gone]
    used = {name for node in nodes for name in node.input} | {value.name for value in model.graph.output}
    nodes = [n for n in nodes if n.op_type != "DequantizeLinear" or (n.output[0] in used and not products.folded(n))]
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    del changed.graph.node[:]
    changed.graph.node.extend(nodes)
    changed.graph.initializer.extend(products.new)
    return changed


# -- expressions ----------------------------------------------------------------------------------------------------


def _like(array: Array, value: Any, axis: int | None = None) -> Any:
    """Return an array as a constant that is broadcast to a value, along its `axis`: never a number in the program."""
    rank = len(value.ty.shape)
    shape = [1] * rank
    if axis is not None and array.size > 1:
        shape[axis] = array.size
    return relax.const(np.array(array.reshape(shape), order="C"), array.dtype.name)


def product(builder: Any, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
    emit: Emit = builder.normalize
    data, (kernel, addend, factor, zero, *bias) = inputs[0], (one.value.numpy() for one in inputs[1:])
    kind = attributes["kind"]
    is_conv = (kind.decode() if isinstance(kind, bytes) else kind) == "Conv"
    data = as_taken(emit, data)
    if is_conv:
        sums = emit(convolved(data, relax.const(kernel, "int8"), attributes))
    else:
        sums = emit(relax.op.matmul(data, relax.const(kernel, "int8"), out_dtype="int32"))
    axis = 1 if is_conv else -1
    more = relax.const(addend[None], "int32") if addend.ndim > 1 else _like(addend, sums, axis)
    wide = emit(relax.op.astype(emit(relax.op.add(sums, more)), "float32"))
    real = emit(relax.op.multiply(wide, _like(factor, wide, axis)))
    if bias:
        real = emit(relax.op.add(real, _like(bias[0], real, axis)))
    return saturated(emit, real, zero) if zero.dtype.name in _RANGES else real


def _instruction() -> dots.Instruction | None:
    target = tvm.target.Target.current(allow_none=True)
    return None if target is None else dots.instruction_of(target)


def _has_wide_vectors() -> bool:
    """Return whether the current target's vectors have 512 bits."""
    instruction = _instruction()
    return instruction is not None and instruction.lanes == DOT_CHANNELS


def _taken() -> str:
    instruction = _instruction()
    return "uint8" if instruction is None else instruction.data


def shift_of(kind: str) -> int:
    return 0 if kind == _taken() else _BYTE if kind == "int8" else -_BYTE


def as_taken(emit: Emit, data: Any) -> Any:
    """Return bytes as the processor's products take them: plus or less 128 where it takes the other type."""
    shift = shift_of(str(data.ty.dtype))
    if not shift:
        return data
    wide = emit(relax.op.astype(data, "int16"))
    return emit(relax.op.astype(emit(relax.op.add(wide, _like(np.array(shift, np.int16), wide))), _taken()))


def convolved(data: Any, kernel: Any, attributes: Mapping[str, Any]) -> Any:
    """Return a convolution of bytes, summed up in 32 bits."""
    pads = [int(pad) for pad in attributes.get("pads", (0, 0, 0, 0))]
    return relax.op.nn.conv2d(
        data,
        kernel,
        strides=[int(step) for step in attributes.get("strides", (1, 1))],
        padding=pads,
        dilation=[int(step) for step in attributes.get("dilations", (1, 1))],
        groups=int(attributes.get("group", 1)),
        out_dtype="int32",
    )


def saturated(emit: Emit, steps: Any, zero: Array, axis: int | None = None) -> Any:
    """Return numbers of steps rounded to integers of the zero point's type; it has one value, or those of an axis."""
    least, most = (np.array(bound, np.float32) for bound in _RANGES[zero.dtype.name])
    whole = emit(relax.op.add(emit(relax.op.round(steps)), _like(zero.astype(np.float32), steps, axis)))
    low = _like(least, whole)
    if whole.ty.ndim:
        above = emit(relax.op.maximum(whole, low))
    else:  # of a scalar, LLVM's largest may be either of two numbers where one is NaN
        above = emit(relax.op.where(emit(relax.op.greater(whole, low)), whole, low))
    bounded = emit(relax.op.minimum(above, _like(most, whole)))
    return relax.op.astype(bounded, zero.dtype.name)


def quantise(builder: Any, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
    """Return the rule's expression of QuantizeLinear, None unless its parameters are constant."""
    emit: Emit = builder.normalize
    _check_no_blocks(attributes)
    x, scale, zero = (*inputs, None)[:3]
    if not _are_constant(scale, zero) or str(zero.ty.dtype) not in _RANGES or str(x.ty.dtype) != "float32":
        return None
    axis = _axis(x, scale, attributes)
    steps = emit(relax.op.divide(x, _like(scale.value.numpy(), x, axis)))
    return saturated(emit, steps, zero.value.numpy(), axis)


def dequantise(builder: Any, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
    """Return the rule's expression of DequantizeLinear, None unless its parameters are constant."""
    emit: Emit = builder.normalize
    _check_no_blocks(attributes)
    x, scale, zero = (*inputs, None)[:3]
    if not _are_constant(scale, *([] if zero is None else [zero])) or str(scale.ty.dtype) != "float32":
        return None
    axis = _axis(x, scale, attributes)
    real = emit(relax.op.astype(x, "float32"))
    if zero is not None and zero.value.numpy().any():
        real = emit(relax.op.subtract(real, _like(zero.value.numpy().astype(np.float32), real, axis)))
    return relax.op.multiply(real, _like(scale.value.numpy(), real, axis))


def _check_no_blocks(attributes: Mapping[str, Any]) -> None:
    if attributes.get("block_size"):
        raise DialectError("it has a scale for each block of an axis")


def _are_constant(*values: Any) -> bool:
    return all(isinstance(value, tvm.ir.GenericConst) for value in values)


def _axis(x: Any, scale: Any, attributes: Mapping[str, Any]) -> int | None:
    rank = len(x.ty.shape)
    return int(attributes.get("axis", 1)) % rank if scale.value.numpy().size > 1 else None
