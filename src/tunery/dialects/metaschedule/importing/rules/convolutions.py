"""Convolutions along one axis: as those along two of a single row, which have layouts and schedules."""

from collections.abc import Callable
from typing import Any

from tunery.dialects.metaschedule._tvm import relax
from tunery.dialects.metaschedule.importing.rules.common import emitter, text_of

ROW = 2
"""The dimension that is added, of size 1."""
_RANK = 3


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
