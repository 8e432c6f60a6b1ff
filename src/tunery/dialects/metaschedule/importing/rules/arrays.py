"""Operators that move, select or combine elements along dimensions."""

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx

from tunery._errors import DialectError
from tunery.dialects.metaschedule._tvm import relax, tvm
from tunery.dialects.metaschedule.importing.rules.common import (
    Convert,
    const_like,
    dtype_of,
    emit,
    emitter,
    reshaped_of,
    shape_of,
    text_of,
)

_ROWS, _PLANES = 3, 4  # dimensions of a batch of rows, of images


def tile(builder: Any, inputs: list[Any], _: dict[str, Any]) -> Any:
    """Repeat by a broadcast along new dimensions: LLVM makes a wrong loop of TVM's remainders for some processors. Seen
    of a float32 array of 2x3x4x5 that is repeated 7x6x4x2 times, with LLVM 22 for `znver4`."""
    x, repeats = inputs
    shape = shape_of(x, "Tile")
    if not isinstance(repeats, tvm.ir.GenericConst):
        raise DialectError("Tile has repeats that are computed")
    counts = [int(count) for count in repeats.value.numpy()]
    apart = [size for pair in zip([1] * len(shape), shape, strict=True) for size in pair]
    wide = [size for pair in zip(counts, shape, strict=True) for size in pair]
    spread = emit(builder, relax.op.broadcast_to(emit(builder, relax.op.reshape(x, apart)), wide))
    return relax.op.reshape(spread, [count * size for count, size in zip(counts, shape, strict=True)])


