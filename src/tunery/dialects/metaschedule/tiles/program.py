"""The code of a product's design: loops over blocks and tiles around calls of the tiles' functions."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tunery._errors import DialectError
from tunery.dialects.metaschedule._tvm import tvm
from tunery.dialects.metaschedule.tiles.designs import TileDesign, row_tiles
from tunery.dialects.metaschedule.tiles.expression import Expression, axes_of
from tunery.dialects.metaschedule.tiles.kernels import Tile, function_of, padding_function
from tunery.dialects.metaschedule.tiles.nests import address, assembled, digits, loop, parallel, turns_in, zero
from tunery.dialects.metaschedule.tiles.products import Product
from tunery.dialects.metaschedule.variants.rewriting import long_of, shape_of, variable

_COPIED_PER_NS = 8  # numbers
FLOP_PER_LANE_NS = 4  # of a nanosecond: a multiply-add on two units at 1 GHz, less than any processor reaches


def packed_shape(product: Product, lanes: int) -> tuple[int, int, int]:
    """Return the shape of the weights of a product as its tiles read them: vectors of columns, steps, lanes."""
    leading = math.prod(shape_of(product.parts.weights)) // (product.steps * product.groups * product.columns.extent)
    return leading * product.groups * -(-product.columns.extent // lanes), product.steps, lanes


def program_of(product: Product, design: TileDesign, lanes: int) -> Any:
    """Return the module that computes a product by a design."""
    return ProductCode(product, design, lanes).module()


class ProductCode:
    """The loops over a product's tiles; `functions` are those that they call."""

    def __init__(self, product: Product, design: TileDesign, lanes: int) -> None:
        self._product, self._design, self._lanes = product, design, lanes
        self._parts = product.parts
        self.weights = self._parts.weights
        if product.constant:
            self.weights = tvm.tirx.decl_buffer(long_of(*packed_shape(product, lanes)), "float32", "packed")
        self._row = product.rows[-1] if product.rows else None
        self.functions: list[str] = []
        self._expression = Expression(product.parts, self._row, product.row_count)

    def module(self) -> Any:
        packed = self.weights if self._product.constant else None
        parts = replace(self._parts, before=(self._padding(),)) if self._product.padded else self._parts
        return assembled(parts, self.blocks(), self.functions, self._lanes, packed)

    def _padding(self) -> Any:
        """Return the loop that copies the data, row by row, with zeros around it."""
        assert self._product.padded is not None
        source, top, side = self._product.padded
        _, height, width, channels = shape_of(source)
        batch, rows, columns, _ = shape_of(self._parts.data)
        name, text = padding_function(4 * channels, 4 * columns * channels)
        self.functions.append(text)
        share = variable("row")
        image, row = digits(share, [batch, rows])
        taken = tvm.tirx.max(tvm.tirx.min(row - top, *long_of(height - 1)), zero())
        there = tvm.tirx.EQ(taken, row - top)
        call = tvm.tirx.call_extern(
            "int32", name, self._parts.data.access_ptr("w", offset=share * (columns * channels)),
            address(source, (image * height + taken) * (width * channels)), tvm.tirx.IntImm("int32", side),
            tvm.tirx.Select(there, *(tvm.tirx.IntImm("int32", count) for count in (width, 0))),
        )  # fmt: skip
        return parallel(share, batch * rows, columns * channels // _COPIED_PER_NS, tvm.tirx.Evaluate(call))

    def blocks(self) -> Any:
        product, design, lanes = self._product, self._design, self._lanes
        many, few, _ = row_tiles(product.row_count, design.rows)
        vectors = -(-product.columns.extent // lanes)
        columns = -(-vectors // design.vectors)
        row_blocks, column_blocks = -(-(many + few) // design.row_tiles), -(-columns // design.column_tiles)
        share = variable("share")
        outer, left = digits(share, [product.turns, row_blocks * column_blocks])
        if math.prod(shape_of(self._parts.weights)) > math.prod(shape_of(self._parts.data)):
            column_block, row_block = digits(left, [column_blocks, row_blocks])
        else:
            row_block, column_block = digits(left, [row_blocks, column_blocks])
        column, row = variable("column"), variable("row")
        first_column, first_row = column_block * design.column_tiles + column, row_block * design.row_tiles + row
        body = self.tiles(outer, first_row, first_column)
        body = loop(row, turns_in(many + few, row_block, design.row_tiles), body)
        body = loop(column, turns_in(columns, column_block, design.column_tiles), body)
        shares = product.turns * row_blocks * column_blocks
        flop = 2 * product.turns * product.row_count * product.columns.extent * product.steps
        return parallel(share, shares, flop // (FLOP_PER_LANE_NS * lanes * shares), body)

    def tiles(self, outer: Any, row: Any, column: Any) -> Any:
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
        turns = digits(outer, [loop.extent for loop in product.outer])
        data = sum((turn * loop.data for turn, loop in zip(turns, product.outer, strict=True)), start=zero())
        result = sum((turn * loop.result for turn, loop in zip(turns, product.outer, strict=True)), start=zero())
        wrap, begin = None, zero()
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
        extra = self._expression.arrays(axes_of(self._parts.output, result)) if self._expression.in_registers else []
        finish = self._expression.finish if self._expression.any and self._expression.in_registers else None
        name, text = function_of(tile, len(extra), finish)
        self.functions.append(text)
        call = tvm.tirx.call_extern(
            "int32", name, address(self._parts.data, data), self._columns(turns, first_vector),
            address(self._parts.output, result), tvm.tirx.Cast("int32", begin), *extra,
        )  # fmt: skip
        called = tvm.tirx.Evaluate(call)
        if self._expression.in_registers:
            return called
        return tvm.tirx.SeqStmt([called, self._expression.after(result, rows, (vectors - 1) * lanes + last, step)])

    def _columns(self, turns: Sequence[Any], vector: Any) -> Any:
        """Return the address of the values of a column's vector."""
        product, lanes = self._product, self._lanes
        if not product.constant:
            offset = sum((turn * loop.weights for turn, loop in zip(turns, product.outer, strict=True)), start=zero())
            return address(self.weights, offset + vector * lanes)
        whole = product.steps * product.groups * product.columns.extent
        panels = -(-product.columns.extent // lanes)
        for turn, of_turn in zip(turns, product.outer, strict=True):
            batch, group = divmod(of_turn.weights, whole)
            if group and group != product.columns.extent:
                raise DialectError("its weights do not lie batch by batch")
            vector = vector + turn * (batch * product.groups * panels + (panels if group else 0))
        return address(self.weights, vector * (product.steps * lanes))


def _taps(product: Product) -> tuple[tuple[int, int], tuple[int, int]] | None:
    if not product.taps:
        return None
    taps = [(loop.extent, loop.data) for loop in product.taps]
    return (taps[0], taps[1]) if len(taps) > 1 else (taps[0], (1, 0))
