"""Winograd's minimal filtering for 3x3 convolutions of stride 1: F(4x4, 3x3), its products from register tiles.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (arXiv 1509.09308): every square of m x m outputs
costs (m + 2)^2 multiplications for each pair of channels instead of 9 m^2, so 4 times fewer. Weights are transformed
beforehand. The points of F(4x4) are not the paper's 0, ±1, ±2, whose largest error was 5 times that of an ordinary
convolution in float32 (256 channels), but 0, ±3/4, ±3/2, where it was 1.5 times.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tunery._errors import DialectError
from tunery.dialects.metaschedule._tvm import tvm
from tunery.dialects.metaschedule.loading.preparing import KERNEL, TILES, WINOGRAD, matrices
from tunery.dialects.metaschedule.reasons import OtherKindError
from tunery.dialects.metaschedule.tiles.designs import TileDesign, row_tiles, tile_sizes, vector_of
from tunery.dialects.metaschedule.tiles.expression import Expression, axes_of, constant
from tunery.dialects.metaschedule.tiles.kernels import Text, Tile, defined, padding_function
from tunery.dialects.metaschedule.tiles.nests import address, assembled, digits, loop, parallel, turns_in, zero
from tunery.dialects.metaschedule.tiles.products import (
    Parts,
    Product,
    ProductLoop,
    around_sum,
    convolution_of,
    parts_of,
)
from tunery.dialects.metaschedule.tiles.program import FLOP_PER_LANE_NS, ProductCode, packed_shape
from tunery.dialects.metaschedule.variants.rewriting import long_of, realized, shape_of, variable

TILE, NAME = 4, WINOGRAD
SLACK = 2.0
"""How many times the usual tolerance it is given: the largest share of it that was needed was 1.5."""

_SIZE = TILE + KERNEL - 1
_NONE = tvm.tirx.IntImm("int32", 0)
_LEAST_CHANNELS = 16
_LEAST_SQUARES, _MOST_SQUARES = 24, 56
"""Of a block: with fewer the weights are read too often, and more leave the second cache."""
_MOST_BYTES, _LEAST_FLOP_PER_BYTE = 4 << 20, 10.0
"""Larger transformed weights are waited for unless there is so much to do with each byte."""


@dataclass(frozen=True)
class Winograd:
    """A convolution: its sizes, the padding before its rows and columns, and what surrounds its sums."""

    batch: int
    data: tuple[int, int]
    result: tuple[int, int]
    before: tuple[int, int]
    channels: tuple[int, int]
    parts: Parts

    @property
    def squares(self) -> tuple[int, int, int]:
        """Images, and rows and columns of squares of outputs in each."""
        rows, columns = (-(-size // TILE) for size in self.result)
        return self.batch, rows, columns

    @property
    def pays(self) -> bool:
        """Whether it halves the products at least, and reading weights that it has made larger does not cost more."""
        if 2 * _SIZE * _SIZE * math.prod(self.squares) > KERNEL * KERNEL * self.batch * math.prod(self.result):
            return False
        weights = 4 * _SIZE * _SIZE * math.prod(self.channels)
        flop = 2 * KERNEL * KERNEL * self.batch * math.prod(self.result) * math.prod(self.channels)
        return weights <= _MOST_BYTES or flop >= _LEAST_FLOP_PER_BYTE * weights


def winograd_of(module: Any) -> Winograd:
    operator = convolution_of(module)
    (batch, inside, *sizes), dtype = operator.tensors["x"]
    (outside, share, *taps), _ = operator.tensors["w"]
    steps: dict[str, Any] = dict(operator.attributes)
    plain = dtype == "float32" and steps["groups"] == 1 and {*steps["strides"], *steps["dilations"]} == {1}
    if not plain or taps != [KERNEL, KERNEL] or share != inside:
        raise OtherKindError("it is no 3x3 convolution of float32 with stride 1 over all channels")
    schedule, block, _, after = around_sum(module)
    function = schedule.mod["main"]
    data, weights = (function.params[i] for name in "xw" for i, own in operator.names.items() if own == name)
    if shape_of(data) != [batch, *sizes, inside] or shape_of(weights) != [*taps, inside, outside]:
        raise OtherKindError("its channels are not last")
    if min(inside, outside) < _LEAST_CHANNELS:
        raise DialectError(f"fewer than {_LEAST_CHANNELS} channels")
    parts = parts_of(function, block, schedule.get(after[-1]) if after else block, (), data, weights)
    free = (function.attrs or {}).get("layout_free_buffers", ())
    if parts.weight not in {int(index) for index in free}:
        raise DialectError("the weights are not constant, or too few to be packed")
    rows, columns = shape_of(parts.output)[1:3]
    height, width = sizes
    top, left = steps["pads"][:2]
    one = Winograd(batch, (height, width), (rows, columns), (top, left), (inside, outside), parts)
    if not one.pays:
        raise DialectError("it would save less than its transformations cost")
    return one


def products_of(one: Winograd, squares: int) -> Product:
    """Return the products of so many squares: one for each of the 36 places in them."""
    inside, outside = one.channels
    places = _SIZE * _SIZE
    data, sums = (tvm.tirx.decl_buffer(long_of(places * squares * n), "float32", "square") for n in one.channels)
    weights = tvm.tirx.decl_buffer(long_of(places, inside, outside), "float32", "weights")
    axis = variable("axis")
    parts = replace(one.parts, data=data, weights=weights, output=sums, axes=(axis,), value=sums[axis], sums=sums)
    rows = (ProductLoop(squares, inside, 0, outside),) if squares > 1 else ()
    outer = (ProductLoop(places, squares * inside, inside * outside, squares * outside),)
    return Product(outer, rows, ProductLoop(outside, 0, 1, 1), (), inside, outside, 1, constant=True, parts=parts)


def transform_of(one: Winograd, lanes: int) -> str:
    panels, _, _ = packed_shape(products_of(one, 1), lanes)
    return f"{NAME}{TILES}{panels}x1x{lanes}"


def square_designs(one: Winograd, target: Any, threads: int) -> list[TileDesign]:
    """Return designs, of which `row_tiles` says how many squares are in a block that a thread takes through all steps.

    If that is all of them, threads share each step instead, which reads large weights once.
    """
    whole = math.prod(one.squares)
    blocks = [threads * math.ceil(whole / most / threads) for most in (_MOST_SQUARES, _MOST_SQUARES // 2)]
    counts = [count for block in blocks if (count := math.ceil(whole / block)) >= _LEAST_SQUARES]
    counts.insert(len(counts[:1]), whole)
    chosen: dict[TileDesign, None] = {}
    for number in range(2):
        for count in counts:
            product = products_of(one, count)
            rows, vectors = tile_sizes(product, target)[: number + 1][-1]
            panels = -(-packed_shape(product, vector_of(product, target))[0] // (_SIZE * _SIZE * vectors))
            chosen[TileDesign(rows, vectors, count, panels)] = None
    return list(chosen)


def square_program(one: Winograd, design: TileDesign, lanes: int) -> Any:
    return _Program(one, design, lanes).module()


class _Program:
    def __init__(self, one: Winograd, design: TileDesign, lanes: int) -> None:
        self._one, self._lanes = one, lanes
        self._whole = math.prod(one.squares)
        self._count = min(design.row_tiles, self._whole)
        self._product = products_of(one, self._count)
        many, few, _ = row_tiles(self._count, design.rows)
        self._design = replace(design, row_tiles=many + few)
        self._code = ProductCode(self._product, self._design, lanes)
        height, width = one.result
        self._expression = Expression(one.parts, ProductLoop(height * width, 0, 0, one.channels[1]), height * width)
        self._functions = self._code.functions

    def module(self) -> Any:
        one, product = self._one, self._product
        arrays = [product.parts.data, product.parts.output]
        square = variable("square")
        flop = 2 * math.prod(one.channels) * _SIZE * _SIZE // (FLOP_PER_LANE_NS * self._lanes)
        if self._count == self._whole:
            steps = [
                parallel(square, self._whole, flop // one.channels[1], self._read(square, square)),
                self._code.blocks(),
            ]
            square = variable("square")
            steps.append(parallel(square, self._whole, flop // one.channels[0], self._write(square, square)))
            nest = tvm.tirx.SeqStmt(steps)
            return assembled(
                replace(one.parts, allocated=tuple(arrays)), nest, self._functions, self._lanes, self._code.weights
            )
        block, place = variable("block"), variable("place")
        turns = turns_in(self._whole, block, self._count)
        steps = [loop(square, turns, self._read(block * self._count + square, square)), self._products(place)]
        square = variable("square")
        steps.append(loop(square, turns, self._write(block * self._count + square, square)))
        body = realized(tvm.s_tir.SBlock([], [], [], "squares", tvm.tirx.SeqStmt(steps), None, arrays, [], {}))
        nest = parallel(block, -(-self._whole // self._count), flop * self._count, body)
        return assembled(one.parts, nest, self._functions, self._lanes, self._code.weights)

    def _products(self, place: Any) -> Any:
        panels = packed_shape(self._product, self._lanes)[0] // (_SIZE * _SIZE)
        column, row = variable("column"), variable("row")
        body = loop(row, self._design.row_tiles, self._code.tiles(place, row, column))
        return loop(place, _SIZE * _SIZE, loop(column, -(-panels // self._design.vectors), body))

    def _read(self, number: Any, place: Any) -> Any:
        """Return what transforms the data of a square, which at an image's edges is copied between zeros before."""
        one, (inside, _) = self._one, self._one.channels
        (height, width), (rows, columns) = one.data, one.squares[1:]
        image, i, j = digits(number, one.squares)
        top, left = i * TILE - one.before[0], j * TILE - one.before[1]
        begins = (image * height + top) * width + left
        patch = tvm.tirx.decl_buffer(long_of(_SIZE, _SIZE, inside), "float32", "patch")
        to = place * inside
        apart = self._vectors(inside, lambda at, last: self._reading(address(patch, at), _SIZE, to + at, last))
        copied = tvm.tirx.SeqStmt([self._copy(patch, image, top, left), apart])
        copied = realized(tvm.s_tir.SBlock([], [], [], "patch", copied, None, [patch], [], {}))
        source = one.parts.data
        plain = self._vectors(
            inside, lambda at, last: self._reading(address(source, begins * inside + at), width, to + at, last)
        )
        bounds = []
        for begin, size, before, count in (
            (top, height, one.before[0], rows), (left, width, one.before[1], columns)
        ):  # fmt: skip
            bounds += [begin >= 0] if before else []
            bounds += [begin <= size - _SIZE] if (count - 1) * TILE - before + _SIZE > size else []
        return tvm.tirx.IfThenElse(tvm.tirx.all(*bounds), plain, copied) if bounds else plain

    def _copy(self, patch: Any, image: Any, top: Any, left: Any) -> Any:
        """Return the loop over the rows of a square that copies what is inside the image, with zeros around it."""
        (height, width), (inside, _) = self._one.data, self._one.channels
        name, text = padding_function(4 * inside, 4 * _SIZE * inside)
        self._functions.append(text)
        row = variable("row")
        taken, before = top + row, tvm.tirx.max(-left, zero())
        count = tvm.tirx.min(left + _SIZE, *long_of(width)) - tvm.tirx.max(left, zero())
        there = tvm.tirx.all(taken >= 0, taken < height)
        source = ((image * height + taken) * width + tvm.tirx.max(left, zero())) * inside
        call = tvm.tirx.call_extern(
            "int32", name, patch.access_ptr("w", offset=row * (_SIZE * inside)), address(self._one.parts.data, source),
            tvm.tirx.Cast("int32", before), tvm.tirx.Select(there, tvm.tirx.Cast("int32", count), _NONE),
        )  # fmt: skip
        return loop(row, _SIZE, tvm.tirx.Evaluate(call))

    def _vectors(self, channels: int, body: Any) -> Any:
        """Return a loop over the vectors of channels; of the last one there may be a part."""
        whole, last = divmod(channels, self._lanes)
        vector = variable("vector")
        parts = [loop(vector, whole, body(vector * self._lanes, self._lanes))] if whole else []
        parts += [body(long_of(whole * self._lanes)[0], last)] if last else []
        return tvm.tirx.SeqStmt(parts) if len(parts) > 1 else parts[0]

    def _reading(self, data: Any, width: int, to: Any, last: int) -> Any:
        inside = self._one.channels[0]
        name, text = _read_function(self._lanes, last, width * inside, inside, self._count * inside)
        return self._called(name, text, data, self._product.parts.data.access_ptr("w", offset=to), [])

    def _called(self, name: str, text: str, data: Any, to: Any, arrays: Sequence[Any]) -> Any:
        self._functions.append(text)
        return tvm.tirx.Evaluate(
            tvm.tirx.call_extern("int32", name, data, data, to, tvm.tirx.Cast("int32", zero()), *arrays)
        )

    def _write(self, number: Any, place: Any) -> Any:
        """Return what transforms the sums of a square to results; of those at an image's end there are fewer."""
        one = self._one
        _, *counts = one.squares
        image, i, j = digits(number, one.squares)
        sizes = [size - (count - 1) * TILE for size, count in zip(one.result, counts, strict=True)]

        def choose(rows: int, columns: int) -> Any:
            first = (image * one.result[0] + i * TILE) * one.result[1] + j * TILE
            return self._vectors(
                one.channels[1], lambda at, last: self._writing(place, first, at, last, (rows, columns))
            )

        def across(rows: int) -> Any:
            if sizes[1] == TILE:
                return choose(rows, TILE)
            return tvm.tirx.IfThenElse(j < counts[1] - 1, choose(rows, TILE), choose(rows, sizes[1]))

        if sizes[0] == TILE:
            return across(TILE)
        return tvm.tirx.IfThenElse(i < counts[0] - 1, across(TILE), across(sizes[0]))

    def _writing(self, place: Any, first: Any, at: Any, last: int, sizes: tuple[int, int]) -> Any:
        one, (_, outside), expression = self._one, self._one.channels, self._expression
        result = first * outside + at
        arrays = expression.arrays(axes_of(one.parts.output, result)) if expression.in_registers else []
        finish = expression.finish if expression.any and expression.in_registers else None
        tile = Tile(TILE * one.result[1], 1, self._lanes, last, 0, outside, 0, self._lanes, 0)
        name, text = _write_function(tile, sizes, one.result[1], self._count * outside, len(arrays), finish)
        data = self._product.parts.output.access_ptr("r", offset=place * outside + at)
        called = self._called(name, text, data, address(one.parts.output, result), arrays)
        if expression.in_registers:
            return called
        firsts = [result + row * (one.result[1] * outside) for row in range(sizes[0])]
        return tvm.tirx.SeqStmt([called, *(expression.after(row, sizes[1], last, outside) for row in firsts)])


