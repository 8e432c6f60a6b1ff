"""Depthwise convolutions from register tiles: some pixels of a row by some vectors of channels. Of a kernel's row the
weights stay in registers, and what neighbouring pixels read is loaded once. Padding is nowhere: at the image's edges
tiles leave out what they would multiply by zero."""

import math
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from tunery.dialects.metaschedule._tvm import tvm
from tunery.dialects.metaschedule.reasons import OtherKindError
from tunery.dialects.metaschedule.tiles.designs import SHARES, TileDesign, registers_of
from tunery.dialects.metaschedule.tiles.expression import Expression, axes_of
from tunery.dialects.metaschedule.tiles.kernels import Finish, Text, Tile, defined
from tunery.dialects.metaschedule.tiles.nests import address, assembled, digits, loop, parallel, turns_in, zero
from tunery.dialects.metaschedule.tiles.products import Parts, ProductLoop, around_sum, convolution_of, parts_of
from tunery.dialects.metaschedule.variants.rewriting import long_of, shape_of, variable
from tunery.dialects.metaschedule.variants.vectors import lanes_of

_SMALL = (8, 1)
_SIZES = ((16, 1), _SMALL, (8, 2))
"""Pixels, at most, and vectors of tiles; with few registers small ones come first."""
_FEW_REGISTERS = 16
_FEW_TAPS = 7  # of a row, whose weights stay in registers
_FLOP_PER_LANE_NS = 2  # as for products, of which each number that is read takes part in more


@dataclass(frozen=True)
class Axis:
    """Rows or columns: how many are read and computed, the kernel's, its steps, and the padding before the first."""

    data: int
    result: int
    taps: int
    stride: int
    dilation: int
    before: int


@dataclass(frozen=True)
class Depthwise:
    """A convolution of each channel alone, channels last."""

    batch: int
    rows: Axis
    columns: Axis
    channels: int
    parts: Parts


@dataclass(frozen=True)
class _Strip:
    """A tile's pixels in a row: the column, from the first that it reads, of each product, by pixel and tap."""

    pixels: int
    products: tuple[tuple[int, int, int], ...]


def depthwise_of(module: Any) -> Depthwise:
    operator = convolution_of(module)
    (batch, channels, *sizes), dtype = operator.tensors["x"]
    (kernels, inside, *taps), _ = operator.tensors["w"]
    steps: dict[str, Any] = dict(operator.attributes)
    if dtype != "float32" or inside != 1 or channels < 2 or not kernels == channels == steps["groups"]:
        raise OtherKindError("it is no depthwise convolution of float32")
    schedule, block, _, after = around_sum(module)
    function = schedule.mod["main"]
    data, weights = (function.params[i] for name in "xw" for i, own in operator.names.items() if own == name)
    if shape_of(data) != [batch, *sizes, channels] or shape_of(weights) != [*taps, 1, channels]:
        raise OtherKindError("its channels are not last")
    parts = parts_of(function, block, schedule.get(after[-1]) if after else block, (), data, weights)
    results = shape_of(parts.output)[1:3]
    strides, dilations, pads = (steps[name] for name in ("strides", "dilations", "pads"))
    rows, columns = (Axis(*sized) for sized in zip(sizes, results, taps, strides, dilations, pads[:2], strict=True))
    if not all(_taps_at(rows, row) for row in range(rows.result)):
        raise OtherKindError("some of its results read nothing")
    return Depthwise(batch, rows, columns, channels, parts)


def _taps_at(axis: Axis, place: int) -> list[int]:
    begin = place * axis.stride - axis.before
    return [tap for tap in range(axis.taps) if 0 <= begin + tap * axis.dilation < axis.data]


def fits_strip(one: Depthwise, design: TileDesign, registers: int) -> bool:
    """Return whether a tile's sums, weights of a kernel's row and one number of the data are in registers."""
    held = one.columns.taps if one.columns.taps <= _FEW_TAPS else 1
    return design.rows * design.vectors + held * design.vectors + 1 <= registers


def lanes_for(one: Depthwise, target: Any) -> int:
    lanes = lanes_of(target)
    while lanes > 4 and lanes > one.channels:
        lanes //= 2
    return lanes


