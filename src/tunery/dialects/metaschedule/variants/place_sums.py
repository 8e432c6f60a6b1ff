"""Pooling, channels last: design spaces of its own. Of sums and means over all rows and columns few channels leave
MetaSchedule's rules little to vectorise, and less to share between threads: here threads sum up some rows each, with a
block of channels in registers, and the partial sums are added in the end. A window of a pool is taken to a vector of
channels at once, without a padded copy: what MetaSchedule's rules give for it varies 18-fold."""

import math
from typing import Any

from tunery.dialects.metaschedule._tvm import tvm
from tunery.dialects.metaschedule.variants.scheduling import Designs, around_reduction, reductions, result_of, unroll
from tunery.dialects.metaschedule.variants.vectors import lengths

NAME = "place-sums"
_LENGTHS = 2
_PLACES = 2
_MOST_VECTORS, _MOST_STEPS = 8, 8  # of each, in the innermost loops
_UNROLLED = 25


def designs(module: Any, lanes: int) -> Designs | None:
    """Return the function that turns a schedule of the module into the designs, for vectors of `lanes` floats. None if
    it is no sum over rows and columns with channels last, or what is like a sum: a maximum."""
    schedule = tvm.s_tir.Schedule(module)
    if len(reductions(schedule)) != 1:
        return None
    around = around_reduction(schedule)
    batch, *places, channels = around.spatial if len(around.spatial) > 1 else (1, 2, 1)
    if len(around.reduced) != _PLACES or any(extent > 1 for extent in places):
        return None
    if [batch, *around.reduced, channels] not in around.read:
        return None
    return lambda schedule: [_design(schedule.copy(), length) for length in lengths(channels, lanes, _LENGTHS)]


def _design(schedule: Any, length: int) -> Any:
    s = schedule
    around = around_reduction(s)
    for block in around.before:
        s.compute_inline(block)
    result = result_of(s, around)
    *_, h, _ = s.get_loops(around.reduction)
    shares, _ = s.split(h, s.sample_perfect_tile(h, 2, 64))
    partial = s.rfactor(shares, 0)
    n, *ones, c, shares, rows, w = s.get_loops(partial)
    c, lane = s.split(c, [None, length])
    vectors, vector = s.split(c, s.sample_perfect_tile(c, 2, _MOST_VECTORS))
    columns, step = s.split(w, s.sample_perfect_tile(w, 2, _MOST_STEPS))
    s.reorder(shares, n, *ones, vectors, rows, columns, step, vector, lane)
    s.parallel(s.fuse(shares, n, *ones, vectors))
    unroll(s, step, vector)
    s.vectorize(lane)
    s.decompose_reduction(partial, rows)
    *_, c = s.get_loops(result)
    c, lane = s.split(c, [None, length])
    s.vectorize(lane)
    s.compute_at(around.reduction, c, preserve_unit_loops=True)
    shares, *_, lane = s.get_loops(around.reduction)[-1 - len(around.spatial) :]
    s.vectorize(lane)
    s.decompose_reduction(around.reduction, shares)
    return s


def pool_lengths(module: Any, lanes: int) -> list[int]:
    """Return in how many channels at once a pool's windows may be taken; none if it pools no windows."""
    schedule = tvm.s_tir.Schedule(module)
    if len(reductions(schedule)) != 1:
        return []
    around = around_reduction(schedule)
    [read, *others] = around.read
    if others or len(read) != len(around.spatial) or len(around.reduced) != len(read) - 2 or not around.reduced:
        return []
    if read[-1] != around.spatial[-1] or max(around.spatial[1:-1]) == 1:
        return []
    [length] = lengths(read[-1], lanes, 1)
    return [length * vectors for vectors in (1, 2) if read[-1] % (length * vectors) == 0]


def pool_program(module: Any, length: int) -> Any:
    return _pool(tvm.s_tir.Schedule(module), length).mod


def _pool(schedule: Any, length: int) -> Any:
    s = schedule
    around = around_reduction(s)
    result = result_of(s, around)
    *outer, _, c = s.get_loops(result)
    vectors, lane = s.split(c, [None, length])
    s.parallel(s.fuse(*outer))
    s.vectorize(lane)
    s.compute_at(around.reduction, vectors, preserve_unit_loops=True)
    *_, lane = s.get_loops(around.reduction)[: -len(around.reduced)]
    window = s.get_loops(around.reduction)[-len(around.reduced) :]
    s.reorder(*window, lane)
    s.vectorize(lane)
    if math.prod(around.reduced) <= _UNROLLED:
        unroll(s, *window)
    for block in around.before:
        s.compute_inline(block)
    s.decompose_reduction(around.reduction, window[0])
    return s
