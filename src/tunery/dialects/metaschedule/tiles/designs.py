"""Designs of a product in a few numbers, the most promising first: the tile, and the blocks that threads take.

The tile comes from the register file: what leaves the fewest cycles for all rows and columns, edges included. The block
of rows comes from the cache: its data stays there while the columns' values pass (Low et al., "Analytical Modeling Is
Enough for High-Performance BLIS", 2016).
"""

import math
from dataclasses import dataclass
from typing import Any

from tunery.dialects.metaschedule._tvm import tvm
from tunery.dialects.metaschedule.tiles.kernels import fits
from tunery.dialects.metaschedule.tiles.products import Product
from tunery.dialects.metaschedule.variants.vectors import lanes_of

_MOST_ROWS, _MOST_VECTORS = 16, 8
_BLOCK_BYTES, _BLOCK_TILES = 48 << 10, 4  # of data that a block of rows reads, and its tiles at the least
SHARES = 4  # blocks for each thread, at the least, where there is work for more than one
_LATENCY = 4  # cycles of a multiply-add: no step of a sum takes less
_CALL_CYCLES = 20
_LOAD_BYTES = 32  # that a cycle loads
_CONSIDERED = 3
_SHORTEST, _HALF, _EMPTY = 4, 8, 0.12
_ALIASED, _WAYS, _MISSES = 1024, 8, 1.3
"""Rows so many floats apart share the few lines of a set of the nearest cache, and more than fit cost so much more."""


@dataclass(frozen=True)
class TileDesign:
    """`rows` x `vectors` are a tile; a block has so many tiles of rows and of columns."""

    rows: int
    vectors: int
    row_tiles: int
    column_tiles: int


def registers_of(target: Any) -> int:
    """Return how many vector registers a target has."""
    wide = any(tvm.target.codegen.target_has_features(name, target) for name in ("avx512f", "neon", "v"))
    return 32 if wide else 16


def fits_tile(design: TileDesign, registers: int) -> bool:
    """Return whether a tile's sums, a row of the columns' values and one of the data are in registers."""
    return fits(design.rows, design.vectors, registers)


def row_tiles(count: int, rows: int) -> tuple[int, int, int]:
    """Return how many tiles have `rows` rows, how many are smaller, and how many rows these have, for `count` rows.

    >>> row_tiles(49, 6), row_tiles(169, 12), row_tiles(3, 12), row_tiles(24, 12)
    ((4, 5, 5), (14, 1, 1), (0, 1, 3), (2, 0, 0))
    """
    full, rest = divmod(count, rows)
    if not rest:
        return full, 0, 0
    choices = [
        (full - back, (rest + back * rows) // small, small)
        for back in range(min(full, rows) + 1)
        for small in range(rows - 1, rows // 2, -1)
        if (rest + back * rows) % small == 0
    ]
    return min(choices, key=lambda one: (one[0] + one[1], one[1])) if choices else (full, 1, rest)


def cycles(product: Product, rows: int, vectors: int, lanes: int) -> float:
    """Return how long one turn of the outer loops takes with tiles of a size, by the processor's units."""
    total_vectors = -(-product.columns.extent // lanes)
    full, rest = divmod(total_vectors, vectors)
    many, few, small = row_tiles(product.row_count, rows)
    apart = product.rows[-1].data if product.rows else 1
    found = 0.0
    for width, columns in ((vectors, full), (rest, int(rest > 0))):
        for height, count in ((rows, many), (small, few)):
            loads = height / 2 + width * max(1.0, 4 * lanes / _LOAD_BYTES) / 2
            step = max(height * width / 2 * max(1.0, 4 * lanes / _LOAD_BYTES), _LATENCY, loads)
            step *= _MISSES if height > _WAYS and apart % _ALIASED == 0 else 1.0
            found += columns * count * (product.steps * step + _CALL_CYCLES + 2 * height * width)
    return found


def vector_of(product: Product, target: Any) -> int:
    """Return how many floats the vectors of a product's tiles have: no more than twice its columns.

    Where a good part of the last one of 16 would be empty they have 8: of 24 columns a quarter of the work is spared.
    """
    lanes, columns = lanes_of(target), product.columns.extent
    while lanes > _SHORTEST and 2 * columns <= lanes:
        lanes //= 2
    half = lanes // 2
    return half if half >= _HALF and -columns % lanes >= max(half, columns * _EMPTY) else lanes


def tile_sizes(product: Product, target: Any) -> list[tuple[int, int]]:
    """Return the rows and vectors of the tiles that fit, those first that are predicted to be the fastest."""
    lanes, registers = vector_of(product, target), registers_of(target)
    columns = -(-product.columns.extent // lanes)
    sizes = [
        (rows, vectors)
        for rows in range(1, min(_MOST_ROWS, product.row_count) + 1)
        for vectors in range(min(2, columns), min(_MOST_VECTORS, columns) + 1)
        if fits(rows, vectors, registers)
    ]
    return sorted(sizes, key=lambda size: (cycles(product, size[0], size[1], lanes), -size[0] * size[1]))


def designs_of(product: Product, target: Any, threads: int) -> list[TileDesign]:
    """Return the designs of a product, the one first that is predicted to be the fastest."""
    lanes = vector_of(product, target)
    chosen: dict[TileDesign, None] = {}
    for bigger in (1, 4, 0.25):
        for rows, vectors in tile_sizes(product, target)[:_CONSIDERED]:
            chosen[_blocked(product, rows, vectors, lanes, threads, bigger)] = None
    return list(chosen)


def _blocked(  # noqa: PLR0917 - a tile and where it is computed
    product: Product, rows: int, vectors: int, lanes: int, threads: int, bigger: float
) -> TileDesign:
    tiles = sum(row_tiles(product.row_count, rows)[:2])
    columns = math.ceil(product.columns.extent / lanes / vectors)
    step = product.rows[-1].data if product.rows else 1
    in_block = max(_BLOCK_TILES, int(_BLOCK_BYTES / (4 * rows * max(step, 1))))
    in_block = min(tiles, max(1, int(in_block * bigger)))
    blocks = -(-tiles // in_block)
    row_share = -(-tiles // blocks)
    column_share = columns
    if threads > 1:
        wanted = -(-SHARES * threads // (product.turns * blocks))
        if tiles >= columns:
            more = min(tiles, blocks * wanted)
            row_share = -(-tiles // more)
        else:
            column_share = -(-columns // min(columns, wanted))
    return TileDesign(rows, vectors, row_share, column_share)