def _read_function(lanes: int, last: int, row: int, pixel: int, apart: int) -> tuple[str, str]:
    """Return name and text of what transforms a vector of a square's data: its rows, then its columns."""
    text = Text(Tile(1, 1, lanes, last, 0, 0, 0, 0, 0))
    matrix = matrices(TILE)[0]
    text.label("entry")
    half = [
        _combined(text, matrix, [text.load(text.place("%a", r * row + s * pixel), 0) for r in range(_SIZE)])
        for s in range(_SIZE)
    ]
    for i in range(_SIZE):
        for j, value in enumerate(_combined(text, matrix, [column[i] for column in half])):
            text.store(value, text.place("%c", (i * _SIZE + j) * apart), 0)
    return defined(text, "first", 0)


def _write_function(  # noqa: PLR0917 - what is written
    tile: Tile, sizes: tuple[int, int], width: int, apart: int, extra: int, finish: Any
) -> tuple[str, str]:
    text = Text(tile)
    rows, columns = sizes
    matrix = matrices(TILE)[2]
    text.label("entry")
    half = [
        _combined(text, matrix[:rows], [text.load(text.place("%a", (r * _SIZE + s) * apart), 0) for r in range(_SIZE)])
        for s in range(_SIZE)
    ]
    for i in range(rows):
        for j, total in enumerate(_combined(text, matrix[:columns], [column[i] for column in half])):
            pixel = i * width + j
            text.store(finish(text, total, pixel, 0) if finish else total, text.place("%c", pixel * tile.result), 0)
    return defined(text, "first", extra)


def _combined(text: Text, matrix: Any, values: Sequence[str]) -> list[str]:
    """Return the products of a matrix and a column of vectors."""
    results = []
    for row in matrix:
        (factor, value), *rest = sorted(
            ((float(factor), value) for factor, value in zip(row, values, strict=True) if factor),
            key=lambda term: term[0] != 1,
        )
        total = value if factor == 1 else text.value(f"fmul {text.wide} {value}, {constant(text, factor)}")
        for factor, value in rest:
            operands = f"{text.wide} {value}, {text.wide} {constant(text, factor)}, {text.wide} {total}"
            total = text.value(f"call {text.wide} @llvm.fmuladd.v{text.tile.lanes}f32({operands})")
        results.append(total)
    return results
