"""What is computed of a tile's sums: in registers, or on the tile in the nearest cache where that cannot be."""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tunery._errors import DialectError
from tunery.dialects.metaschedule._tvm import tvm
from tunery.dialects.metaschedule.tiles.kernels import Text
from tunery.dialects.metaschedule.tiles.nests import loop
from tunery.dialects.metaschedule.tiles.products import Parts, ProductLoop, coefficients
from tunery.dialects.metaschedule.variants.rewriting import mapped, shape_of, variable

_BINARY = {"Add": "fadd", "Sub": "fsub", "Mul": "fmul", "Div": "fdiv"}
_COMPARED = {"Max": "ogt", "Min": "olt"}
_VECTORIZED = 2


@dataclass(frozen=True)
class _Read:
    """An array that is read beside the sums: how far a row of a tile goes in it, and whether it has columns."""

    load: Any
    row: int
    column: bool


class Expression:
    """What is computed of the sums."""

    def __init__(self, parts: Parts, row: ProductLoop | None, rows: int) -> None:
        self._parts, self._row, self._rows = parts, row, rows
        self.any = not self._is_sum(self._parts.value)
        self._reads: list[_Read] = []
        try:
            self._check(self._parts.value)
            self.in_registers = True
        except DialectError:
            self.in_registers = False

    def _is_sum(self, part: Any) -> bool:
        if not (isinstance(part, tvm.ir.TensorLoad) and part.source.same_as(self._parts.sums)):
            return False
        return all(
            index.same_as(axis) or (isinstance(index, tvm.tirx.IntImm) and extent == 1)
            for index, axis, extent in zip(part.indices, self._parts.axes, shape_of(self._parts.output), strict=True)
        )

    def at(self, axes: Sequence[Any]) -> Any:
        return self._moved(self._parts.value, axes)

    def _moved(self, expression: Any, axes: Sequence[Any]) -> Any:
        places = list(zip(self._parts.axes, axes, strict=True))

        def change(part: Any) -> Any:
            if isinstance(part, tvm.ir.Var):
                return next((place for axis, place in places if axis.same_as(part)), None)
            if isinstance(part, tvm.ir.TensorLoad) and part.source.same_as(self._parts.sums):
                if not self._is_sum(part):
                    raise DialectError("what follows reads sums of another place")
                return self._parts.output[tuple(axes)]
            return None

        return mapped(expression, change)

    def _check(self, part: Any) -> None:
        """Find what is read; raise where the tile's function cannot compute it."""
        kind = type(part).__name__
        if self._is_sum(part) or isinstance(part, tvm.tirx.FloatImm):
            return
        if isinstance(part, tvm.ir.TensorLoad):
            self._reads.append(self._read(part))
        elif kind in _BINARY or (kind in _COMPARED and any(map(_is_number, (part.a, part.b)))):
            self._check(part.a)
            self._check(part.b)
        else:
            raise DialectError("it is not computed in registers")

    def _read(self, load: Any) -> _Read:
        if str(load.source.ty.dtype) != "float32" or load.source.same_as(self._parts.sums):
            raise DialectError("it is not computed in registers")
        extents = shape_of(self._parts.output)
        axes = self._parts.axes
        found = coefficients(load.source, load.indices, axes, {}, dict(zip(axes, extents, strict=True)), start=0)
        steps = [found[axis] for axis in axes]
        if steps[-1] not in {0, 1}:
            raise DialectError("it is not computed in registers")
        row = self._row
        step: int | None = None
        size = 1
        for extent, own in zip(reversed(extents[:-1]), reversed(steps[:-1]), strict=True):
            result = size * extents[-1]
            inside = row is not None and row.result <= result < row.result * self._rows
            if inside and extent > 1 and row is not None:
                per_row, rest = divmod(own * row.result, result)
                if rest or (step is not None and per_row != step):
                    raise DialectError("it is not computed in registers")
                step = per_row
            size *= extent
        return _Read(load, step or 0, steps[-1] == 1)

    def after(self, result: Any, rows: int, columns: int, step: int) -> Any:
        """Return the loops that compute what is left on a tile's sums, which are in the nearest cache."""
        row, lane = variable("r"), variable("lane")
        axes = axes_of(self._parts.output, result + row * step)
        axes[-1] = axes[-1] + lane
        stored = tvm.tirx.BufferStore(self._parts.output, self.at(axes), axes)
        return loop(row, rows, loop(lane, columns, stored, _VECTORIZED))

    def arrays(self, axes: Sequence[Any]) -> list[Any]:
        """Return the addresses of what a tile's function reads beside the sums, for a tile that begins at a place."""
        found = []
        for read in self._reads:
            at = self._moved(read.load, axes)
            found.append(tvm.tirx.address_of(at))
        return found

    def finish(self, text: Text, total: str, row: int, vector: int) -> str:
        reads = iter(enumerate(self._reads))
        tile = text.tile

        def write(part: Any) -> str:
            kind = type(part).__name__
            if self._is_sum(part):
                return total
            if isinstance(part, tvm.tirx.FloatImm):
                return constant(text, float(part.value))
            if isinstance(part, tvm.ir.TensorLoad):
                number, read = next(reads)
                offset = row * read.row + (vector * tile.lanes if read.column else 0)
                if read.column:
                    key = (number, offset)
                    return _shared(text, key, lambda: text.load(text.place(f"%e{number}", offset), vector))
                key = (number, offset)
                return _shared(
                    text, key,
                    lambda: text.splat(text.value(f"load float, ptr {text.place(f'%e{number}', offset)}, align 4")),
                )  # fmt: skip
            a, b = write(part.a), write(part.b)
            if kind in _BINARY:
                return text.value(f"{_BINARY[kind]} {text.wide} {a}, {b}")
            if isinstance(part.b, tvm.tirx.FloatImm):  # a constant first: a NaN stays one
                a, b = b, a
            larger = text.value(f"fcmp {_COMPARED[kind]} {text.wide} {a}, {b}")
            return text.value(f"select <{tile.lanes} x i1> {larger}, {text.wide} {a}, {text.wide} {b}")

        return write(self._parts.value)


def constant(text: Text, value: float) -> str:
    """Return a vector of a number."""
    return _shared(text, ("constant", value), lambda: text.splat(_float(value)))


def axes_of(output: Any, result: Any) -> list[Any]:
    *_, width = shape = shape_of(output)
    size, found = width, [tvm.tirx.floormod(result, width)]
    for extent in reversed(shape[:-1]):
        found.insert(0, tvm.tirx.floormod(tvm.tirx.floordiv(result, size), extent))
        size *= extent
    return found


def _is_number(part: Any) -> bool:
    """Return whether a part is a constant other than NaN: what is compared with one keeps its own NaN."""
    return isinstance(part, tvm.tirx.FloatImm) and not math.isnan(part.value)


def _shared(text: Text, key: object, make: Any) -> str:
    if key not in text.shared:
        text.shared[key] = make()
    return text.shared[key]


def _float(value: float) -> str:
    [bits] = struct.unpack("<Q", struct.pack("<d", value))
    return f"0x{bits:016X}"
