"""Depthwise convolutions, channels last: a design space of their own.

MetaSchedule's own rules tile each of seven loops two or four times and place the padding anywhere: what is good is
there, and found by luck. Here a block of outputs, some columns times some vectors of channels, is summed up in
registers with the kernel's rows and columns unrolled, so that what neighbouring outputs read is loaded once. Padding is
copied with the rows and channels that one thread works on, or tested where it is read.
"""

from typing import Any

from tunery._errors import DialectError
from tunery.dialects.metaschedule._tvm import tvm
from tunery.dialects.metaschedule.variants.scheduling import Designs, around_reduction, reductions, result_of, unroll
from tunery.dialects.metaschedule.variants.vectors import lengths

NAME = "depthwise"
_LENGTHS = 2
_AXES = 4
_MOST_ROWS, _MOST_COLUMNS, _MOST_VECTORS, _MOST_TAPS = 2, 14, 4, 7  # of each, in the innermost loops


def designs(module: Any, lanes: int) -> Designs | None:
    """Return the function that turns a schedule of the module into the designs, for vectors of `lanes` floats.

    None if it is no depthwise convolution with channels last.
    """
    schedule = tvm.s_tir.Schedule(module)
    if len(reductions(schedule)) != 1:
        return None
    around = around_reduction(schedule)
    channels = around.spatial[-1] if len(around.spatial) == _AXES else 0
    if [*around.reduced[:2], 1, channels] not in around.read or len(around.reduced) != _AXES - 1:
        return None
    if len(around.before) > 1:
        raise DialectError("more than padding comes before the convolution")
    copied = (True, False) if around.before else (False,)
    ways = [(length, each) for length in lengths(channels, lanes, _LENGTHS) for each in copied]
    return lambda schedule: [_design(schedule.copy(), *way) for way in ways]


def _design(schedule: Any, length: int, copied: bool) -> Any:
    """Schedule a convolution in vectors of `length` channels, with its padding `copied` for each thread or inlined."""
    s = schedule
    around = around_reduction(s)
    convolution = around.reduction
    n, h, w, c = s.get_loops(result_of(s, around))
    c, lane = s.split(c, [None, length])
    shares, vectors, vector = s.split(c, s.sample_perfect_tile(c, 3, _MOST_VECTORS))
    blocks, rows, row = s.split(h, s.sample_perfect_tile(h, 3, _MOST_ROWS))
    columns, column = s.split(w, s.sample_perfect_tile(w, 2, _MOST_COLUMNS))
    s.reorder(n, blocks, shares, vectors, rows, columns, row, column, vector, lane)
    thread = s.fuse(n, blocks, shares)
    s.parallel(thread)
    unroll(s, row, column, vector)
    s.vectorize(lane)
    s.compute_at(convolution, columns, preserve_unit_loops=True)
    n, row, column, c, taps, tap_column, one = s.get_loops(convolution)[-7:]
    vector, lane = s.split(c, [None, length])
    taps, tap = s.split(taps, s.sample_perfect_tile(taps, 2, _MOST_TAPS))
    s.reorder(n, taps, tap, tap_column, one, row, column, vector, lane)
    unroll(s, tap, tap_column, row, column, vector)
    s.vectorize(lane)
    s.decompose_reduction(convolution, taps)
    for padding in around.before:
        if not copied:
            s.compute_inline(padding)
            continue
        s.compute_at(padding, thread, preserve_unit_loops=True)
        *_, c = s.get_loops(padding)
        _, lane = s.split(c, [None, length])
        s.vectorize(lane)
    return s
