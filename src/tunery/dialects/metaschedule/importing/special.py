"""Special values that native forms of operators do not keep as ONNX Runtime has them; all others keep all. Where its
result is tested for NaN, an operator that does not keep NaN runs in ONNX Runtime. `docs/limits.md` lists the same, a
property test holds every other operator to it."""

from collections.abc import Collection, Mapping
from enum import Flag, auto

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.external_data_helper import uses_external_data

from tunery.dialects.metaschedule.importing.segments.graph import Graph


class Special(Flag):
    NAN = auto()
    INFINITIES = auto()


NOT_KEPT: Mapping[str, Special] = {
    # The largest of many loses a NaN by its place, in ONNX Runtime by another one.
    **dict.fromkeys(("MaxPool", "GlobalMaxPool", "ReduceMax", "ReduceMin", "ReduceLogSumExp"), Special.NAN),
    **dict.fromkeys(("ArgMax", "ArgMin", "Hardmax"), Special.NAN),
    # A place that is no number: ONNX Runtime takes one by how it converts it.
    "GridSample": Special.NAN | Special.INFINITIES,
    # What has no weight in a sum is left out of it.
    "Resize": Special.NAN | Special.INFINITIES,
    # At 0 an infinite slope makes NaN.
    "PRelu": Special.INFINITIES,
}


_MAKERS = frozenset({"Log", "Sqrt", "Exp", "Div", "Reciprocal", "Pow", "Mod", "Acos", "Asin", "Acosh", "Atanh"})
"""Operators that make such values of ordinary numbers; by a constant, Div, Pow and Mod do not."""
_FLOATS = frozenset({onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE})


def lost_by(graph: Graph, elsewhere: Collection[int]) -> tuple[str, ...]:
    """Say which nodes, but those that run `elsewhere`, may lose a special value that the network itself makes."""
    special = {name for name, one in graph.constants.items() if one.data_type in _FLOATS and not _is_finite(one)}
    lost = dict[str, Special]()
    for at, node in enumerate(graph.nodes):
        reached = not special.isdisjoint(node.input)
        if reached and at not in elsewhere and node.op_type in NOT_KEPT:
            lost[node.op_type] = NOT_KEPT[node.op_type]
        if reached or (node.op_type in _MAKERS and (len(node.input) == 1 or node.input[1] not in graph.constants)):
            special.update(name for name in node.output if graph.element_type(name) in _FLOATS)
    kinds = {"NaN": Special.NAN, "an infinity": Special.INFINITIES}
    by = {name: [operator for operator in sorted(lost) if kind in lost[operator]] for name, kind in kinds.items()}
    return tuple(f"{name} may be lost by {', '.join(operators)}" for name, operators in by.items() if operators)


def _is_finite(tensor: onnx.TensorProto) -> bool:
    """Whether a constant is; one that lies beside the model is not read for it."""
    return uses_external_data(tensor) or bool(np.isfinite(numpy_helper.to_array(tensor)).all())


def keeps(operator: str, special: Special) -> bool:
    return not NOT_KEPT.get(operator, Special(0)) & special
