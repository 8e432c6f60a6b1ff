"""Products with constant weights of 4 bits, which have a scale for each block of what is summed over. Weights are
packed when they are imported: 16 channels side by side. A tile of rows and vectors of channels is summed up in
registers, block by block, and each block's sum is multiplied by its scale; for many rows of float32 weights are scaled
first. Data is float32, or quantised by blocks to signed bytes, whose products are the processor's dot products."""

import math
from collections.abc import Callable
from typing import Any

from tunery.dialects.metaschedule._tvm import tvm
from tunery.dialects.metaschedule.loading.preparing import DOT_CHANNELS, DOT_DEPTH
from tunery.dialects.metaschedule.variants import dots
from tunery.dialects.metaschedule.variants.rewriting import long_of, padded_rows, shape_of
from tunery.dialects.metaschedule.variants.scheduling import Designs, extents_of, unroll

_INTRINSIC = "tunery_dot_4x16"
_MIDDLE = 8
"""The zero point where none is given."""
_MOST_STEP = 127.0
_LARGEST, _STEP, _STEPS, _TOTALS = "largest", "step", "steps", "totals"
_UNPACKED, _DEQUANTISED, _PRODUCTS, _SUMS = "unpacked", "dequantised", "products", "sums"
_WEIGHTS, _OURS = frozenset({_UNPACKED, _DEQUANTISED}), frozenset({_PRODUCTS, _SUMS})
_REGISTERS, _MOST_ROWS, _TILES, _MOST_TILES = 28, 12, 3, 64
_MOST_DEPTH = 512  # of which weights of four vectors, 128 KB, lie in a cache
_MOST_ALONE = 1 << 14  # numbers that one thread quantises faster than several are woken


