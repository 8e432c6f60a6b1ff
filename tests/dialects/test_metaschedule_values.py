"""Operators at the ends of their types: infinities as extremes, integers too large for floating point."""

from pathlib import Path

import numpy as np
import pytest
from side_by_side import Node, compare

from tunery.dialects import Dialect
from tunery.domain import Target

pytestmark = pytest.mark.tvm


def test_extremes_of_infinities_and_powers_of_large_integers(dialect: Dialect, target: Target, tmp_path: Path) -> None:
    rows = np.array([[-np.inf] * 3, [np.inf] * 3, [-np.inf, 2, -3e38]], np.float32)
    whole = np.array([94906267, 2**31 + 1, -(2**31 + 3), 3037000499, -2], np.int64)
    nodes: list[Node] = [
        (operator, [one, [np.array([1])]], {"keepdims": keep}, 1)
        for operator in ("ReduceMax", "ReduceMin") for one in (rows, rows.astype(np.float64)) for keep in (0, 1)
    ]  # fmt: skip
    nodes += [("Pow", [whole, [np.array(exponent)]], {}, 1) for exponent in (2, 3)]
    nodes += [("Pow", [np.array([46341, -46340, 7], np.int32), [np.array(2, np.int32)]], {}, 1)]
    assert compare(nodes, dialect, target, tmp_path) == 0
