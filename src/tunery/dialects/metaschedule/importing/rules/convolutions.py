"""Convolutions along one axis, as those along two of a single row, which have layouts and schedules; and those whose
outer taps see nothing but padding, as dilated ones of small images have, without these taps."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tunery.dialects.metaschedule._tvm import relax, tvm
from tunery.dialects.metaschedule.importing.rules.common import emitter, shape_of, text_of

ROW = 2
"""The dimension that is added, of size 1."""
_RANK, _PLANES = 3, 4


def convolution(builder: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    made = as_one_row(builder, inputs, attributes)
    return _without_blind_taps(builder, inputs, attributes) if made is None else made


def _without_blind_taps(builder: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    data, kernel, bias = (*inputs, None)[:3]
    plain = text_of(attributes.get("auto_pad", "NOTSET")) == "NOTSET" and isinstance(kernel, tvm.ir.GenericConst)
    if int(data.ty.ndim) != _PLANES or not plain:
        return None
    weights = kernel.value.numpy()
    steps, gaps, pads = (
        [int(one) for one in attributes.get(name, usual)]
        for name, usual in (("strides", [1, 1]), ("dilations", [1, 1]), ("pads", [0] * 4))
    )
    edges = zip(pads[:2], pads[2:], strict=True)
    axes = zip(shape_of(data, "Conv")[2:], weights.shape[2:], steps, gaps, edges, strict=True)
    (top, bottom), (left, right) = (_seeing_taps(*one) for one in axes)
    seen = weights[:, :, top:bottom, left:right]
    if seen.shape == weights.shape or not np.isfinite(weights).all():
        return None
    (high, wide), (above, before, below, after) = weights.shape[2:], pads
    run = emitter(builder)
    made = relax.op.nn.conv2d(
        data,
        relax.const(np.ascontiguousarray(seen)),
        strides=steps,
        padding=[above - top * gaps[0], before - left * gaps[1],
                 below - (high - bottom) * gaps[0], after - (wide - right) * gaps[1]],
        dilation=[gap if taps > 1 else 1 for gap, taps in zip(gaps, seen.shape[2:], strict=True)],
        groups=int(attributes.get("group", 1)),
    )  # fmt: skip
    return made if bias is None else relax.op.add(run(made), run(relax.op.reshape(bias, [1, -1, 1, 1])))


def _seeing_taps(size: int, taps: int, step: int, gap: int, pads: tuple[int, int]) -> tuple[int, int]:
    """Return from which to which tap some place of the image is seen along an axis; others see padding only."""
    outputs = (size + sum(pads) - gap * (taps - 1) - 1) // step + 1
    places = np.arange(outputs)[:, None] * step + np.arange(taps) * gap - pads[0]
    seeing = np.flatnonzero(((places >= 0) & (places < size)).any(axis=0))
    first, last = (int(seeing[0]), int(seeing[-1])) if seeing.size else (0, taps - 1)
    return min(first, pads[0] // gap), max(last, taps - 1 - pads[1] // gap) + 1


def as_one_row(builder: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    return _of_one_row(builder, inputs, attributes, relax.op.nn.conv2d)


def transposed_as_one_row(builder: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    if int(attributes.get("group", 1)) != 1:
        return None
    more = int(attributes.get("output_padding", [0])[0])

    def operator(*operands: Any, **how: Any) -> Any:
        return relax.op.nn.conv2d_transpose(*operands, output_padding=[0, more], **how)

    return _of_one_row(builder, inputs, attributes, operator)


def _of_one_row(builder: Any, inputs: list[Any], attributes: dict[str, Any], operator: Callable[..., Any]) -> Any:
    data, kernel, bias = (*inputs, None)[:3]
    if int(data.ty.ndim) != _RANK or text_of(attributes.get("auto_pad", "NOTSET")).startswith("SAME"):
        return None
    run = emitter(builder)
    [step], [gap], (before, after) = (
        [int(one) for one in attributes.get(name, usual)]
        for name, usual in (("strides", [1]), ("dilations", [1]), ("pads", [0, 0]))
    )
    made = run(
        operator(
            run(relax.op.expand_dims(data, ROW)),
            run(relax.op.expand_dims(kernel, ROW)),
            strides=[1, step],
            padding=[0, before, 0, after],
            dilation=[1, gap],
            groups=int(attributes.get("group", 1)),
        )
    )
    if bias is not None:
        made = run(relax.op.add(made, run(relax.op.reshape(bias, [1, -1, 1, 1]))))
    return relax.op.squeeze(made, [ROW])
