"""Sums and means over rows and columns, channels last, as in global pooling: a design space of their own. Few channels
leave MetaSchedule's rules little to vectorise, and less to share between threads. Here threads sum up some rows each,
with a block of channels in registers, and the partial sums are added in the end."""

from typing import Any

from tunery.dialects.metaschedule._tvm import tvm
from tunery.dialects.metaschedule.variants.scheduling import Designs, around_reduction, reductions, result_of, unroll
from tunery.dialects.metaschedule.variants.vectors import lengths

NAME = "place-sums"
_LENGTHS = 2
_PLACES = 2
_MOST_VECTORS, _MOST_STEPS = 8, 8  # of each, in the innermost loops


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
