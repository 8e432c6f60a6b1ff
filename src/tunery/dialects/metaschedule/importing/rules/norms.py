"""Normalisations."""

import math
from typing import Any

import numpy as np

from tunery._errors import DialectError
from tunery.dialects.metaschedule._tvm import relax, tvm
from tunery.dialects.metaschedule.importing.rules.common import (
    const_like,
    dtype_of,
    emit,
    emitter,
    reshaped_of,
    shape_of,
)
from tunery.dialects.metaschedule.importing.rules.convolutions import ROW
from tunery.dialects.metaschedule.importing.rules.elements import chain

_ONE_AXIS = 3
_CONVOLVED = (4, 5)


def layer_norm(builder: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    x, scale, bias = (*inputs, None)[:3]
    shape, kind = shape_of(x, "LayerNormalization"), x.ty.dtype.dtype
    first = int(attributes.get("axis", -1)) % len(shape)
    axes, epsilon = list(range(first, len(shape))), float(attributes.get("epsilon", 1e-5))
    wanted = shape[first:]
    outputs = int(attributes.get("tvm_custom", {}).get("num_outputs", 1))
    fits = shape_of(scale, "LayerNormalization") == wanted and (bias is None or shape_of(bias, "its bias") == wanted)
    y = None
    if fits:
        zero = relax.const(np.zeros(wanted, kind), kind) if bias is None else bias
        y = emit(builder, relax.op.nn.layer_norm(x, scale, zero, axes, epsilon))
        if outputs == 1:
            return y
    wide = x if kind in {"float32", "float64"} else emit(builder, relax.op.astype(x, "float32"))
    mean = emit(builder, relax.op.mean(wide, axes, keepdims=True))
    centred = emit(builder, relax.op.subtract(wide, mean))
    square = emit(builder, relax.op.multiply(centred, centred))
    spread = emit(builder, relax.op.mean(square, axes, keepdims=True))
    inverse = emit(builder, relax.op.rsqrt(emit(builder, relax.op.add(spread, const_like(epsilon, wide)))))
    if y is None:
        normal = emit(builder, relax.op.multiply(centred, inverse))
        y = emit(builder, relax.op.multiply(emit(builder, relax.op.astype(normal, kind)), scale))
        y = y if bias is None else emit(builder, relax.op.add(y, bias))
    return y if outputs == 1 else relax.Tuple([y, mean, inverse])


def lp_norm(builder: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    (x,) = inputs
    axis, order = int(attributes.get("axis", -1)), int(attributes.get("p", 2))
    size = emit(builder, relax.op.abs(x) if order == 1 else relax.op.multiply(x, x))
    norm = emit(builder, relax.op.sum(size, axis, keepdims=True))
    norm = norm if order == 1 else emit(builder, relax.op.sqrt(norm))
    empty = emit(builder, relax.op.equal(norm, const_like(0, x)))
    return relax.op.divide(x, emit(builder, relax.op.where(empty, const_like(1, x), norm)))


def mean_variance_norm(builder: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    """Subtract the mean and divide by the deviation; TVM's variance is a difference of two large numbers."""
    (x,) = inputs
    if attributes.get("across_channels", 0) or not attributes.get("normalize_variance", 1):
        raise DialectError("MeanVarianceNormalization has attributes of opset 8")
    run, axes = emitter(builder), [int(axis) for axis in attributes.get("axes", (0, 2, 3))]
    centred, variance = _moments(builder, x, axes)
    deviation = run(relax.op.add(run(relax.op.sqrt(variance)), const_like(1e-9, x)))
    return relax.op.divide(centred, deviation)


def _moments(builder: Any, x: Any, axes: list[int]) -> tuple[Any, Any]:
    run = emitter(builder)
    centred = run(relax.op.subtract(x, run(relax.op.mean(x, axes, keepdims=True))))
    return centred, run(relax.op.mean(run(relax.op.multiply(centred, centred)), axes, keepdims=True))


def group_norm(builder: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    """Normalise groups of channels; before opset 21 there is one scale for each group, then one for each channel."""
    x, scale, bias = inputs
    return _by_groups(builder, x, int(attributes["num_groups"]), (scale, bias), attributes)


def instance_norm(builder: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    """Normalise channels; where a reshape made them of groups, as PyTorch writes GroupNorm, in the shape before it."""
    x, scale, bias = inputs
    shape = shape_of(x, "InstanceNormalization")
    before = reshaped_of(builder, x)
    if before is not None:
        n, channels, *places = shape_of(before, "InstanceNormalization")
        if places and n == shape[0] and channels % shape[1] == 0:
            made = _by_groups(builder, before, shape[1], (scale, bias), attributes)
            return relax.op.reshape(emit(builder, made), shape)
    return _by_groups(builder, x, shape[1], (scale, bias), attributes)


def _by_groups(builder: Any, x: Any, count: int, affine: tuple[Any, Any], attributes: dict[str, Any]) -> Any:
    """Normalise groups of channels, then scale and shift; of one axis as of two, which have layouts. Of up to three
    axes nothing of the array's size is reshaped: means are taken channel by channel, and then of the channels of a
    group."""
    run, whole, kind = emitter(builder), shape_of(x, "its input"), dtype_of(x)
    if len(whole) == _ONE_AXIS:
        x = run(relax.op.expand_dims(x, ROW))
    elif len(whole) not in _CONVOLVED:
        x = run(relax.op.reshape(x, [*whole[:2], 1, math.prod(whole[2:])]))
    shape = shape_of(x, "its input")
    channels, rank = shape[1], len(shape)
    each = channels // count
    wide = x if kind == "float32" else run(relax.op.astype(x, "float32"))

    def mean(value: Any) -> Any:
        return run(relax.op.mean(value, list(range(1 if count == 1 else 2, rank)), keepdims=True))

    def by_group(value: Any) -> Any:
        return value if each == 1 or count == 1 else run(_mixed(value, _members(count, each) / each))

    def by_channel(value: Any) -> Any:
        return value if each == 1 or count == 1 else run(_mixed(value, _members(count, each).T))

    average = by_channel(by_group(mean(wide)))
    centred = run(relax.op.subtract(wide, average))
    variance = by_group(mean(run(relax.op.multiply(centred, centred))))
    epsilon = const_like(float(attributes.get("epsilon", 1e-5)), wide)
    inverse = by_channel(run(relax.op.rsqrt(run(relax.op.add(variance, epsilon)))))
    # Subtracted again: an array that two kernels read would be stored.
    normal = run(relax.op.multiply(run(relax.op.subtract(wide, average)), inverse))
    normal = normal if kind == "float32" else run(relax.op.astype(normal, kind))
    for operator, value, neutral in zip((relax.op.multiply, relax.op.add), affine, (1, 0), strict=True):
        if isinstance(value, tvm.ir.GenericConst) and (value.value.numpy() == neutral).all():
            continue
        by_place = value
        if shape_of(value, "its scale") != [channels]:
            by_place = run(relax.op.broadcast_to(run(relax.op.reshape(value, [count, 1])), [count, each]))
        normal = run(operator(normal, run(relax.op.reshape(by_place, [1, channels, *[1] * (rank - 2)]))))
    if len(whole) == _ONE_AXIS:
        return relax.op.squeeze(normal, [ROW])
    return normal if rank == len(whole) else relax.op.reshape(normal, whole)


def _members(count: int, each: int) -> Any:
    return np.repeat(np.eye(count, dtype=np.float32), each, 1)


def _mixed(value: Any, weights: Any) -> Any:
    """Return sums of channels: a convolution, which has every layout."""
    places = [1] * (int(value.ty.ndim) - 2)
    operator = relax.op.nn.conv2d if len(places) == 2 else relax.op.nn.conv3d
    return operator(value, relax.const(np.ascontiguousarray(weights.reshape(*weights.shape, *places))))


def rms_norm(builder: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    """Divide by the root of the mean square of all elements; None where an axis is left, for TVM's rule."""
    x, scale = inputs
    if int(attributes.get("axis", -1)) % len(shape_of(x, "RMSNormalization")):
        return None
    return _by_root(builder, x, scale, 0, float(attributes.get("epsilon", 1e-5)))[0]


def simplified(builder: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    x, scale = inputs
    axis = int(attributes.get("axis", -1)) % len(shape_of(x, "SimplifiedLayerNormalization"))
    y, inverse = _by_root(builder, x, scale, axis, float(attributes.get("epsilon", 1e-5)))
    return y if _outputs(attributes) == 1 else relax.Tuple([y, inverse])


def _by_root(builder: Any, x: Any, scale: Any, axis: int, epsilon: float) -> tuple[Any, Any]:
    run, kind = emitter(builder), dtype_of(x)
    wide = x if kind in {"float32", "float64"} else run(relax.op.astype(x, "float32"))
    axes = list(range(axis, len(shape_of(x, "its input"))))
    square = run(relax.op.mean(run(relax.op.multiply(wide, wide)), axes, keepdims=True))
    inverse = run(relax.op.rsqrt(run(relax.op.add(square, const_like(epsilon, wide)))))
    normal = run(relax.op.multiply(wide, inverse))
    normal = normal if wide is x else run(relax.op.astype(normal, kind))
    return run(relax.op.multiply(normal, scale)), inverse


def _outputs(attributes: dict[str, Any]) -> int:
    return int(attributes.get("tvm_custom", {}).get("num_outputs", 1))


def skip_layer_norm(builder: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    """Add what skips some layers, and a bias; the sum is the fourth output, its mean and deviation are the others."""
    x, skip, scale, shift, bias = (*inputs, None, None)[:5]
    total = _sum(builder, [x, skip, bias])
    made = layer_norm(builder, [total, scale, shift], {**_EPSILON, **attributes})
    return made if _outputs(attributes) == 1 else relax.Tuple([*made.fields, total])


def skip_simplified(builder: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    x, skip, scale, bias = (*inputs, None)[:4]
    total = _sum(builder, [x, skip, bias])
    rank = len(shape_of(total, "SkipSimplifiedLayerNormalization"))
    y, inverse = _by_root(builder, total, scale, rank - 1, float((_EPSILON | attributes)["epsilon"]))
    return y if _outputs(attributes) == 1 else relax.Tuple([y, inverse, inverse, total])


def embed_layer_norm(builder: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    """Look up words, places and segments, and normalise their sum; the outputs after it: lengths, and that sum."""
    words, segments, of_words, of_places, of_segments, scale, shift, mask, places = (*inputs, *[None] * 9)[:9]
    run = emitter(builder)
    batch, steps = shape_of(words, "EmbedLayerNormalization")
    found = [run(relax.op.take(of_words, words, axis=0, mode="clip"))]
    if places is None:
        rows = run(relax.op.strided_slice(of_places, [0], [0], [steps]))
        found.append(run(relax.op.expand_dims(rows, 0)))
    else:
        found.append(run(relax.op.take(of_places, places, axis=0, mode="clip")))
    if segments is not None:
        found.append(run(relax.op.take(of_segments, segments, axis=0, mode="clip")))
    total = _sum(builder, found)
    y = layer_norm(builder, [total, scale, shift], {**_EPSILON, **attributes, "tvm_custom": {}})
    lengths = relax.const(np.zeros(batch, np.int32))
    if mask is not None:
        lengths = run(relax.op.sum(mask, [1]))
    return y if _outputs(attributes) == 1 else relax.Tuple([y, lengths, total])


_EPSILON = {"epsilon": 1e-12}


def _sum(builder: Any, values: list[Any]) -> Any:
    return chain(relax.op.add)(builder, [one for one in values if one is not None], {})
