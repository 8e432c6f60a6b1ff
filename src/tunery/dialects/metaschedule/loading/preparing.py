"""What is done to a variant's weights once, when a file is written or a kernel loaded: transformed, then packed. A
transformation computes others from them (Winograd's products, padding, the order of dot products). Packing permutes
them, told by index expressions as nested lists that JSON can hold."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tunery.dialects import Array

KERNEL = 3
DOTS = "dots"
TILES = "tiles"
WINOGRAD, _PRODUCTS = "winograd4", "winograd"
POOLS = "pools"
DOT_CHANNELS, DOT_DEPTH = 16, 4
"""Channels side by side, and what a dot product sums up for each unless the transform's name ends in it: `dots2`."""
_FEW_GROUPS = 3
_POINTS = {2: (0.0, 1.0, -1.0), 4: (0.0, 0.75, -0.75, 1.5, -1.5)}
_COLUMNS = 1 << 11

Matrix = npt.NDArray[np.float64]


def transformed(arrays: Sequence[Array], transforms: Mapping[int, str]) -> list[Array]:
    done = list(arrays)
    for index, name in transforms.items():
        [kind] = [make for prefix, make in _KINDS.items() if name.startswith(prefix)]
        done[index] = kind(np.asarray(arrays[index]), name)
    return done


