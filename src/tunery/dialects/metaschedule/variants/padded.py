"""Convolutions and matrix products with more output channels, up to whole vectors, or rows, up to what can be tiled.

A tile must divide its axis, so 1000 channels go in vectors of 8, or in rows of 40, where a register holds 16, and 116,
which is 4 x 29, in none that fit. Constant weights get columns of zeros beforehand, others are copied so; sums of these
are not stored. Vision transformers have 197 rows, a prime: a tile has one of them, or all.
"""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from typing_extensions import override

from tunery._errors import DialectError
from tunery.dialects.metaschedule._tvm import tvm
from tunery.dialects.metaschedule.loading.transforms import PADDED
from tunery.dialects.metaschedule.reasons import OtherKindError
from tunery.dialects.metaschedule.variants.rewriting import Fused, fuse, long_of, shape_of

NAME = PADDED
_MULTIPLES = (4, 2, 1)
_FEW_WEIGHTS = 1024
_GOOD_ROWS, _SIX = range(4, 15), 6
_MORE = 1.07
"""More vectors than are needed are taken for a wider choice of tiles where they are at most so many times as many."""
_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {"Add": operator.add, "Sub": operator.sub, "Mul": operator.mul}


@dataclass(frozen=True)
class Rewritten:
    """A program with more output rows or channels inside.

    `transforms` names what is done to weights that get more channels, by index of the argument.
    """

    module: Any
    transforms: Mapping[int, str]


