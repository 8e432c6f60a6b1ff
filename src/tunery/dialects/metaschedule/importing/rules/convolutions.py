"""Convolutions along one axis."""

from typing import Any

from tunery.dialects.metaschedule._tvm import relax
from tunery.dialects.metaschedule.importing.rules.common import emitter, text_of

_RANK, _ROW = 3, 2


def as_one_row(builder: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    """Return a 1-D convolution as a 2-D one of a single row, which has layouts and schedules; None of any other."""
    data, kernel, bias = (*inputs, None)[:3]
    if int(data.ty.ndim) != _RANK or text_of(attributes.get("auto_pad", "NOTSET")).startswith("SAME"):
        return None
    run = emitter(builder)
    [step], [gap], (before, after) = (
        [int(one) for one in attributes.get(name, usual)]
        for name, usual in (("strides", [1]), ("dilations", [1]), ("pads", [0, 0]))
    )
    made = run(
        relax.op.nn.conv2d(
            run(relax.op.expand_dims(data, _ROW)),
            run(relax.op.expand_dims(kernel, _ROW)),
            strides=[1, step],
            padding=[0, before, 0, after],
            dilation=[1, gap],
            groups=int(attributes.get("group", 1)),
        )
    )
    if bias is not None:
        made = run(relax.op.add(made, run(relax.op.reshape(bias, [1, -1, 1, 1]))))
    return relax.op.squeeze(made, [_ROW])
