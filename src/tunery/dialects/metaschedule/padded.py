"""Convolutions and matrix products whose output channels are no multiple of the vector length, with more of them.

A tile must divide its axis, so 1000 channels go in vectors of 8, or in rows of 40, where a register holds 16, and 116,
which is 4 x 29, in none that fit. Weights are constant, so they get columns of zeros beforehand; sums of these are not
stored.
"""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from typing_extensions import override

from tunery._errors import DialectError
from tunery.dialects._base import Array
from tunery.dialects.metaschedule._tvm import tvm
from tunery.dialects.metaschedule.rewriting import Fused, fuse, long_of, shape_of

NAME = "padded"
_MULTIPLES = (4, 2, 1)
_MORE = 1.07
"""More vectors than are needed are taken for a wider choice of tiles where they are at most so many times as many."""
_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {"Add": operator.add, "Sub": operator.sub, "Mul": operator.mul}


@dataclass(frozen=True)
class Rewritten:
    """A program with more output channels inside: `weight` is the argument (by index) that gets `channels` of them."""

    module: Any
    weight: int
    channels: int


def padded_channels(channels: int, lanes: int) -> int:
    """Return the number of channels to compute: whole vectors, if possible in twos or fours.

    >>> [padded_channels(n, 16) for n in (24, 40, 116, 232, 1000)]
    [32, 48, 128, 256, 1024]
    """
    least = -(-channels // lanes) * lanes
    wider = (-(-channels // (lanes * many)) * lanes * many for many in _MULTIPLES)
    return next(count for count in wider if count <= _MORE * least)


def transform_weights(weights: Array, name: str) -> Array:
    """Return weights `(..., channels)` with columns of zeros behind, up to the number in `name`: `padded128`."""
    more = int(name.removeprefix(NAME)) - weights.shape[-1]
    return np.pad(weights, [(0, 0)] * (weights.ndim - 1) + [(0, more)])


def rewrite(module: Any, lanes: int) -> Rewritten | None:
    """Return the module with its reduction computed for more output channels; what surrounds it stays.

    None where that is not needed: its channels fill whole vectors.

    Raises:
        DialectError: there is no reduction that this applies to; the message says what is in the way.
    """
    found = _Product(module["main"])
    if found.channels % lanes == 0:
        return None
    if not found.constant:
        raise DialectError("the weights are not constant, or too few to be packed")
    channels = padded_channels(found.channels, lanes)
    return Rewritten(fuse(found, _core(found, channels)), found.weight, channels)


class _Product(Fused):
    channels: int

    @override
    def operands(self, block: Any) -> tuple[Any, Any, Any]:
        """Return data, weights and output of `out[..., f] += data[...] * weights[..., f]`, `f` nowhere else."""
        sums = block.body.value
        if type(sums).__name__ != "Add" or type(sums.b).__name__ != "Mul":
            raise DialectError("the reduction is not a sum of products")
        data, weights = sums.b.a, sums.b.b
        if not all(isinstance(load, tvm.ir.TensorLoad) for load in (sums.a, data, weights)):
            raise DialectError("the reduction is not a product of two arrays")
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
        return data.source, weights.source, block.body.buffer

    @override
    def check(self, weights: list[int]) -> None:
        self.weights = weights
        self.channels = shape_of(self.output)[-1]
        if any(str(b.ty.dtype) != "float32" for b in (self.data, self.output)):
            raise DialectError("it is not in float32")


def _core(found: _Product, channels: int) -> Any:
    """Return the PrimFunc `(data, padded weights, output)` of the bare reduction."""
    from tvm import te

    shape = shape_of(found.output)
    data = te.placeholder(long_of(*shape_of(found.data)), name="data")
    weights = te.placeholder(long_of(*found.weights[:-1], channels), name="weights")
    sums = [(axis, extent) for axis, extent, reduced in found.axes if reduced]
    reduced = [te.reduce_axis(tuple(long_of(0, extent)), name=f"k{i}") for i, (_, extent) in enumerate(sums)]
    spatial = [axis for axis, _, is_reduced in found.axes if not is_reduced]

    def product(*axes: Any) -> Any:
        places = dict(zip(spatial, axes, strict=True)) | {
            axis: place.var for (axis, _), place in zip(sums, reduced, strict=True)
        }
        of_data, of_weights = ([moved(index, places) for index in indices] for indices in found.indices)
        return te.sum(data[tuple(of_data)] * weights[(*of_weights, axes[-1])], axis=reduced)

    padded = te.compute(long_of(*shape[:-1], channels), product, name="padded_product")
    output = te.compute(long_of(*shape), lambda *axes: padded[axes], name="padded_output")
    return te.create_prim_func([data, weights, output])


def moved(expression: Any, places: Mapping[Any, Any]) -> Any:
    """Return an index expression with other variables.

    Raises:
        DialectError: it has a variable that has no place, or is more than sums and products.
    """
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
