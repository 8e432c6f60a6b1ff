"""The design space of Winograd's program: two schedules whose tile sizes are sampled. `by_tiles`: each thread takes a
block of output tiles through input transform, products and output transform, so that all of it stays in its cache.
`by_phases`: all threads do one phase after the other, which balances better and reads large weights once."""

from collections.abc import Callable
from typing import Any

from tunery._errors import DialectError
from tunery.dialects.metaschedule._tvm import tvm

_LANES = (16, 8, 4)
_FLOAT_BITS = 32
_REGISTER_VECTORS, _REGISTER_ROWS, _UNROLLED = 4, 16, 4  # the most that is tried of each in the innermost loops


def lanes_of(channels: tuple[int, int], target: Any) -> int:
    """Return the vector length in elements: the widest that the target has and both numbers of channels hold."""
    width = int(tvm.target.codegen.llvm_get_vector_width(target)) // _FLOAT_BITS
    for lanes in _LANES:
        if lanes <= width and all(count % lanes == 0 for count in channels):
            return lanes
    raise DialectError(f"channels {channels} are not a multiple of the vector length")


def designs(tile: int, lanes: int) -> Callable[[Any], list[Any]]:
    def both(schedule: Any) -> list[Any]:
        return [_Design(schedule.copy(), tile, lanes).by_tiles(), _Design(schedule.copy(), tile, lanes).by_phases()]

    return both


class _Design:
    def __init__(self, schedule: Any, tile: int, lanes: int) -> None:
        self._s = schedule
        self._tile = tile
        self._lanes = lanes
        self._inline()

    def by_tiles(self) -> Any:
        s = self._s
        block = self._blocks_of_tiles()
        gemm = s.get_sblock("winograd_gemm")
        s.compute_at(gemm, block, preserve_unit_loops=True)
        eps, nu, i, j, o, k = s.get_loops(gemm)[-6:]
        self._tile_gemm(gemm, [eps, nu], [i, j, *s.split(o, [None, self._lanes]), k])
        self._transform_input(block)
        return s

    def by_phases(self) -> Any:
        s = self._s
        self._blocks_of_tiles()
        gemm = s.get_sblock("winograd_gemm")
        eps, nu, i, j, o, k = s.get_loops(gemm)
        outer, lane = s.split(o, [None, self._lanes])
        share, rest = s.split(outer, s.sample_perfect_tile(outer, 2, 64))
        s.reorder(eps, nu, share, i, j, rest, lane, k)
        thread = s.fuse(eps, nu, share)
        s.parallel(thread)
        self._tile_gemm(gemm, [], [i, j, rest, lane, k])
        self._transform_input(None)
        return s

    def _inline(self) -> None:
        s = self._s
        blocks = s.get_child_blocks(s.get_sblock("root"))
        names = [str(s.get(block).name_hint) for block in blocks]
        start, end = names.index("winograd_patch"), names.index("winograd_conv")
        for block in [*blocks[:start], *blocks[end:-1]]:
            s.compute_inline(block)
        self._last = blocks[-1]

    def _blocks_of_tiles(self) -> Any:
        s = self._s
        n, h, w, o = s.get_loops(self._last)
        rows, u = s.split(h, [None, self._tile])
        columns, v = s.split(w, [None, self._tile])
        vectors, lane = s.split(o, [None, self._lanes])
        rows, row = s.split(rows, s.sample_perfect_tile(rows, 2, 64))
        columns, column = s.split(columns, s.sample_perfect_tile(columns, 2, 64))
        s.reorder(n, rows, columns, row, column, vectors, u, v, lane)
        block = s.fuse(n, rows, columns)
        s.parallel(block)
        self._unroll(u, v)
        s.vectorize(lane)
        for name in ("winograd_out", "winograd_half_out"):
            self._at(name, vectors)
        return block

    def _transform_input(self, block: Any) -> None:
        s = self._s
        packed = s.get_sblock("winograd_in")
        if block is not None:
            s.compute_at(packed, block, preserve_unit_loops=True)
        eps, nu, i, j, c = s.get_loops(packed)[-5:]
        vectors, lane = s.split(c, [None, self._lanes])
        s.reorder(i, j, vectors, eps, nu, lane)
        if block is None:
            s.parallel(s.fuse(i, j))
        self._unroll(eps, nu)
        s.vectorize(lane)
        for name in ("winograd_half_in", "winograd_patch"):
            self._at(name, vectors)

    def _at(self, name: str, loop: Any) -> None:
        s = self._s
        block = s.get_sblock(name)
        s.compute_at(block, loop, preserve_unit_loops=True)
        *_, first, second, lane = s.get_loops(block)
        self._unroll(first, second)
        s.vectorize(lane)

    def _tile_gemm(self, gemm: Any, outermost: list[Any], loops: list[Any]) -> None:
        s = self._s
        i, j, vectors, lane, k = loops
        vectors, vector = s.split(vectors, s.sample_perfect_tile(vectors, 2, _REGISTER_VECTORS))
        i, row = s.split(i, s.sample_perfect_tile(i, 2, _REGISTER_VECTORS))
        j, column = s.split(j, s.sample_perfect_tile(j, 2, _REGISTER_ROWS))
        k, step = s.split(k, s.sample_perfect_tile(k, 2, _UNROLLED))
        s.reorder(*outermost, vectors, i, j, k, step, row, column, vector, lane)
        self._unroll(step, row, column, vector)
        s.vectorize(lane)
        s.decompose_reduction(gemm, k)

    def _unroll(self, *loops: Any) -> None:
        for loop in loops:
            self._s.unroll(loop)