def transformed_shape(shape: tuple[int, ...], name: str) -> tuple[int, ...]:
    """Return the shape of weights of `shape` that were transformed ("": not)."""
    if name.startswith(DOTS):
        *outer, depth, channels = shape
        deep = int(name.removeprefix(DOTS) or DOT_DEPTH)
        return (dot_groups(channels), *outer, -(-depth // deep), DOT_CHANNELS, deep)
    if not name:
        return shape
    if name.startswith(TILES):
        panels, groups, lanes = map(int, name.removeprefix(TILES).split("x"))
        columns = -(-(shape[-1] // groups) // lanes)
        return (panels, math.prod(shape[:-1]) * groups * columns // panels, lanes)
    tile, packed, packing = name.removeprefix(_PRODUCTS).partition(TILES)
    size = len(matrices(int(tile))[1])
    return transformed_shape((size, size, *shape[2:]), packed + packing)


def _for_tiles(weights: Array, name: str) -> Array:
    """Return weights `(batches..., steps..., channels)` as `(vectors, steps, lanes)`, with zeros behind each group."""
    panels, groups, lanes = map(int, name.removeprefix(TILES).split("x"))
    _, steps, _ = transformed_shape(weights.shape, name)
    columns = weights.shape[-1] // groups
    apart = weights.reshape(-1, steps, groups, columns)
    wide = np.pad(apart, [(0, 0)] * 3 + [(0, -columns % lanes)]).reshape(len(apart), steps, -1, lanes)
    return np.ascontiguousarray(wide.transpose(0, 2, 1, 3)).reshape(panels, steps, lanes)


def from_tiles(array: Array, shape: tuple[int, ...], name: str) -> Array:
    panels, groups, lanes = map(int, name.removeprefix(TILES).split("x"))
    columns, steps = shape[-1] // groups, array.shape[1]
    vectors = -(-columns // lanes)
    apart = array.reshape(panels // (groups * vectors), groups, vectors, steps, lanes).transpose(0, 3, 1, 2, 4)
    return np.ascontiguousarray(apart.reshape(-1, steps, groups, vectors * lanes)[..., :columns]).reshape(shape)


def keeps_values(name: str) -> bool:
    """Whether a transform ("": none) only moves weights, and writes zeros beside them."""
    return not name.startswith(_PRODUCTS)


def dot_groups(channels: int) -> int:
    """Return in how many vectors of channels dot products compute them: an even number, or one or three.

    >>> [dot_groups(n) for n in (1, 32, 48, 100, 1000)]
    [1, 2, 3, 8, 64]
    """
    groups = -(-channels // DOT_CHANNELS)
    return groups if groups <= _FEW_GROUPS else -(-groups // 2) * 2


def _for_dots(weights: Array, name: str) -> Array:
    """Return weights `(..., depth, channels)` as `(channels / 16, ..., depth / d, 16, d)`, with zeros behind."""
    groups, *outer, steps, lanes, deep = transformed_shape(weights.shape, name)
    more = [(0, steps * deep - weights.shape[-2]), (0, groups * lanes - weights.shape[-1])]
    wide = np.pad(weights, [*((0, 0) for _ in outer), *more])
    apart = wide.reshape(*outer, steps, deep, groups, lanes)
    n = len(outer)
    return np.ascontiguousarray(apart.transpose(n + 2, *range(n), n, n + 3, n + 1))


@lru_cache
def matrices(tile: int) -> tuple[Matrix, Matrix, Matrix]:
    """Return the transforms of input (B^T), weights (G) and output (A^T) by Cook and Toom's construction."""
    points = _POINTS[tile]
    size = tile + KERNEL - 1

    def product(roots: Sequence[float]) -> Matrix:
        coefficients = np.polynomial.polynomial.polyfromroots(roots)
        return np.pad(coefficients, (0, size - len(coefficients)))

    others = [[q for q in points if q != p] for p in points]
    scales = [np.prod([p - q for q in rest]) for p, rest in zip(points, others, strict=True)]
    data = np.array([*(product(rest) for rest in others), product(points)])
    weights = np.array([*([p**j / s for j in range(KERNEL)] for p, s in zip(points, scales, strict=True)), [0, 0, 1]])
    output = np.array([[*(p**j for p in points), float(j == tile - 1)] for j in range(tile)])
    return data, weights, output


def _winograd(weights: Array, name: str, empty: Callable[..., Array] = np.empty) -> Array:
    """Return weights `(3, 3, in, out)` as `(m + 2, m + 2, in, out)`, computed in double precision, or as tiles take
    these, in memory that `empty` gives for a shape and a type."""
    tile, _, packing = name.removeprefix(_PRODUCTS).partition(TILES)
    rows = matrices(int(tile))[1]
    both = np.kron(rows, rows)
    depth, channels = weights.shape[2:]
    lanes = int(packing.rpartition("x")[2]) if packing else channels
    made = empty(transformed_shape(weights.shape, name), weights.dtype)
    vectors = made.reshape(len(both), -1, depth, lanes)
    few = max(_COLUMNS // channels, 1)
    for start in range(0, depth, few):  # few at a time stay in the cache; many take ten times as long
        part = slice(start, start + few)
        taps = weights[:, :, part].reshape(len(both[0]), -1).astype(np.float64)
        products = (both @ taps).reshape(len(both), -1, channels)
        if channels % lanes:
            products = np.pad(products, [(0, 0), (0, 0), (0, -channels % lanes)])
        vectors[:, :, part] = products.reshape(len(both), -1, vectors.shape[1], lanes).swapaxes(1, 2)
    return made


_KINDS = {DOTS: _for_dots, TILES: _for_tiles, _PRODUCTS: _winograd}

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
    """Return `source` written to an array of `shape` at the given indices of its elements; the rest is zero. An array
    that has no rest is one that `empty` gives for a shape and a type."""
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


def prepare(
    array: Array, transform: str, packing: tuple[tuple[int, ...], list[Index]] | None, empty: Callable[..., Array]
) -> Array:
    """Transform an array ("": not), then pack it (None: not); `empty` gives memory as for `pack`."""
    if not keeps_values(transform):
        array = _winograd(array, transform, empty)
    elif transform:
        array = transformed([array], {0: transform})[0]
    return pack(array, *packing, empty) if packing else array


def unpack(packed: Array, shape: tuple[int, ...], indices: list[Index]) -> Array:
    places = _places(shape, indices)
    return np.broadcast_to(packed[tuple(places)], shape).copy()


def _places(shape: tuple[int, ...], indices: list[Index]) -> list[Any]:
    axes = np.ogrid[tuple(slice(n) for n in shape)]
    return [np.array(_evaluate(index, axes), ndmin=len(shape)) for index in indices]


def _split_axes(source: tuple[int, ...], shape: tuple[int, ...], places: list[Any]) -> list[int] | None:
    """Return the target's dimensions in the order in which they split the source's axes; None if they do not. They do
    if the digits of each axis's index, in a mixed radix, are the indices of some dimensions of their own."""
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
