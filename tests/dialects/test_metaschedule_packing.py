"""Packing weights: by a transposition where it is one, element by element where it is not, with the same result."""

import itertools
import math
from typing import Any

import numpy as np
import pytest

from tunery.dialects.metaschedule.loading import preparing
from tunery.dialects.metaschedule.loading.preparing import Index, pack

pytestmark = pytest.mark.tvm


def split(axis: int, *factors: int) -> list[Index]:
    """The digits of an axis's index, the slowest first; the factors are those of all digits but the slowest."""
    digits: list[Index] = []
    index: Index = str(axis)
    for factor in reversed(factors):
        digits.insert(0, ["FloorMod", index, factor])
        index = ["FloorDiv", index, factor]
    return [index, *digits]


CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], list[Index]]] = {
    "as it is": ((4, 6), (4, 6), ["0", "1"]),
    "transposed": ((4, 6), (6, 4), ["1", "0"]),
    "tiles of channels": ((3, 3, 8, 16), (2, 3, 3, 8, 8), [split(3, 8)[0], "0", "1", "2", split(3, 8)[1]]),
    "three digits": ((24, 5), (3, 5, 2, 4), [split(0, 2, 4)[0], "1", *split(0, 2, 4)[1:]]),
    "extents of one": ((1, 1, 6, 4), (1, 2, 6, 1, 2), [0, split(3, 2)[0], "2", "0", split(3, 2)[1]]),
    "two axes in one": ((4, 6), (24,), [["Add", ["Mul", "0", 6], "1"]]),
    "backwards": ((4, 6), (4, 6), [["Sub", 3, "0"], "1"]),
    "with room left": ((4, 6), (4, 8), ["0", "1"]),
    "in a corner": ((1, 6), (2, 6), [1, "1"]),
}  # fmt: skip


def places(index: Index, at: tuple[int, ...]) -> int:
    if isinstance(index, int):
        return index
    if isinstance(index, str):
        return at[int(index)]
    operator, left, right = index
    a, b = places(left, at), places(right, at)
    return {"FloorDiv": a // b if b else 0, "FloorMod": a % b if b else 0, "Mul": a * b, "Add": a + b, "Sub": a - b}[
        operator
    ]


WRITTEN = {"two axes in one", "backwards", "with room left", "in a corner"}
"""What is no transposition, so that elements have to be written one by one."""


@pytest.mark.parametrize("name", CASES)
def test_every_element_is_where_its_indices_say(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    orders: list[Any] = []
    split_axes = preparing._split_axes
    monkeypatch.setattr(preparing, "_split_axes", lambda *given: orders.append(split_axes(*given)) or orders[-1])
    shape, target, indices = CASES[name]
    source = np.arange(1, 1 + math.prod(shape), dtype=np.float32).reshape(shape)
    wanted = np.zeros(target, np.float32)
    for at in itertools.product(*map(range, shape)):
        wanted[tuple(places(index, at) for index in indices)] = source[at]
    packed = pack(source, target, indices)
    assert [order is None for order in orders] == [name in WRITTEN]
    np.testing.assert_array_equal(packed, wanted)
    assert packed.flags.c_contiguous
    assert not np.shares_memory(packed, source)
    np.testing.assert_array_equal(preparing.unpack(packed, shape, indices), source)
    room = np.full(target, np.nan, np.float32)
    np.testing.assert_array_equal(pack(source, target, indices, lambda *_: room), wanted)
