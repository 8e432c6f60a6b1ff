"""Products of quantised matrices."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tunery._errors import DialectError
from tunery.dialects.metaschedule._tvm import relax, tvm
from tunery.dialects.metaschedule.importing.integers.quantised import as_taken, convolved, shift_of, sums_inside
from tunery.dialects.metaschedule.importing.rules.common import const_like, dtype_of, emitter, shape_of, text_of

_RANGES = {"uint8": (0, 255), "int8": (-128, 127)}
_MOST_STEPS, _PLANE = 255.0, 4
_LEAST_CHANNELS, _MOST_CHANNELS, _MOST_COLUMNS = 16, 64, 32  # of the plane that an array is reshaped to for its range


def fused_matmul(builder: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    """Multiply matrices that are first turned over, and scale the result (FusedMatMul of com.microsoft)."""
    if attributes.get("transBatchA") or attributes.get("transBatchB"):
        raise DialectError("it exchanges the batch with the rows")
    run = emitter(builder)

    def turned(value: Any, name: str) -> Any:
        rank = len(shape_of(value, "FusedMatMul"))
        axes = [*range(rank - 2), rank - 1, rank - 2]
        return run(relax.op.permute_dims(value, axes)) if attributes.get(name) and rank > 1 else value

    made = run(relax.op.matmul(turned(inputs[0], "transA"), turned(inputs[1], "transB")))
    factor = attributes.get("alpha", 1.0)
    return made if factor == 1 else relax.op.multiply(made, const_like(factor, made))


def fused_gemm(builder: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    """Multiply matrices, scale the product, leave out what is scaled by 0; with an activation in FusedGemm."""
    a, b, c = (*inputs, None)[:3]
    run = emitter(builder)
    a, b = (
        run(relax.op.permute_dims(one)) if attributes.get(name) else one for one, name in ((a, "transA"), (b, "transB"))
    )
    made = run(relax.op.matmul(a, b))
    if (factor := attributes.get("alpha", 1.0)) != 1:
        made = run(relax.op.multiply(made, const_like(factor, made)))
    if c is not None and (share := attributes.get("beta", 1.0)):
        c = c if share == 1 else run(relax.op.multiply(c, const_like(share, c)))
        made = run(relax.op.add(made, c))
    gate = text_of(attributes.get("activation", ""))
    if gate == "LeakyRelu":
        return relax.op.nn.leakyrelu(made, float(attributes.get("activation_alpha", 0.01)))
    gates = {"Relu": relax.op.nn.relu, "Sigmoid": relax.op.sigmoid, "Tanh": relax.op.tanh}
    return gates[gate](made) if gate else made


def quantise_dynamically(builder: Any, inputs: list[Any], _: dict[str, Any]) -> Any:
    """Quantise to steps of 0 to 255 by the values' own range, which reaches to zero; all zeros have steps of one."""
    [x] = inputs
    run = emitter(builder)
    zero, most = const_like(0.0, x), const_like(_MOST_STEPS, x)
    plane = run(relax.op.reshape(x, _as_plane(math.prod(shape_of(x, "DynamicQuantizeLinear")))))

    def extreme(found: Callable[..., Any]) -> Any:
        return run(found(run(found(plane, [1, 2]))))

    low = run(relax.op.minimum(extreme(relax.op.min), zero))
    extent = run(relax.op.subtract(run(relax.op.maximum(extreme(relax.op.max), zero)), low))
    flat = run(relax.op.equal(extent, zero))
    scale = run(relax.op.where(flat, const_like(1.0, x), run(relax.op.divide(extent, most))))

    def bounded(value: Any) -> Any:
        return run(relax.op.minimum(run(relax.op.maximum(value, zero)), most))

    point = run(relax.op.round(bounded(run(relax.op.subtract(zero, run(relax.op.divide(low, scale)))))))
    steps = run(relax.op.round(run(relax.op.divide(x, scale))))
    made = run(relax.op.astype(bounded(run(relax.op.add(steps, point))), "uint8"))
    return relax.Tuple([made, scale, run(relax.op.astype(point, "uint8"))])


