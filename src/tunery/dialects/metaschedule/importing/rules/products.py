"""Products of quantised matrices."""

from typing import Any

from tunery.dialects.metaschedule._tvm import relax
from tunery.dialects.metaschedule.importing.rules.common import const_like, dtype_of, emitter, shape_of

_RANGES = {"uint8": (0, 255), "int8": (-128, 127)}


def quantised_matmul(builder: Any, inputs: list[Any], _: dict[str, Any]) -> Any:
    """Multiply in 32-bit integers, then scale, round (ties to even) and saturate."""
    a, a_scale, a_zero, b, b_scale, b_zero, scale, zero = inputs
    run, rank = emitter(builder), len(shape_of(a, "QLinearMatMul"))

    def centred(value: Any, point: Any, *, rows: bool) -> Any:
        wide = run(relax.op.astype(value, "int32"))
        return run(relax.op.subtract(wide, along(run(relax.op.astype(point, "int32")), rows=rows)))

    def along(value: Any, *, rows: bool) -> Any:
        """Put a number for each row, or for each column, where it belongs."""
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