class _Expression:
    """What both forms of the product share: the shapes, and what is done around the sums of blocks."""

    def __init__(self, data: Any, weights: Any, scales: Any, zeros: Any) -> None:
        self.data, self.weights, self.scales, self.zeros = data, weights, scales, zeros
        *self.outer, self.depth = map(int, data.shape)
        self.groups, self.parts, *_ = map(int, weights.shape)
        self.blocks = int(scales.shape[1])
        self.block, self.each = self.depth // self.blocks, self.parts // self.blocks
        self.count = math.prod(self.outer)
        self.rows = padded_rows(self.count)

    def number(self, row: Any, at: Any) -> Any:
        """Return a number of the data; `row` counts along all its axes but the last."""
        places = list[Any]()
        for extent in reversed(self.outer):
            places.append(row % extent if len(places) + 1 < len(self.outer) else row)
            row = row // extent
        return self.data[(*reversed(places), at)]

    def row(self, row: Any) -> Any:
        """Return which row is read: beyond the last one, that again."""
        return tvm.te.min(row, *long_of(self.count - 1)) if self.rows > self.count else row

    def zero(self, group: Any, block: Any, lane: Any, dtype: str) -> Any:
        if self.zeros is None:
            return tvm.tirx.const(_MIDDLE, dtype)
        return self.zeros[group, block, lane].astype(dtype)

    def unpacked(self, group: Any, part: Any, half: Any, lane: Any) -> Any:
        byte = self.weights[group, part, lane].astype("int32")
        bits = tvm.tirx.Select(half == 0, byte & tvm.tirx.const(15, "int32"), byte >> tvm.tirx.const(4, "int32"))
        return bits.astype("float32") - self.zero(group, part // self.each, lane, "float32")

    def scaled(self, term: Callable[..., Any], channels: int) -> Any:
        block = _axis(self.blocks, "block")
        return self.result(
            lambda r, g, lane: tvm.te.sum(term(r, g, lane, block) * self.scales[g, block, lane], axis=block), channels
        )

    def result(self, sum_of: Callable[..., Any], channels: int) -> Any:
        te = tvm.te
        sums = te.compute(long_of(self.rows, self.groups, DOT_CHANNELS), sum_of, name=_SUMS)

        def taken(*axes: Any) -> Any:
            row = axes[0]
            for at, extent in zip(axes[1:-1], self.outer[1:], strict=True):
                row = row * extent + at
            return sums[row, axes[-1] // DOT_CHANNELS, axes[-1] % DOT_CHANNELS]

        return te.compute(long_of(*self.outer, channels), taken, name="output")


def exact(data: Any, weights: Any, scales: Any, zeros: Any, channels: int) -> Any:
    """Return the expression `data x weights` in float32. `weights` are channels / 16 x depth / 2 x 16 bytes; `scales`
    and `zeros`, if any, channels / 16 x blocks x 16."""
    te, own = tvm.te, _Expression(data, weights, scales, zeros)
    part, half = _axis(own.each, "part"), _axis(2, "half")

    unpacked = te.compute(long_of(own.groups, own.parts, 2, DOT_CHANNELS), own.unpacked, name=_UNPACKED)

    def product(r: Any, g: Any, b: Any, lane: Any) -> Any:
        left = own.number(own.row(r), b * own.block + part * 2 + half)
        return te.sum(left * unpacked[g, b * own.each + part, half, lane], axis=[part, half])

    products = te.compute(long_of(own.rows, own.groups, own.blocks, DOT_CHANNELS), product, name=_PRODUCTS)
    return own.scaled(lambda r, g, lane, b: products[r, g, b, lane], channels)


def dequantised(data: Any, weights: Any, scales: Any, zeros: Any, channels: int) -> Any:
    """Return the same expression for many rows: weights are scaled once for all of them. Then a result has one sum.
    What is summed over is cut into steps, whose weights stay in a cache."""
    te, own = tvm.te, _Expression(data, weights, scales, zeros)
    at_once = max(
        (n for n in range(1, own.blocks + 1) if own.blocks % n == 0 and n * own.block <= _MOST_DEPTH), default=1
    )
    steps = own.blocks // at_once
    step, block, part, half = (
        _axis(extent, name) for extent, name in ((steps, "step"), (at_once, "block"), (own.each, "part"), (2, "half"))
    )

    def scaled(b: Any, p: Any, h: Any, g: Any, lane: Any) -> Any:
        return own.unpacked(g, b * own.each + p, h, lane) * scales[g, b, lane]

    shape = long_of(own.blocks, own.each, 2, own.groups, DOT_CHANNELS)
    ready = te.compute(shape, scaled, name=_DEQUANTISED)

    def product(r: Any, g: Any, s: Any, lane: Any) -> Any:
        at = s * at_once + block
        left = own.number(own.row(r), at * own.block + part * 2 + half)
        return te.sum(left * ready[at, part, half, g, lane], axis=[block, part, half])

    products = te.compute(long_of(own.rows, own.groups, steps, DOT_CHANNELS), product, name=_PRODUCTS)
    return own.result(lambda r, g, lane: te.sum(products[r, g, step, lane], axis=step), channels)


def quantised(data: Any, weights: Any, scales: Any, zeros: Any, channels: int) -> Any:
    """Return the expression `data x weights`, with the data in bytes. `weights` are channels / 16 x depth / 8 x 16 x 4
    bytes; `scales` and `zeros`, if any, channels / 16 x blocks x 16."""
    te, types, own = tvm.te, tvm.tirx, _Expression(data, weights, scales, zeros)
    at, total, part, half, four = (
        _axis(extent, name)
        for extent, name in ((own.block, "at"), (own.block, "of"), (own.each, "part"), (2, "half"), (DOT_DEPTH, "four"))
    )

    def most(r: Any, b: Any) -> Any:
        """Return a block's largest size in the bits of an integer, which are in the same order: vectors find it."""
        return te.max(types.reinterpret("int32", te.abs(own.number(r, b * own.block + at))), axis=at)

    largest = te.compute(long_of(own.count, own.blocks), most, name=_LARGEST)

    def size(r: Any, b: Any) -> Any:
        return types.reinterpret("float32", largest[r, b]) / types.const(_MOST_STEP, "float32")

    step = te.compute(long_of(own.count, own.blocks), size, name=_STEP)

    def rounded(r: Any, b: Any, i: Any) -> Any:
        one, none = (types.const(value, "float32") for value in (1.0, 0.0))
        inverse = types.Select(largest[r, b] > 0, one / step[r, b], none)
        return types.nearbyint(own.number(r, b * own.block + i) * inverse).astype("int8")

    steps = te.compute(long_of(own.count, own.blocks, own.block), rounded, name=_STEPS)
    totals = te.compute(
        long_of(own.count, own.blocks),
        lambda r, b: te.sum(steps[r, b, total].astype("int32"), axis=total),
        name=_TOTALS,
    )

    def unpack(g: Any, p: Any, h: Any, lane: Any, i: Any) -> Any:
        byte = weights[g, p, lane, i]
        return types.Select(h == 0, byte & types.const(15, "uint8"), byte >> types.const(4, "uint8"))

    unpacked = te.compute(long_of(own.groups, own.parts, 2, DOT_CHANNELS, DOT_DEPTH), unpack, name=_UNPACKED)

    def product(r: Any, g: Any, b: Any, lane: Any) -> Any:
        left = steps[own.row(r), b, part * (2 * DOT_DEPTH) + half * DOT_DEPTH + four].astype("int32")
        right = unpacked[g, b * own.each + part, half, lane, four].astype("int32")
        return te.sum(left * right, axis=[part, half, four])

    products = te.compute(long_of(own.rows, own.groups, own.blocks, DOT_CHANNELS), product, name=_PRODUCTS)

    def term(r: Any, g: Any, lane: Any, b: Any) -> Any:
        whole = products[r, g, b, lane] - own.zero(g, b, lane, "int32") * totals[own.row(r), b]
        return whole.astype("float32") * step[own.row(r), b]

    return own.scaled(term, channels)


def _axis(extent: int, name: str) -> Any:
    return tvm.te.reduce_axis(tuple(long_of(0, extent)), name=name)


def supported(target: Any) -> bool:
    """Return whether a target has dot products of signed bytes and 4 bits."""
    instruction = dots.instruction_of(target)
    return instruction is not None and instruction.lanes == DOT_CHANNELS and instruction.depth == DOT_DEPTH


def designs(module: Any, target: Any) -> Designs | None:
    """Return the designs of a program of `exact` or `quantised`; None for others, and where a target lacks products."""
    body = module["main"].body
    buffers = body.block.alloc_buffers if isinstance(body, tvm.s_tir.SBlockRealize) else ()
    if not {str(buffer.name) for buffer in buffers} >= _OURS:
        return None  # at once: this is asked of every program
    schedule = tvm.s_tir.Schedule(module)
    names = set(_names(schedule))
    in_bytes = _STEPS in names
    if not names >= _OURS or not names & _WEIGHTS or (in_bytes and not supported(target)):
        return None
    rows, groups, _ = shape_of(schedule.get(schedule.get_sblock(_SUMS)).writes[0].source)
    if _DEQUANTISED in names:
        return lambda schedule: [_design_of_many(schedule.copy(), *tile) for tile in _tiles(rows, groups, sums=1)]
    tiles = _tiles(rows, groups, sums=2)
    if in_bytes:
        return lambda schedule: [
            _design(schedule.copy(), *tile, weights_first=first)
            for tile in tiles
            for first in ((True, False) if rows > tile[0] else (True,))
        ]
    return lambda schedule: [_design(schedule.copy(), *tile, ahead=rows > tile[0]) for tile in tiles]


def _tiles(rows: int, groups: int, *, sums: int) -> list[tuple[int, int]]:
    """Return rows and vectors of channels that are summed up in registers, the most first; each result has `sums`.

    >>> _tiles(128, 48, sums=2), _tiles(1, 48, sums=2), _tiles(128, 48, sums=1)
    ([(2, 4), (4, 2), (8, 1)], [(1, 4), (1, 2), (1, 1)], [(4, 4), (8, 2), (8, 1)])
    """
    tiles = []
    for vectors in (4, 2, 1):
        most = min(_MOST_ROWS, (_REGISTERS - sums * vectors) // (sums * vectors))
        row = max(n for n in range(1, most + 1) if rows % n == 0)
        if groups % vectors == 0:
            tiles.append((row, vectors))
    return sorted(tiles, key=lambda tile: -math.prod(tile))[:_TILES]


def _design(schedule: Any, rows: int, vectors: int, *, weights_first: bool = True, ahead: bool = False) -> Any:
    """Schedule with a tile of `rows` and `vectors`; threads share groups of channels, or rows, first. Weights are
    unpacked in registers, or `ahead`, for all rows."""
    s = schedule
    unpacked, products, sums = (s.get_sblock(name) for name in (_UNPACKED, _PRODUCTS, _SUMS))
    in_bytes = _STEPS in _names(s)
    if in_bytes:
        _quantise(s)
    result = _result(s)
    row, group, lane, block = s.get_loops(sums)
    group, vector = s.split(group, [None, *long_of(vectors)])
    tile, row = s.split(row, [None, *long_of(rows)])
    s.reorder(*((group, tile) if weights_first else (tile, group)), block, row, vector, lane)
    shared = group
    if not ahead:
        shared = tile = s.fuse(group, tile) if weights_first else s.fuse(tile, group)
    unroll(s, row, vector)
    s.vectorize(lane)
    s.compute_at(products, block, preserve_unit_loops=True)
    row, vector, _, lane, part, half, *four = s.get_loops(products)[len(s.get_loops(sums)) - 3 :]
    s.reorder(part, half, row, vector, lane, *four)
    unroll(s, half, row, vector)
    s.compute_at(unpacked, shared if ahead else part, preserve_unit_loops=True)
    vector, _, half, *lanes = s.get_loops(unpacked)[-5 if in_bytes else -4 :]
    unroll(s, half, *(() if ahead else (vector,)))
    s.vectorize(s.fuse(*lanes))
    _write(s, result, tile)
    if in_bytes:
        whole = s.blockize(lane)
        s.tensorize(lane, _INTRINSIC)
    else:
        s.vectorize(lane)
    chunks, _ = s.split(shared, s.sample_perfect_tile(shared, 2, _MOST_TILES))
    s.parallel(chunks)
    init = s.decompose_reduction(whole if in_bytes else products, part)
    if in_bytes:
        s.vectorize(s.get_loops(s.get_child_blocks(init)[0])[-1])
    s.decompose_reduction(sums, block)
    return s


def _design_of_many(schedule: Any, rows: int, vectors: int) -> Any:
    """Schedule with a tile of `rows` and `vectors`; threads share groups of channels, of which all rows are computed. A
    step's weights are written into a cache before its products with all rows."""
    s = schedule
    ready, products, sums = (s.get_sblock(name) for name in (_DEQUANTISED, _PRODUCTS, _SUMS))
    result = _result(s)
    row, group, lane, step = s.get_loops(sums)
    group, vector = s.split(group, [None, *long_of(vectors)])
    tile, row = s.split(row, [None, *long_of(rows)])
    s.reorder(group, step, tile, row, vector, lane)
    unroll(s, row, vector)
    s.vectorize(lane)
    s.compute_at(products, tile, preserve_unit_loops=True)
    row, vector, _, lane, block, part, half = s.get_loops(products)[3:]
    s.reorder(block, part, half, row, vector, lane)
    unroll(s, half, row, vector)
    s.vectorize(lane)
    s.compute_at(ready, step, preserve_unit_loops=True)
    of_ready, part, half, vector, lane = s.get_loops(ready)[2:]
    s.reorder(vector, of_ready, part, half, lane)
    unroll(s, half)
    s.vectorize(lane)
    _write(s, result, group, whole=True)
    chunks, _ = s.split(group, s.sample_perfect_tile(group, 2, _MOST_TILES))
    s.parallel(chunks)
    s.decompose_reduction(products, block)
    s.decompose_reduction(sums, step)
    return s


def _result(s: Any) -> Any:
    *between, result = s.get_child_blocks(s.get_sblock("root"))[_names(s).index(_SUMS) + 1 :]
    for block in between:
        s.compute_inline(block)
    return result


def _names(s: Any) -> list[str]:
    return [str(s.get(block).name_hint) for block in s.get_child_blocks(s.get_sblock("root"))]


def _quantise(s: Any) -> None:
    largest, steps, totals = (s.get_sblock(name) for name in (_LARGEST, _STEPS, _TOTALS))
    row, block, _ = s.get_loops(largest)
    each = s.fuse(row, block)
    for beside in (s.get_sblock(_STEP), steps, totals):
        s.reverse_compute_at(beside, each, preserve_unit_loops=True)
    _, lane = s.split(s.get_loops(steps)[-1], [None, *long_of(DOT_CHANNELS)])
    s.vectorize(lane)
    if math.prod(shape_of(s.get(steps).writes[0].source)) > _MOST_ALONE:
        s.parallel(each)
    for reduction in (largest, totals):
        s.decompose_reduction(reduction, s.get_loops(reduction)[-1])


def _write(s: Any, result: Any, tile: Any, *, whole: bool = False) -> None:
    """Write the result tile by tile, if that has not the `whole` columns; at the end where rows have several axes."""
    *outer, _, _ = extents_of(s.get(result), reduced=False)
    at_once = whole or math.prod(outer) == 1
    if at_once:
        s.reverse_compute_at(result, tile, preserve_unit_loops=True)
    *rows, channel = s.get_loops(result)
    vector, lane = s.split(channel, [None, *long_of(DOT_CHANNELS)])
    s.vectorize(lane)
    if at_once:
        unroll(s, *([] if whole else [rows[-1]]), vector)
    else:
        s.parallel(s.fuse(*rows))


dots.register(
    _INTRINSIC, "llvm.x86.avx512.vpdpbusd.512", data="int8", weights="uint8", lanes=DOT_CHANNELS, depth=DOT_DEPTH
)