def padded_channels(channels: int, lanes: int) -> int:
    """Return the number of channels to compute: whole vectors, if possible in twos or fours.

    >>> [padded_channels(n, 16) for n in (24, 40, 116, 232, 1000)]
    [32, 48, 128, 256, 1024]
    """
    least = -(-channels // lanes) * lanes
    wider = (-(-channels // (lanes * many)) * lanes * many for many in _MULTIPLES)
    return next(count for count in wider if count <= _MORE * least)


def padded_rows(rows: int) -> int:
    """Return the number of rows to compute: as given, or up to sixes where nothing from 4 to 14 divides it.

    So many rows a register tile has that is any good.

    >>> [padded_rows(n) for n in (197, 394, 50, 49, 13, 1)]
    [198, 396, 50, 49, 13, 1]
    """
    if rows <= _GOOD_ROWS[-1] or any(rows % n == 0 for n in _GOOD_ROWS):
        return rows
    return -(-rows // _SIX) * _SIX


def rewrite(module: Any, lanes: int) -> Rewritten | None:
    """Return the module with its reduction computed for more output rows or channels; what surrounds it stays.

    None where that is not needed: its channels fill whole vectors, and its rows can be tiled.
    """
    found = Product(module["main"])
    rows, channels = padded_rows(found.rows), found.channels
    few = np.prod(found.weights) < _FEW_WEIGHTS
    if channels % lanes and not few:
        channels = padded_channels(channels, lanes)
    if (rows, channels) == (found.rows, found.channels):
        if channels % lanes:
            raise DialectError("the weights are too few")
        return None
    wider = found.constant and channels > found.channels
    transforms = {found.weight: f"{NAME}{channels}"} if wider else {}
    return Rewritten(fuse(found, _core(found, rows, channels, wider=wider)), transforms)


class Product(Fused):
    """A reduction `out[..., f] += data[...] * weights[..., f]`, with `axes` and `indices` of its operands."""

    channels: int
    rows: int
    row: Any
    """The axis of the rows of a matrix product; None, with 1 row, for convolutions."""

    @override
    def operands(self, block: Any) -> tuple[Any, Any, Any]:
        """Return data, weights and output of `out[..., f] += data[...] * weights[..., f]`, `f` nowhere else."""
        sums = block.body.value
        if type(sums).__name__ != "Add" or type(sums.b).__name__ != "Mul":
            raise OtherKindError("the reduction is not a sum of products")
        data, weights = self.factor(sums.b.a), self.factor(sums.b.b)
        if not all(isinstance(load, tvm.ir.TensorLoad) for load in (sums.a, data, weights)):
            raise OtherKindError("the reduction is not a product of two arrays")
        self.axes = [(axis.var, int(axis.dom.extent), _reduced(axis)) for axis in block.iter_vars]
        *rest, last = block.body.indices
        self.indices = (list(data.indices), list(weights.indices[:-1]))
        spatial = [axis for axis, _, reduced in self.axes if not reduced]
        if len(spatial) != len(rest) + 1 or not all(map(_same, (*rest, last), spatial)):
            raise DialectError("the result is not written axis by axis")
        if not _same(weights.indices[-1], last):
            raise DialectError("its channels are not the last axis of the weights")
        others = {axis: axis for axis in (*spatial[:-1], *(axis for axis, _, reduced in self.axes if reduced))}
        for index in (*self.indices[0], *self.indices[1]):
            moved(index, others)  # raises where the channels are used
        row = rest[-1] if rest else None
        plain = all(isinstance(index, tvm.ir.Var) for index in data.indices)
        self.row = row if plain and not any(_same(index, row) for index in weights.indices) else None
        return data.source, weights.source, block.body.buffer

    def factor(self, expression: Any) -> Any:
        return expression

    @override
    def check(self, weights: list[int]) -> None:
        self.weights = weights
        *places, self.channels = shape_of(self.output)
        self.rows = places[-1] if self.row is not None else 1
        if any(str(b.ty.dtype) != "float32" for b in (self.data, self.output)):
            raise DialectError("it is not in float32")


def _core(found: Product, rows: int, channels: int, *, wider: bool) -> Any:
    """Return the PrimFunc `(data, weights, output)` of the bare reduction.

    Weights come `wider`, with columns of zeros, or are copied so. Rows beyond the last one read its data again.
    """
    from tvm import te

    shape = shape_of(found.output)
    data = te.placeholder(long_of(*shape_of(found.data)), name="data")
    weights = wide = te.placeholder(long_of(*found.weights[:-1], channels if wider else found.channels), name="weights")
    if channels > found.channels and not wider:
        [last], [zero] = long_of(found.channels), [tvm.tirx.const(0, "float32")]

        def copied(*axes: Any) -> Any:
            return te.if_then_else(axes[-1] < last, weights[axes], zero)

        wide = te.compute(long_of(*found.weights[:-1], channels), copied, name="wide_weights")
    sums = [(axis, extent) for axis, extent, reduced in found.axes if reduced]
    reduced = [te.reduce_axis(tuple(long_of(0, extent)), name=f"k{i}") for i, (_, extent) in enumerate(sums)]
    spatial = [axis for axis, _, is_reduced in found.axes if not is_reduced]

    def product(*axes: Any) -> Any:
        places = dict(zip(spatial, axes, strict=True)) | {
            axis: place.var for (axis, _), place in zip(sums, reduced, strict=True)
        }
        if rows > found.rows:
            places[found.row] = te.min(places[found.row], *long_of(found.rows - 1))
        of_data, of_weights = ([moved(index, places) for index in indices] for indices in found.indices)
        return te.sum(data[tuple(of_data)] * wide[(*of_weights, axes[-1])], axis=reduced)

    computed = [*shape[:-2], rows if found.row is not None else shape[-2], channels]
    padded = te.compute(long_of(*computed), product, name="padded_product")
    output = te.compute(long_of(*shape), lambda *axes: padded[axes], name="padded_output")
    return te.create_prim_func([data, weights, output])


def moved(expression: Any, places: Mapping[Any, Any]) -> Any:
    """Return an index expression with other variables."""
    if isinstance(expression, tvm.ir.Var):
        if expression not in places:
            raise DialectError("its channels are used elsewhere")
        return places[expression]
    if isinstance(expression, tvm.tirx.IntImm):
        return expression
    name = type(expression).__name__
    if name not in _OPERATORS:
        raise DialectError(f"an index is no sum or product: {expression}")
    return _OPERATORS[name](moved(expression.a, places), moved(expression.b, places))


def _same(index: Any, axis: Any) -> bool:
    return bool(index.same_as(axis))


def _reduced(axis: Any) -> bool:
    return bool(int(axis.iter_type) == tvm.tirx.IterVar.CommReduce)
