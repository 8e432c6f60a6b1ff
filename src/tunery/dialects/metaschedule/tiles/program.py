"""The code of a product's design: loops over blocks and tiles around calls of the tiles' functions."""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tunery._errors import DialectError
from tunery.dialects.metaschedule._tvm import tvm
from tunery.dialects.metaschedule.codegen.regions import NANOSECONDS
from tunery.dialects.metaschedule.tiles.designs import TileDesign, row_tiles
from tunery.dialects.metaschedule.tiles.kernels import Text, Tile, function_of, module_of
from tunery.dialects.metaschedule.tiles.products import Product, _coefficients
from tunery.dialects.metaschedule.variants.rewriting import long_of, mapped, shape_of, variable

PACKED = "tunery.packed"
"""Attribute of a function: which of its arguments are a network's constant matrices, as its code reads them."""
_FLOP_PER_LANE_NS = 4  # of a nanosecond: a multiply-add on two units at 1 GHz, less than any processor reaches
_SERIAL, _PARALLEL, _VECTORIZED = 0, 1, 2
_BINARY = {"Add": "fadd", "Sub": "fsub", "Mul": "fmul", "Div": "fdiv"}
_COMPARED = {"Max": "ogt", "Min": "olt"}


def packed_shape(product: Product, lanes: int) -> tuple[int, int, int]:
    """Return the shape of the weights of a product as its tiles read them: vectors of columns, steps, lanes."""
    leading = math.prod(shape_of(product.parts.weights)) // (product.steps * product.groups * product.columns.extent)
    return leading * product.groups * -(-product.columns.extent // lanes), product.steps, lanes


def program_of(product: Product, design: TileDesign, lanes: int) -> Any:
    """Return the module that computes a product by a design."""
    return _Program(product, design, lanes).module()


class _Program:
    def __init__(self, product: Product, design: TileDesign, lanes: int) -> None:
        self._product, self._design, self._lanes = product, design, lanes
        self._parts = product.parts
        self._weights = self._parts.weights
        if product.constant:
            self._weights = tvm.tirx.decl_buffer(long_of(*packed_shape(product, lanes)), "float32", "packed")
        self._row = product.rows[-1] if product.rows else None
        self._functions: list[str] = []
        self._expression = _Expression(product)

    def module(self) -> Any:
        parts = self._parts
        parameters = list(parts.function.params)
        parameters[parts.weight] = self._weights
        main = self._blocks()
        text = tvm.ir.StringImm(module_of(self._functions, self._lanes))
        body = tvm.tirx.SeqStmt([*parts.before, main]) if parts.before else main
        body = tvm.tirx.AttrStmt(tvm.tirx.IntImm("int32", 0), "pragma_import_llvm", text, body)
        block = tvm.s_tir.SBlock([], [], [], "root", body, None, list(parts.allocated), [], {})
        function = tvm.tirx.PrimFunc(parameters, tvm.s_tir.SBlockRealize([], True, block))
        attributes = {
            name: value for name, value in dict(parts.function.attrs).items() if name != "layout_free_buffers"
        }
        if self._product.constant:
            attributes[PACKED] = [parts.weight]
        return tvm.IRModule({"main": function.with_attrs(attributes)})

    def _blocks(self) -> Any:
        product, design, lanes = self._product, self._design, self._lanes
        many, few, _ = row_tiles(product.row_count, design.rows)
        vectors = -(-product.columns.extent // lanes)
        columns = -(-vectors // design.vectors)
        row_blocks, column_blocks = -(-(many + few) // design.row_tiles), -(-columns // design.column_tiles)
        share = variable("share")
        outer, left = _digits(share, [product.turns, row_blocks * column_blocks])
        if math.prod(shape_of(self._parts.weights)) > math.prod(shape_of(self._parts.data)):
            column_block, row_block = _digits(left, [column_blocks, row_blocks])
        else:
            row_block, column_block = _digits(left, [row_blocks, column_blocks])
        column, row = variable("column"), variable("row")
        first_column, first_row = column_block * design.column_tiles + column, row_block * design.row_tiles + row
        body = self._column_tiles(outer, first_row, first_column)
        body = _loop(row, _left(many + few, row_block, design.row_tiles), body)
        body = _loop(column, _left(columns, column_block, design.column_tiles), body)
        shares = product.turns * row_blocks * column_blocks
        flop = 2 * product.turns * product.row_count * product.columns.extent * product.steps
        time_ns = tvm.tirx.IntImm("int64", max(1, flop // (_FLOP_PER_LANE_NS * lanes * shares)))
        return _loop(share, shares, tvm.tirx.AttrStmt(_zero(), NANOSECONDS, time_ns, body), _PARALLEL)

    def _column_tiles(self, outer: Any, row: Any, column: Any) -> Any:
        """Return the calls of the tiles in a row and a column of tiles: the last columns may be fewer."""
        width = self._design.vectors
        vectors = -(-self._product.columns.extent // self._lanes)
        last = self._product.columns.extent - (vectors - 1) * self._lanes
        columns = -(-vectors // width)
        rest = vectors - (columns - 1) * width
        edge = self._row_tiles(outer, row, column, rest, last)
        if columns == 1:
            return edge
        if (rest, last) == (width, self._lanes):
            return edge
        whole = self._row_tiles(outer, row, column, width, self._lanes)
        return tvm.tirx.IfThenElse(column < columns - 1, whole, edge)

    def _row_tiles(self, outer: Any, row: Any, column: Any, vectors: int, last: int) -> Any:
        many, few, small = row_tiles(self._product.row_count, self._design.rows)
        rows = self._design.rows
        found = []
        if many:
            found.append(self._call(outer, row * rows, column, rows, vectors, last))
        if few:
            first = (row - many) * small + many * rows
            found.append(self._call(outer, first, column, small, vectors, last))
        return tvm.tirx.IfThenElse(row < many, *found) if len(found) > 1 else found[0]

    def _call(self, outer: Any, first: Any, column: Any, rows: int, vectors: int, last: int) -> Any:  # noqa: PLR0917
        """Return the call of one tile, and what is computed of its sums where that is not done in registers."""
        product, lanes = self._product, self._lanes
        packed = product.constant
        turns = _digits(outer, [loop.extent for loop in product.outer])
        data = sum((turn * loop.data for turn, loop in zip(turns, product.outer, strict=True)), start=_zero())
        result = sum((turn * loop.result for turn, loop in zip(turns, product.outer, strict=True)), start=_zero())
        wrap, begin = None, _zero()
        if len(product.rows) > 1:
            image_row, image_column = product.rows
            wrap = image_column.extent, image_row.data - image_column.data * image_column.extent
            begin = tvm.tirx.floormod(first, image_column.extent)
            data = data + tvm.tirx.floordiv(first, image_column.extent) * image_row.data + begin * image_column.data
        elif self._row:
            data = data + first * self._row.data
        step = self._row.result if self._row else 0
        first_vector = column * self._design.vectors
        result = result + first * step + first_vector * lanes
        tile = Tile(
            rows, vectors, lanes, last, self._row.data if self._row else 0, step,
            lanes if packed else product.step, product.steps * lanes if packed else lanes, product.depth,
            _taps(product), wrap,
        )  # fmt: skip
        extra = self._expression.arrays(self._axes(result)) if self._expression.in_registers else []
        finish = self._expression.finish if self._expression.any and self._expression.in_registers else None
        name, text = function_of(tile, len(extra), finish)
        self._functions.append(text)
        call = tvm.tirx.call_extern(
            "int32", name, _address(self._parts.data, data), self._columns(turns, first_vector),
            _address(self._parts.output, result), tvm.tirx.Cast("int32", begin), *extra,
        )  # fmt: skip
        called = tvm.tirx.Evaluate(call)
        if self._expression.in_registers:
            return called
        return tvm.tirx.SeqStmt([called, self._after(result, rows, (vectors - 1) * lanes + last, step)])

    def _columns(self, turns: Sequence[Any], vector: Any) -> Any:
        """Return the address of the values of a column's vector."""
        product, lanes = self._product, self._lanes
        if not product.constant:
            offset = sum((turn * loop.weights for turn, loop in zip(turns, product.outer, strict=True)), start=_zero())
            return _address(self._weights, offset + vector * lanes)
        whole = product.steps * product.groups * product.columns.extent
        panels = -(-product.columns.extent // lanes)
        for turn, loop in zip(turns, product.outer, strict=True):
            batch, group = divmod(loop.weights, whole)
            if group and group != product.columns.extent:
                raise DialectError("its weights do not lie batch by batch")
            vector = vector + turn * (batch * product.groups * panels + (panels if group else 0))
        return _address(self._weights, vector * (product.steps * lanes))

    def _axes(self, result: Any) -> list[Any]:
        """Return the place in the result, axis by axis, of what lies at an offset of it."""
        *_, width = shape = shape_of(self._parts.output)
        size, found = width, [tvm.tirx.floormod(result, width)]
        for extent in reversed(shape[:-1]):
            found.insert(0, tvm.tirx.floormod(tvm.tirx.floordiv(result, size), extent))
            size *= extent
        return found

    def _after(self, result: Any, rows: int, columns: int, step: int) -> Any:
        """Return the loops that compute what is left on a tile's sums, which are in the nearest cache."""
        row, lane = variable("r"), variable("lane")
        axes = self._axes(result + row * step)
        axes[-1] = axes[-1] + lane
        stored = tvm.tirx.BufferStore(self._parts.output, self._expression.at(axes), axes)
        return _loop(row, rows, _loop(lane, columns, stored, _VECTORIZED))


@dataclass(frozen=True)
class _Read:
    """An array that is read beside the sums: how far a row of a tile goes in it, and whether it has columns."""

    load: Any
    row: int
    column: bool


class _Expression:
    """What is computed of the sums."""

    def __init__(self, product: Product) -> None:
        self._parts, self._product = product.parts, product
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
        """Return the expression at a place of the result, where the sum is read from."""
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
        found = _coefficients(load.source, load.indices, axes, {}, dict(zip(axes, extents, strict=True)), start=0)
        steps = [found[axis] for axis in axes]
        if steps[-1] not in {0, 1}:
            raise DialectError("it is not computed in registers")
        row = self._product.rows[-1] if self._product.rows else None
        step: int | None = None
        size = 1
        for extent, own in zip(reversed(extents[:-1]), reversed(steps[:-1]), strict=True):
            result = size * extents[-1]
            inside = row is not None and row.result <= result < row.result * self._product.row_count
            if inside and extent > 1 and row is not None:
                per_row, rest = divmod(own * row.result, result)
                if rest or (step is not None and per_row != step):
                    raise DialectError("it is not computed in registers")
                step = per_row
            size *= extent
        return _Read(load, step or 0, steps[-1] == 1)

    def arrays(self, axes: Sequence[Any]) -> list[Any]:
        """Return the addresses of what a tile's function reads beside the sums, for a tile that begins at a place."""
        found = []
        for read in self._reads:
            at = self._moved(read.load, axes)
            found.append(tvm.tirx.address_of(at))
        return found

    def finish(self, text: Text, total: str, row: int, vector: int) -> str:
        """Write the expression for a row and a vector of a tile, as `Finish` says."""
        reads = iter(enumerate(self._reads))
        tile = text.tile

        def write(part: Any) -> str:
            kind = type(part).__name__
            if self._is_sum(part):
                return total
            if isinstance(part, tvm.tirx.FloatImm):
                return _shared(text, ("constant", float(part.value)), lambda: text.splat(_float(float(part.value))))
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


def _taps(product: Product) -> tuple[tuple[int, int], tuple[int, int]] | None:
    if not product.taps:
        return None
    taps = [(loop.extent, loop.data) for loop in product.taps]
    return (taps[0], taps[1]) if len(taps) > 1 else (taps[0], (1, 0))


def _zero() -> Any:
    return tvm.tirx.IntImm("int64", 0)


def _address(buffer: Any, offset: Any) -> Any:
    """Return the address at an offset of a buffer."""
    indices: list[Any] = []
    shape = shape_of(buffer)
    size = math.prod(shape)
    for extent in shape:
        size //= extent
        indices.append(
            tvm.tirx.floormod(tvm.tirx.floordiv(offset, size), extent) if indices else tvm.tirx.floordiv(offset, size)
        )
    return tvm.tirx.address_of(buffer[tuple(indices)])


def _digits(number: Any, extents: Sequence[int]) -> list[Any]:
    """Return a number's digits in a mixed radix."""
    found: list[Any] = []
    for extent in reversed(extents[1:]):
        found.insert(0, tvm.tirx.floormod(number, extent))
        number = tvm.tirx.floordiv(number, extent)
    return [number, *found] if extents else []


def _left(count: int, block: Any, share: int) -> Any:
    """Return how many of `count` are in a block of `share`."""
    return share if count % share == 0 else tvm.tirx.min(*long_of(share), count - block * share)


def _loop(var: Any, extent: Any, body: Any, kind: int = _SERIAL) -> Any:
    extent = long_of(extent)[0] if isinstance(extent, int) else extent
    return tvm.tirx.For(var, _zero(), extent, kind, body)