def _as_plane(size: int) -> list[int]:
    """Return a shape of so many elements, that of an image with channels last: threads reduce it in vectors.

    >>> _as_plane(128 * 512), _as_plane(197 * 192), _as_plane(30)
    ([1, 32, 32, 64], [1, 591, 1, 64], [1, 1, 30, 1])
    """
    channels = min(size & -size, _MOST_CHANNELS)
    if channels < _LEAST_CHANNELS:
        return [1, 1, size, 1]
    places = size // channels
    columns = min(places & -places, _MOST_COLUMNS)
    return [1, places // columns, columns, channels]


def integer_matmul(builder: Any, inputs: Sequence[Any], _: Mapping[str, Any]) -> Any:
    """Multiply by a constant matrix of 8 bits: what zero points add are its columns' sums, so all else is of bytes.
    None where there is no such matrix."""
    data, kernel, point, zero = (*inputs, None, None)[:4]
    weights = _centred(kernel, zero)
    if weights is None or weights.ndim != 2 or not _is_one(point):
        return None
    run = emitter(builder)
    sums = run(relax.op.matmul(as_taken(run, data), relax.const(weights, "int8"), out_dtype="int32"))
    return _less_zeros(run, sums, data, point, weights.astype(np.int32).sum(axis=0))


def integer_convolution(builder: Any, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
    """Do as `integer_matmul` for a 2-D convolution."""
    data, kernel, point, zero = (*inputs, None, None)[:4]
    run = emitter(builder)
    weights = _centred(kernel, zero)
    padded = text_of(attributes.get("auto_pad", "NOTSET")) != "NOTSET"
    if weights is None or weights.ndim != _PLANE or not _is_one(point) or padded:
        raise DialectError("its weights are not constant, or it is not a plain 2-D convolution")
    sums = run(convolved(as_taken(run, data), relax.const(weights, "int8"), attributes))
    given, made = shape_of(data, "ConvInteger")[2:], shape_of(sums, "ConvInteger")[2:]
    zeros = sums_inside(weights.astype(np.int32).sum(axis=1), given, made, attributes)
    return _less_zeros(run, sums, data, point, zeros[None])


def _centred(kernel: Any, zero: Any) -> Any:
    """Return constant weights less their constant zero point where that fits 8 bits, else None."""
    constant = (tvm.ir.GenericConst, type(None))
    if not isinstance(kernel, tvm.ir.GenericConst) or not isinstance(zero, constant):
        return None
    weights = kernel.value.numpy().astype(np.int16)
    points = np.zeros((), np.int16) if zero is None else zero.value.numpy().astype(np.int16)
    if points.size > 1 and weights.ndim == _PLANE:
        points = points.reshape(-1, 1, 1, 1)
    centred = weights - (points.reshape(()) if points.size == 1 else points)
    low, high = _RANGES["int8"]
    fits = centred.shape == weights.shape and centred.min(initial=0) >= low and centred.max(initial=0) <= high
    return centred.astype(np.int8) if fits else None


def _is_one(point: Any) -> bool:
    return point is None or all(size == 1 for size in shape_of(point, "MatMulInteger"))


def _less_zeros(run: Any, sums: Any, data: Any, point: Any, zeros: Any) -> Any:
    shift = np.int32(shift_of(dtype_of(data)))
    if point is None:
        return run(relax.op.subtract(sums, relax.const(shift * zeros, "int32"))) if shift else sums
    wide = run(relax.op.reshape(run(relax.op.astype(point, "int32")), []))
    if shift:
        wide = run(relax.op.add(wide, relax.const(shift, "int32")))
    return relax.op.subtract(sums, run(relax.op.multiply(relax.const(zeros.astype(np.int32), "int32"), wide)))


def quantised_matmul(builder: Any, inputs: list[Any], _: dict[str, Any]) -> Any:
    """Multiply in 32-bit integers, then scale, round (ties to even) and saturate."""
    a, a_scale, a_zero, b, b_scale, b_zero, scale, zero = inputs
    run, rank = emitter(builder), len(shape_of(a, "QLinearMatMul"))

    def centred(value: Any, point: Any, *, rows: bool) -> Any:
        wide = run(relax.op.astype(value, "int32"))
        return run(relax.op.subtract(wide, along(run(relax.op.astype(point, "int32")), rows=rows)))

    def along(value: Any, *, rows: bool) -> Any:
        sizes = shape_of(value, "QLinearMatMul")
        return run(relax.op.reshape(value, [*sizes, 1])) if rows and rank > 1 and sizes and sizes[0] > 1 else value

    made = run(relax.op.matmul(centred(a, a_zero, rows=True), centred(b, b_zero, rows=False)))
    factor = run(relax.op.divide(run(relax.op.multiply(along(a_scale, rows=True), b_scale)), scale))
    scaled = run(relax.op.multiply(run(relax.op.astype(made, "float32")), run(relax.op.astype(factor, "float32"))))
    kind = dtype_of(zero)
    moved = run(relax.op.add(run(relax.op.round(scaled)), run(relax.op.astype(zero, "float32"))))
    low, high = (const_like(end, moved) for end in _RANGES[kind])
    kept = run(relax.op.minimum(run(relax.op.maximum(moved, low)), high))
    return relax.op.astype(kept, kind)