def column_to_image(builder: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    x, image, block = inputs
    if not all(isinstance(one, tvm.ir.GenericConst) for one in (image, block)):
        raise DialectError("Col2Im has a size that is computed")
    sizes, kernel = ([int(size) for size in one.value.numpy()] for one in (image, block))
    rank = len(sizes)
    strides, dilations = ([int(one) for one in attributes.get(name, [1] * rank)] for name in ("strides", "dilations"))
    pads = [int(one) for one in attributes.get("pads", [0] * 2 * rank)]
    batch, columns, _ = shape_of(x, "Col2Im")
    counts = [
        (size + pads[d] + pads[rank + d] - dilations[d] * (kernel[d] - 1) - 1) // strides[d] + 1
        for d, size in enumerate(sizes)
    ]
    apart = emit(builder, relax.op.reshape(x, [batch, columns // math.prod(kernel), *kernel, *counts]))

    def summed(value: Any) -> Any:
        within = [tvm.te.reduce_axis((0, size), f"k{d}") for d, size in enumerate(kernel)]

        def term(n: Any, c: Any, *at: Any) -> Any:
            starts = [at[d] + pads[d] - within[d] * dilations[d] for d in range(rank)]
            fits = [
                tvm.tirx.all(start >= 0, start < count * stride, tvm.tirx.indexmod(start, stride) == 0)
                for start, stride, count in zip(starts, strides, counts, strict=True)
            ]
            places = [tvm.tirx.indexdiv(start, stride) for start, stride in zip(starts, strides, strict=True)]
            taken = tvm.tirx.if_then_else(tvm.tirx.all(*fits), value(n, c, *within, *places), 0.0)
            return tvm.te.sum(taken, within)

        return tvm.te.compute((batch, columns // math.prod(kernel), *sizes), term, "column_to_image")

    return builder.call_te(summed, apart, primfunc_name_hint="column_to_image")


def determinant(builder: Any, inputs: list[Any], _: dict[str, Any]) -> Any:
    (x,) = inputs
    shape = shape_of(x, "Det")

    def found(value: Any) -> Any:
        def by_rows(at: Sequence[Any], rows: Sequence[int], columns: Sequence[int]) -> Any:
            if not rows:
                return tvm.tirx.const(1, value.dtype)
            minors = (
                (-1) ** place * value(*at, rows[0], column) * by_rows(at, rows[1:], [c for c in columns if c != column])
                for place, column in enumerate(columns)
            )
            return functools.reduce(operator.add, minors)

        every = range(shape[-1])
        return tvm.te.compute(shape[:-2], lambda *at: by_rows(at, every, every), "determinant")

    return builder.call_te(found, x, primfunc_name_hint="determinant")


def cumulative(combined: Callable[..., Any]) -> Convert:
    """Return the rule of CumSum or CumProd: from the other end if `reverse`, each element left out if `exclusive`."""

    def rule(builder: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
        x, axis = inputs
        if not isinstance(axis, tvm.ir.GenericConst):
            raise DialectError("a cumulative operator has an axis that is computed")
        place, run = int(axis.value.numpy().reshape(-1)[0]), emitter(builder)
        reverse = bool(attributes.get("reverse", 0))
        x = run(relax.op.flip(x, place)) if reverse else x
        made = run(builder.call_te(combined, x, place, dtype_of(x), bool(attributes.get("exclusive", 0))))
        return relax.op.flip(made, place) if reverse else made

    return rule


def tensor_scatter(builder: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    """Put new steps in the place of some of a cache, from an index of each batch on; `circular`: around its end."""
    past, update, starts = (*inputs, None)[:3]
    sizes, steps = shape_of(past, "TensorScatter"), shape_of(update, "TensorScatter")
    axis = int(attributes.get("axis", -2)) % len(sizes)
    around = text_of(attributes.get("mode", "linear")) == "circular"
    starts = relax.const(np.zeros(sizes[0], np.int64)) if starts is None else starts

    def placed(past: Any, update: Any, starts: Any) -> Any:
        def value(*at: Any) -> Any:
            place = at[axis] - starts[at[0]].astype("int64")
            place = tvm.tirx.floormod(place, sizes[axis]) if around else place
            new = tvm.tirx.all(place >= 0, place < steps[axis])
            return tvm.tirx.if_then_else(new, update(*at[:axis], place, *at[axis + 1 :]), past(*at))

        return tvm.te.compute(sizes, value, "tensor_scatter")

    return builder.call_te(placed, past, update, starts, primfunc_name_hint="tensor_scatter")


def dropout(_: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    x = inputs[0]
    kept = relax.op.ones(shape_of(x, "Dropout"), "bool")
    return x if int(attributes.get("tvm_custom", {}).get("num_outputs", 1)) == 1 else relax.Tuple([x, kept])


def old_slice(_: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    """Cut by bounds that are attributes, as before opset 10; None where they are inputs, or a shape is cut."""
    x = inputs[0]
    if "starts" not in attributes or not hasattr(x.ty, "shape"):
        return None
    starts, ends = attributes["starts"], attributes["ends"]
    axes, shape = [int(axis) for axis in attributes.get("axes", range(len(starts)))], shape_of(x, "Slice")
    bounds = [
        slice(int(start), int(end)).indices(shape[axis]) for axis, start, end in zip(axes, starts, ends, strict=True)
    ]
    return relax.op.strided_slice(x, axes, [start for start, _, _ in bounds], [max(one[:2]) for one in bounds])


def eye_like(_: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    (x,) = inputs
    kind = onnx.helper.tensor_dtype_to_np_dtype(int(attributes["dtype"])).name if "dtype" in attributes else dtype_of(x)
    rows, columns = shape_of(x, "EyeLike")
    made = np.eye(rows, columns, k=int(attributes.get("k", 0)))
    return relax.const(made.astype(kind), kind)


def one_hot(builder: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    """Return one of two values, by whether an index is its place; None where they or their number are computed."""
    x, depth, values = inputs
    if not all(isinstance(one, tvm.ir.GenericConst) for one in (depth, values)):
        return None
    run, count = emitter(builder), int(depth.value.numpy().reshape(-1)[0])
    off, on = (relax.const(one, dtype_of(values)) for one in values.value.numpy())
    rank = len(shape_of(x, "OneHot"))
    axis = int(attributes.get("axis", -1)) % (rank + 1)
    at = run(relax.op.expand_dims(run(relax.op.astype(x, "int64")), axis))
    places = np.arange(count).reshape(count, *[1] * (rank - axis))
    found = [run(relax.op.equal(at, relax.const(one, "int64"))) for one in (places, places - count)]
    return relax.op.where(run(relax.op.logical_or(*found)), on, off)


def unsqueeze(_: Any, inputs: list[Any], __: dict[str, Any]) -> Any:
    """Take one axis that is no list, as torch's exporter writes it; None for others."""
    x, axes = (*inputs, None)[:2]
    if not isinstance(axes, tvm.ir.GenericConst) or axes.value.numpy().ndim or not hasattr(x.ty, "dtype"):
        return None
    return relax.op.expand_dims(x, int(axes.value.numpy()))


def concatenation(_: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    """Leave out what has no elements, as an empty cache: TVM loads no such constant. None where all have some."""
    full = [one for one in inputs if not _is_empty(one)]
    if not full or len(full) == len(inputs):
        return None
    return full[0] if len(full) == 1 else relax.op.concat(relax.Tuple(full), axis=int(attributes["axis"]))


def _is_empty(value: Any) -> bool:
    try:
        return any(int(size) == 0 for size in value.ty.shape)
    except (AttributeError, TypeError, ValueError):  # a shape, or of unknown size
        return False


def upsample(_: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    x, given = (*inputs, None)[:2]
    if given is not None and not isinstance(given, tvm.ir.GenericConst):
        raise DialectError("Upsample has scales that are computed")
    scales = [float(scale) for scale in (attributes["scales"] if given is None else given.value.numpy())]
    shape = shape_of(x, "Upsample")
    if len(shape) != _PLANES or scales[:2] != [1, 1] or any(scale % 1 for scale in scales):
        raise DialectError("Upsample has other scales than whole numbers of height and width")
    sizes = [int(scale) * size for scale, size in zip(scales[2:], shape[2:], strict=True)]
    method = "nearest_neighbor" if text_of(attributes.get("mode", "nearest")) == "nearest" else "linear"
    return relax.op.image.resize2d(
        x, sizes, layout="NCHW", method=method, coordinate_transformation_mode="asymmetric", rounding_method="floor"
    )


def place_of_extreme(*, largest: bool) -> Convert:
    """Return the rule of ArgMax or ArgMin: the first place of several, and of NaN only where that comes first."""

    def rule(builder: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
        [x] = inputs
        shape, kind = shape_of(x, "an extreme"), dtype_of(x)
        axis = int(attributes.get("axis", 0)) % len(shape)
        keep, last = bool(attributes.get("keepdims", 1)), bool(attributes.get("select_last_index", 0))
        best, worst = (tvm.tirx.max_value(kind), tvm.tirx.min_value(kind))
        if "float" in kind:
            best, worst = (tvm.tirx.const(end, kind) for end in (math.inf, -math.inf))
        best, worst = (best, worst) if largest else (worst, best)

        def combine(left: Any, right: Any) -> Any:
            better = right[1] > left[1] if largest else right[1] < left[1]
            nearer = right[0] > left[0] if last else right[0] < left[0]
            taken = tvm.tirx.any(better, tvm.tirx.all(right[1] == left[1], nearer))
            return tuple(tvm.tirx.Select(taken, right[side], left[side]) for side in (0, 1))

        def first(place: Any, value: Any) -> Any:
            return tvm.tirx.const(-1 if last else shape[axis], place), tvm.tirx.const(worst.value, value)

        def candidate(value: Any, place: Any) -> tuple[Any, Any]:
            if "float" not in kind:
                return place, value
            number = tvm.tirx.all(value <= value, value >= value)  # noqa: PLR0124 - not of NaN
            otherwise = tvm.tirx.Select(place == 0, best, worst)
            start = tvm.tirx.const(0, "int64")
            return tvm.tirx.Select(number, place, start), tvm.tirx.Select(number, value, otherwise)

        def found(values: Any) -> Any:
            within = tvm.te.reduce_axis((0, shape[axis]), "k")
            reducer = tvm.te.comm_reducer(combine, first, "place_of_extreme")

            def term(*at: Any) -> Any:
                before, after = at[:axis], at[axis + 1 if keep else axis :]
                place = within.var.astype("int64")
                return reducer(candidate(values(*before, within, *after), place), axis=within)

            sizes = [*shape[:axis], *([1] if keep else []), *shape[axis + 1 :]]
            return tvm.te.compute(sizes, term, "place_of_extreme")[0]

        return builder.call_te(found, x, primfunc_name_hint="argmax" if largest else "argmin")

    return rule


def hardmax(builder: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    [x], run = inputs, emitter(builder)
    shape = shape_of(x, "Hardmax")
    axis = int(attributes.get("axis", -1)) % len(shape)
    largest = run(place_of_extreme(largest=True)(builder, inputs, {"axis": axis}))
    places = np.arange(shape[axis]).reshape(-1, *[1] * (len(shape) - axis - 1))
    return relax.op.astype(run(relax.op.equal(largest, relax.const(places, "int64"))), dtype_of(x))


def extreme_of_truths(reduced: Callable[..., Any]) -> Convert:
    """Return the rule of ReduceMax or ReduceMin of truth values; None for others, and for axes that are computed."""

    def rule(builder: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
        x, axes = inputs[0], _axes(inputs, attributes)
        if axes is None or dtype_of(x) != "bool":
            return None
        if not axes and attributes.get("noop_with_empty_axes", 0):
            return x
        whole = emit(builder, relax.op.astype(x, "uint8"))
        made = reduced(whole, axes or None, keepdims=bool(attributes.get("keepdims", 1)))
        return relax.op.astype(emit(builder, made), "bool")

    return rule


def _axes(inputs: list[Any], attributes: dict[str, Any]) -> list[int] | None:
    given = (*inputs, None)[1]
    if given is not None and not isinstance(given, tvm.ir.GenericConst):
        return None
    return [int(axis) for axis in (attributes.get("axes", ()) if given is None else given.value.numpy().reshape(-1))]


def log_sum_exp(builder: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    """Take off the largest value where that is finite; None for axes that are computed."""
    x, axes = inputs[0], _axes(inputs, attributes)
    if axes is None:
        return None
    if not axes and attributes.get("noop_with_empty_axes", 0):
        return x
    run, keep = emitter(builder), bool(attributes.get("keepdims", 1))
    most = run(relax.op.max(x, axes or None, keepdims=True))
    finite = run(relax.op.less(run(relax.op.abs(most)), const_like(math.inf, x)))
    most = run(relax.op.where(finite, most, const_like(0, x)))
    total = run(relax.op.sum(run(relax.op.exp(run(relax.op.subtract(x, most)))), axes or None, keepdims=True))
    made = run(relax.op.add(run(relax.op.log(total)), most))
    return made if keep else relax.op.squeeze(made, axes or None)


def as_pooled(builder: Any, x: Any, operator: str, attributes: dict[str, Any]) -> Any:
    """Bound what is pooled where ONNX Runtime begins with the lowest finite number: rows, of which NaN is none, or all.
    Elsewhere it begins with -inf, or by its own place."""
    rows = len(shape_of(x, operator)) == _ROWS and set(attributes.get("dilations", [1])) == {1}
    if dtype_of(x) != "float32" or not (rows or operator == "GlobalMaxPool"):
        return x
    lowest = const_like(np.finfo(np.float32).min, x)
    if operator == "GlobalMaxPool":
        return emit(builder, relax.op.maximum(x, lowest))
    return emit(builder, relax.op.where(emit(builder, relax.op.greater(x, lowest)), x, lowest))


def reshaped_back(builder: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    """Return what had the wanted shape before; None of any other reshape."""
    x, wanted = (*inputs, None)[:2]  # before opset 5 the shape is an attribute
    before = reshaped_of(builder, x)
    if before is None or not isinstance(wanted, tvm.ir.GenericConst) or attributes.get("allowzero", 0):
        return None
    try:
        shape, known = shape_of(before, "Reshape"), shape_of(x, "Reshape")
    except DialectError:
        return None
    sizes = [known[at] if size == 0 else size for at, size in enumerate(map(int, wanted.value.numpy()))]
    fits = len(sizes) == len(shape) and all(one in {-1, other} for one, other in zip(sizes, shape, strict=True))
    return before if fits else None
