"""What is computed of a tile's sums: in registers, or on the tile in the nearest cache where that cannot be."""

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

import tvm_ffi

from tunery._errors import DialectError
from tunery.dialects.metaschedule._tvm import tvm
from tunery.dialects.metaschedule.codegen.vector_math import FUNCTIONS
from tunery.dialects.metaschedule.tiles.kernels import Text
from tunery.dialects.metaschedule.tiles.nests import loop
from tunery.dialects.metaschedule.tiles.products import Parts, ProductLoop, coefficients
from tunery.dialects.metaschedule.variants.rewriting import mapped, shape_of, variable

_BINARY = {"Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div"}
_LARGER = {"Max": "ogt", "Min": "olt"}
_COMPARED = {"LT": "olt", "LE": "ole", "GT": "ogt", "GE": "oge"}
_WHOLE = {"LShift": "shl", "RShift": "ashr", "BitwiseOr": "or", "BitwiseAnd": "and"}
_OF_ONE = {"floor": "floor", "fabs": "fabs", "sqrt": "sqrt"}
_KINDS = {"float32": "float", "int32": "i32", "uint32": "i32", "bool": "i1"}
_VECTORIZED = 2


@dataclass(frozen=True)
class _Read:
    """An array that is read beside the sums: how far a row of a tile goes in it, and whether it has columns."""

    load: Any
    row: int
    column: bool


@dataclass(frozen=True)
class _Cell:
    """A vector of sums in a row of a tile, and the names of what was computed of it so far."""

    text: Text
    total: str
    row: int
    vector: int
    values: list[str]


class Expression:
    """What is computed of the sums."""

    def __init__(self, parts: Parts, row: ProductLoop | None, rows: int) -> None:
        self._parts, self._row, self._rows = parts, row, rows
        self.any = not self._is_sum(self._parts.value)
        self._reads: list[_Read] = []
        self._steps: list[Callable[[_Cell], str]] = []
        try:
            self._last = self._planned(_lowered(parts.value), {})
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

    def _planned(self, part: Any, bound: dict[Any, int]) -> int:
        """Return the step that computes a part of the expression; raise where a tile's function cannot."""
        if isinstance(part, tvm.ir.Var) and part in bound:
            return bound[part]
        if isinstance(part, tvm.tirx.Let):
            bound[part.var] = self._planned(part.value, bound)
            return self._planned(part.body, bound)
        step: Callable[[_Cell], str]
        if self._is_sum(part):
            step = attrgetter("total")
        elif isinstance(part, tvm.tirx.FloatImm):
            step = partial(_constant_of, float(part.value))
        elif isinstance(part, tvm.ir.TensorLoad):
            step = partial(self._loaded, self._number(part))
        else:
            step = partial(_computed, part, [self._planned(operand, bound) for operand in _operands(part)])
        self._steps.append(step)
        return len(self._steps) - 1

    def _number(self, load: Any) -> int:
        """Return which of the arrays that are read a load is of."""
        for number, read in enumerate(self._reads):
            if tvm_ffi.structural_equal(read.load, load):
                return number
        self._reads.append(self._read(load))
        return len(self._reads) - 1

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
        cell = _Cell(text, total, row, vector, [])
        for step in self._steps:
            cell.values.append(step(cell))
        return cell.values[self._last]

    def _loaded(self, number: int, cell: _Cell) -> str:
        text, read = cell.text, self._reads[number]
        offset = cell.row * read.row + (cell.vector * text.tile.lanes if read.column else 0)
        if read.column:
            return _shared(text, (number, offset), lambda: text.load(text.place(f"%e{number}", offset), cell.vector))
        return _shared(
            text, (number, offset),
            lambda: text.splat(text.value(f"load float, ptr {text.place(f'%e{number}', offset)}, align 4")),
        )  # fmt: skip


def _constant_of(value: float, cell: _Cell) -> str:
    return constant(cell.text, value)


def _computed(part: Any, operands: Sequence[int], cell: _Cell) -> str:
    return _instruction(part, [cell.values[operand] for operand in operands], cell.text)


def _name(part: Any) -> str:
    return str(part.op.name).removeprefix("tirx.") if isinstance(part, tvm.ir.Call) else ""


def _wide(lanes: int, part: Any) -> str:
    return f"<{lanes} x {_KINDS[str(part.ty.dtype)]}>"


def _operands(part: Any) -> list[Any]:
    """Return what an operation is of; raise where a tile's function cannot compute it."""
    kind, name = type(part).__name__, _name(part)
    if str(part.ty.dtype) in _KINDS:
        if kind in {*_BINARY, *_COMPARED, *_WHOLE} or (kind in _LARGER and any(map(_is_number, (part.a, part.b)))):
            return [part.a, part.b]
        if name in _OF_ONE or name == "reinterpret":
            return list(part.args)
        if kind == "Select":
            return [part.condition, part.true_value, part.false_value]
        if kind == "Cast" and (part.value.ty.dtype, part.ty.dtype) == ("float32", "int32"):
            return [part.value]
        if kind == "IntImm":
            return []
    raise DialectError("it is not computed in registers")


def _instruction(part: Any, operands: Sequence[str], text: Text) -> str:
    """Write the instruction of an operation and return the name of its result."""
    kind, name, lanes, wide = type(part).__name__, _name(part), text.tile.lanes, _wide(text.tile.lanes, part)
    first, last = (operands[0], operands[-1]) if operands else ("", "")
    if kind == "IntImm":
        return f"<{', '.join([f'i32 {int(part.value)}'] * lanes)}>"
    if kind == "Select":
        written = f"select <{lanes} x i1> {first}, {wide} {operands[1]}, {wide} {last}"
    elif kind == "Cast":
        written = f"fptosi {text.wide} {first} to {wide}"
    elif name == "reinterpret":
        written = f"bitcast {_wide(lanes, part.args[0])} {first} to {wide}"
    elif name in _OF_ONE:
        written = f"call {wide} @llvm.{_OF_ONE[name]}.v{lanes}f32({wide} {first})"
    elif kind in _WHOLE:
        written = f"{_WHOLE[kind]} {wide} {first}, {last}"
    elif kind in _BINARY:
        written = f"{'f' if wide == text.wide else ''}{_BINARY[kind]} {wide} {first}, {last}"
    elif kind in _COMPARED:
        written = f"fcmp {_COMPARED[kind]} {text.wide} {first}, {last}"
    else:
        if isinstance(part.b, tvm.tirx.FloatImm):  # a constant first: a NaN stays one
            first, last = last, first
        larger = text.value(f"fcmp {_LARGER[kind]} {wide} {first}, {last}")
        written = f"select <{lanes} x i1> {larger}, {wide} {first}, {wide} {last}"
    return text.value(written)


def _lowered(expression: Any) -> Any:
    """Return an expression with functions as the arithmetic that they are computed by."""

    def change(part: Any) -> Any:
        function = FUNCTIONS.get(_name(part)) if str(part.ty.dtype) == "float32" else None
        return function(_lowered(part.args[0])) if function else None

    return mapped(expression, change)


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
    """Return a number, rounded to float32, as LLVM writes it."""
    [rounded] = struct.unpack("<f", struct.pack("<f", value)) if math.isfinite(value) else [value]
    [bits] = struct.unpack("<Q", struct.pack("<d", rounded))
    return f"0x{bits:016X}"