def strip_designs(one: Depthwise, target: Any, threads: int) -> list[TileDesign]:
    lanes, registers = lanes_for(one, target), registers_of(target)
    vectors, width = -(-one.channels // lanes), one.columns.result
    chosen: dict[TileDesign, None] = {}
    for most, wide in sorted(_SIZES, key=lambda size: registers <= _FEW_REGISTERS and size != _SMALL):
        sizes = [
            pixels
            for pixels in range(1, min(most, width) + 1)
            if fits_strip(one, TileDesign(pixels, wide, 1, 1), registers)
        ]
        if not sizes or wide * lanes > max(lanes, one.channels):
            continue
        in_row = -(-width // sizes[-1])
        tiles, columns = in_row * one.rows.result, -(-vectors // wide)
        wanted = -(-SHARES * threads // one.batch) if threads > 1 else 1
        parts = min(tiles, wanted)
        across = min(columns, -(-wanted // parts))
        chosen[TileDesign(-(-width // in_row), wide, -(-tiles // parts), -(-columns // across))] = None
    return list(chosen)


def strip_program(one: Depthwise, design: TileDesign, lanes: int) -> Any:
    return _Program(one, design, lanes).module()


def _strip(axis: Axis, first: int, pixels: int) -> _Strip:
    begins = [place * axis.stride - axis.before for place in range(first, first + pixels)]
    products = [(begin + tap * axis.dilation, p, tap) for p, begin in enumerate(begins) for tap in range(axis.taps)]
    anchor = max(begins[0], 0)
    return _Strip(pixels, tuple((column - anchor, p, tap) for column, p, tap in products if 0 <= column < axis.data))


def strip_function(  # noqa: PLR0917 - what a tile is
    strip: _Strip, vectors: int, lanes: int, last: int, channels: int, axes: tuple[Axis, Axis], extra: int = 0,
    finish: Finish | None = None,
) -> tuple[str, str]:  # fmt: skip
    """Return name and text of a tile's function of data, weights, result, the number of a kernel's rows and arrays."""
    rows, columns = axes
    text = Text(Tile(strip.pixels, vectors, lanes, last, 0, channels, 0, lanes, 0))
    cells = [(p, v) for p in range(strip.pixels) for v in range(vectors)]
    text.label("entry")
    results = {(p, v): text.place("%c", p * channels + v * lanes) for p, v in cells}
    for result in results.values():
        text.do(f"call void @llvm.prefetch.p0(ptr {result}, i32 1, i32 3, i32 1)")
    text.do("br label %taps")
    text.label("taps")
    row, complete_row = text.later("i32")
    a, complete_a = text.later("ptr")
    b, complete_b = text.later("ptr")
    phis = {cell: text.later(text.wide) for cell in cells}
    sums = {cell: name for cell, (name, _) in phis.items()}
    held: dict[tuple[str, int, int], str] = {}
    kind = "load" if columns.taps <= _FEW_TAPS else "load volatile"  # else all of a wide row would be held at once

    def value(array: str, place: int, v: int) -> str:
        if (array, place, v) not in held:
            held[array, place, v] = text.load(text.place(array, place * channels + v * lanes), v, kind=kind)
        return held[array, place, v]

    for _, products in groupby(sorted(strip.products, key=_some_taps), lambda product: product[2] // _FEW_TAPS):
        held.clear()
        for column, p, tap in products:
            for v in range(vectors):
                factors = f"{text.wide} {value(b, tap, v)}, {text.wide} {value(a, column, v)}"
                total = f"{text.wide} {sums[p, v]}"
                sums[p, v] = text.value(f"call {text.wide} @llvm.fmuladd.v{lanes}f32({factors}, {total})")
    following = text.value(f"add i32 {row}, 1")
    complete_row("0", "entry", following, "taps")
    complete_a("%a", "entry", text.place(a, rows.dilation * columns.data * channels), "taps")
    complete_b("%b", "entry", text.place(b, columns.taps * channels), "taps")
    for cell, (_, complete) in phis.items():
        complete("zeroinitializer", "entry", sums[cell], "taps")
    more = text.value(f"icmp ult i32 {following}, %rows")
    text.do(f"br i1 {more}, label %taps, label %done")
    text.label("done")
    for (p, v), total in sums.items():
        text.store(finish(text, total, p, v) if finish else total, results[p, v], v)
    return defined(text, "rows", extra)


def _some_taps(product: tuple[int, int, int]) -> tuple[int, ...]:
    """Return the order in which products are added up: some taps of a row after others, column by column."""
    column, pixel, tap = product
    return tap // _FEW_TAPS, column, pixel


class _Program:
    def __init__(self, one: Depthwise, design: TileDesign, lanes: int) -> None:
        self._one, self._design, self._lanes = one, design, lanes
        row = ProductLoop(one.columns.result, 0, 0, one.channels)
        self._expression = Expression(one.parts, row, one.columns.result)
        self._functions: list[str] = []

    def module(self) -> Any:
        return assembled(self._one.parts, self._main(), self._functions, self._lanes)

    def _main(self) -> Any:
        one, design = self._one, self._design
        tiles = -(-one.columns.result // design.rows)
        columns = -(-one.channels // (design.vectors * self._lanes))
        wide = design.vectors * self._lanes
        in_block, in_part = design.row_tiles, design.column_tiles
        if not self._expression.in_registers:  # tiles that overlap change what they have written: one thread's
            in_block = -(-in_block // tiles) * tiles if one.columns.result % design.rows else in_block
            in_part = columns if one.channels % wide else in_part
        blocks, across = -(-tiles * one.rows.result // in_block), -(-columns // in_part)
        share, place, column = variable("share"), variable("place"), variable("column")
        image, block, part = digits(share, [one.batch, blocks, across])
        whole = block * in_block + place
        row, tile = (whole, zero()) if tiles == 1 else digits(whole, [one.rows.result, tiles])
        channel = (part * in_part + column) * wide
        if one.channels > wide and one.channels % wide:
            channel = _most(channel, one.channels - wide)
        body = self._tiles(image, row, tile, channel)
        body = loop(column, turns_in(columns, part, in_part), body)
        body = loop(place, turns_in(tiles * one.rows.result, block, in_block), body)
        flop = 2 * math.prod(shape_of(one.parts.output)) * one.rows.taps * one.columns.taps
        shares = one.batch * blocks * across
        return parallel(share, shares, flop // (_FLOP_PER_LANE_NS * self._lanes * shares), body)

    def _tiles(self, image: Any, row: Any, tile: Any, channel: Any) -> Any:
        """Return the call of a tile of a row: those at the edges do other things than those between."""
        width, pixels = self._one.columns.result, self._design.rows
        count = -(-width // pixels)
        strips = [_strip(self._one.columns, min(n * pixels, width - pixels), pixels) for n in range(count)]
        nest: Any = None
        for strip, numbers in reversed([(strip, [*same]) for strip, same in groupby(range(count), strips.__getitem__)]):
            call = self._call(strip, image, row, tile, channel)
            nest = call if nest is None else tvm.tirx.IfThenElse(tile <= numbers[-1], call, nest)
        return nest

    def _call(self, strip: _Strip, image: Any, row: Any, tile: Any, channel: Any) -> Any:
        one, design = self._one, self._design
        rows, columns = one.rows, one.columns
        pixel = _most(tile * design.rows, columns.result - design.rows)
        begin, column = row * rows.stride - rows.before, pixel * columns.stride - columns.before
        if columns.before:
            column = tvm.tirx.max(column, zero())
        first, end = _above(-begin, rows.dilation), _above(rows.data - begin, rows.dilation)
        first, end = tvm.tirx.max(first, zero()), _most(end, rows.taps)
        data = ((image * rows.data + begin + first * rows.dilation) * columns.data + column) * one.channels + channel
        weights = first * (columns.taps * one.channels) + channel
        result = ((image * rows.result + row) * columns.result + pixel) * one.channels + channel
        inside = self._expression.in_registers
        last = min(self._lanes, one.channels)
        arrays = self._expression.arrays(axes_of(one.parts.output, result)) if inside else []
        finish = self._expression.finish if inside and self._expression.any else None
        name, text = strip_function(
            strip, design.vectors, self._lanes, last, one.channels, (rows, columns), len(arrays), finish
        )
        self._functions.append(text)
        call = tvm.tirx.call_extern(
            "int32", name, address(one.parts.data, data), address(one.parts.weights, weights),
            address(one.parts.output, result), tvm.tirx.Cast("int32", end - first), *arrays,
        )  # fmt: skip
        called = tvm.tirx.Evaluate(call)
        if inside:
            return called
        wide = min(design.vectors * self._lanes, one.channels)
        return tvm.tirx.SeqStmt([called, self._expression.after(result, strip.pixels, wide, one.channels)])


def _most(number: Any, limit: int) -> Any:
    return tvm.tirx.min(number, *long_of(limit))


def _above(number: Any, step: int) -> Any:
    return number if step == 1 else tvm.tirx.floordiv(number + (step - 1), step)
