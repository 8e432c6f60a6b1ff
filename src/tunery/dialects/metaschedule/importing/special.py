"""Special values that native forms of operators do not keep as ONNX Runtime has them; all others keep all. Where its
result is tested for NaN, an operator that does not keep NaN runs in ONNX Runtime. `docs/limits.md` lists the same, a
property test holds every other operator to it."""

from collections.abc import Iterable, Mapping
from enum import Flag, auto


class Special(Flag):
    NAN = auto()
    INFINITIES = auto()


NOT_KEPT: Mapping[str, Special] = {
    # The largest of many loses a NaN by its place, in ONNX Runtime by another one.
    **dict.fromkeys(("MaxPool", "GlobalMaxPool", "ReduceMax", "ReduceMin", "ReduceLogSumExp"), Special.NAN),
    **dict.fromkeys(("ArgMax", "ArgMin"), Special.NAN),
    # A place that is no number: ONNX Runtime takes one by how it converts it.
    "GridSample": Special.NAN | Special.INFINITIES,
    # What has no weight in a sum is left out of it.
    "Resize": Special.NAN | Special.INFINITIES,
    # At 0 an infinite slope makes NaN.
    "PRelu": Special.INFINITIES,
}


def lost_by(operators: Iterable[str]) -> tuple[str, ...]:
    lost = {operator: NOT_KEPT[operator] for operator in sorted({*operators} & NOT_KEPT.keys())}
    found = {"NaN": Special.NAN, "an infinity": Special.INFINITIES}
    by = {name: [operator for operator, one in lost.items() if kind in one] for name, kind in found.items()}
    return tuple(f"{name} may be lost by {', '.join(some)}" for name, some in by.items() if some)


def keeps(operator: str, special: Special) -> bool:
    return not NOT_KEPT.get(operator, Special(0)) & special
