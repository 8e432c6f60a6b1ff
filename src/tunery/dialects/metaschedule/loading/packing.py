"""Applying the packing of weights: a permutation, told by index expressions as nested lists that JSON can hold."""

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from tunery.dialects import Array

Index: TypeAlias = int | str | list[Any]
"""An index expression: a number, the name of a source axis, or [operator, left, right]."""

OPERATORS = {
    "FloorDiv": np.floor_divide,
    "FloorMod": np.mod,
    "Mul": np.multiply,
    "Add": np.add,
    "Sub": np.subtract,
}


def pack(source: Array, shape: tuple[int, ...], indices: list[Index], empty: Callable[..., Array] = np.empty) -> Array:
    """Return `source` written to an array of `shape` at the given indices of its elements; the rest is zero.

    An array that has no rest is one that `empty` gives for a shape and a type.
    """
    places = _places(source.shape, indices)
    order = _split_axes(source.shape, shape, places)
    if order is not None:  # a transposition, which is several times faster than writing element by element
        parts = [shape[dim] for dim in order]
        packed = empty(shape, source.dtype)
        np.copyto(packed, source.reshape(parts).transpose(np.argsort(order)))
        return packed
    packed = np.zeros(shape, source.dtype)
    packed[tuple(places)] = source
    return packed


def unpack(packed: Array, shape: tuple[int, ...], indices: list[Index]) -> Array:
    places = _places(shape, indices)
    return np.broadcast_to(packed[tuple(places)], shape).copy()


def _places(shape: tuple[int, ...], indices: list[Index]) -> list[Any]:
    axes = np.ogrid[tuple(slice(n) for n in shape)]
    return [np.array(_evaluate(index, axes), ndmin=len(shape)) for index in indices]


def _split_axes(source: tuple[int, ...], shape: tuple[int, ...], places: list[Any]) -> list[int] | None:
    """Return the target's dimensions in the order in which they split the source's axes; None if they do not.

    They do if the digits of each axis's index, in a mixed radix, are the indices of some dimensions of their own.
    """
    if math.prod(source) != math.prod(shape):
        return None
    order: list[int] = []
    for axis, extent in enumerate(source):
        own = [dim for dim, place in enumerate(places) if place.size == place.shape[axis] > 1]
        digits = {dim: places[dim].reshape(-1) for dim in own}
        own.sort(key=lambda dim: -int(np.argmax(digits[dim] != digits[dim][0])))  # the slowest digit first
        left = math.prod(shape[dim] for dim in own)
        if left != extent:
            return None
        value = np.zeros(extent, np.int64)
        for dim in own:
            left //= shape[dim]
            value += digits[dim] * left
        if not np.array_equal(value, np.arange(extent)):
            return None
        order += own
    # What is left are dimensions of extent 1, wherever they are.
    rest = [dim for dim in range(len(shape)) if dim not in order]
    return [*order, *rest] if all(shape[dim] == 1 and not places[dim].any() for dim in rest) else None


def _evaluate(index: Index, axes: Any) -> Any:
    if isinstance(index, int):
        return index
    if isinstance(index, str):
        return axes[int(index)]
    operator, left, right = index
    return OPERATORS[operator](_evaluate(left, axes), _evaluate(right, axes))
