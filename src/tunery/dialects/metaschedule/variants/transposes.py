"""Changes of layout, with what is computed of them: matrices are transposed in registers, eight by eight. Written as
loops, channels-last to channels-first ran at 1.0 to 1.3 GB/s: every number that is read or written is on another line
of the cache. The program has no decision left open: `loading/native/support.c` transposes."""

import math
from dataclasses import dataclass
from typing import Any

import tvm_ffi

from tunery.dialects.metaschedule._tvm import tvm
from tunery.dialects.metaschedule.codegen.regions import TRANSPOSE
from tunery.dialects.metaschedule.reasons import OtherKindError
from tunery.dialects.metaschedule.variants.concatenations import whole_regions
from tunery.dialects.metaschedule.variants.rewriting import long_of, mapped, realized, shape_of, variable
from tunery.dialects.metaschedule.variants.scheduling import Designs, reductions

NAME, SHUFFLES = "transposes", "shuffles"
_SERIAL, _PARALLEL = 0, 1  # TVM's kinds of loops
_COLUMNS, _ROWS = 16, 256  # of one block: whole lines of the cache, and little enough for the first level
_LEAST_ROWS, _LEAST_COLUMNS = 8, 8
_MOST_GROUPS = 8


def rewrite(module: Any) -> Any:
    """Return a module whose nest of loops reads an array along another axis than it writes, in blocks."""
    schedule = tvm.s_tir.Schedule(module)
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    if reductions(schedule) or not blocks:
        raise OtherKindError("it sums something up")
    try:
        for block in blocks[:-1]:
            schedule.compute_inline(block)
    except tvm.s_tir.ScheduleError:
        raise OtherKindError("it has several results") from None
    block = schedule.get(blocks[-1])
    if not isinstance(block.body, tvm.tirx.BufferStore):
        raise OtherKindError("it is no plain store")
    body = realized(tvm.s_tir.SBlock([], [], [], "root", _Change(block).body(), None, [], [], {}))
    function = schedule.mod["main"]
    return tvm.IRModule({"main": tvm.tirx.PrimFunc(function.params, body).with_attrs(dict(function.attrs))})


@dataclass(frozen=True)
class _Block:
    """Where a block of the matrix begins, and its sizes."""

    places: dict[Any, Any]
    column: Any
    row: Any
    columns: Any
    rows: Any


class _Change:
    """A store whose last axes, its rows, are read with a stride: along the columns the arrays it reads are dense."""

    def __init__(self, block: Any) -> None:
        self._block, self._store = block, block.body
        self._axes = [axis.var for axis in block.iter_vars]
        self._extents = shape_of(self._store.buffer)
        if len(self._axes) != len(self._extents) or not all(
            index.same_as(axis) for index, axis in zip(self._store.indices, self._axes, strict=True)
        ):
            raise OtherKindError("the result is not written axis by axis")
        loads = list[Any]()
        tvm_ffi.structural_walk(self._store.value, ((tvm.ir.TensorLoad,), loads.append), order="pre")
        self._turned = [one for one in loads if self._axis(one, -1) not in {None, len(self._axes) - 1}]
        self._turned = [one for one in self._turned if self._place(one, len(self._axes) - 1) is not None]
        columns = {axis for one in self._turned if (axis := self._axis(one, -1)) is not None}
        kinds = {str(one.source.ty.dtype) for one in self._turned} - {"float32", "int32", "uint32"}
        if len(columns) != 1 or kinds or any(one.source.same_as(self._store.buffer) for one in loads):
            raise OtherKindError("no array of four bytes is read along one other axis")
        [self._column] = columns
        first = len(self._axes) - 1
        while first - 1 > self._column and all(self._dense(one, first - 1) for one in self._turned):
            first -= 1
        self._run = range(first, len(self._axes))
        self._rows = math.prod(self._extents[axis] for axis in self._run)
        if self._rows < _LEAST_ROWS or self._extents[self._column] < _LEAST_COLUMNS:
            raise OtherKindError("it is too narrow")

    def _axis(self, load: Any, place: int) -> int | None:
        """Return which axis of the result an index of a load is; None if it is no whole one."""
        if not load.indices:
            return None
        found = [n for n, axis in enumerate(self._axes) if load.indices[place].same_as(axis)]
        return found[0] if found and shape_of(load.source)[place] == self._extents[found[0]] else None

    def _place(self, load: Any, axis: int) -> int | None:
        found = [n for n, index in enumerate(load.indices) if index.same_as(self._axes[axis])]
        return found[0] if len(found) == 1 and self._axis(load, found[0]) == axis else None

    def _dense(self, load: Any, axis: int) -> bool:
        place, behind = self._place(load, axis), self._place(load, axis + 1)
        return place is not None and behind == place + 1

    def body(self) -> Any:
        columns, pieces = self._extents[self._column], -(-self._rows // _ROWS)
        width, height = min(_COLUMNS, columns), -(-self._rows // pieces)
        outer = [axis for axis in range(len(self._axes)) if axis != self._column and axis not in self._run]
        counts = [*(self._extents[axis] for axis in outer), -(-columns // width), pieces]
        index, count, parts = variable("block"), 1, list[Any]()
        for extent in reversed(counts):
            parts.insert(0, tvm.tirx.floormod(tvm.tirx.floordiv(index, *long_of(count)), *long_of(extent)))
            count *= extent
        *places, column, row = parts
        column, row = column * width, row * height
        at = _Block(
            {self._axes[axis]: place for axis, place in zip(outer, places, strict=True)}, column, row,
            _size(columns, column, width), _size(self._rows, row, height),
        )  # fmt: skip
        plain = isinstance(self._store.value, tvm.ir.TensorLoad)
        tiles = [] if plain else [self._tile(number, width, height) for number in range(len(self._turned))]
        stores = [self._transposition(load, at, tiles[n] if tiles else None) for n, load in enumerate(self._turned)]
        if tiles:
            stores.append(self._computation(at, tiles))
        body = stores[0] if len(stores) == 1 else tvm.tirx.SeqStmt(stores)
        if tiles:
            body = realized(tvm.s_tir.SBlock([], [], [], "tiles", body, None, tiles, [], {}))
        body = tvm.tirx.For(index, *long_of(0, count), _PARALLEL, body)
        reads, writes = whole_regions(self._block.reads), whole_regions(self._block.writes)
        return realized(tvm.s_tir.SBlock([], reads, writes, NAME, body, None, [], [], {}))

    def _tile(self, number: int, width: int, height: int) -> Any:
        dtype = str(self._turned[number].source.ty.dtype)
        return tvm.tirx.decl_buffer(long_of(width, height), dtype, name=f"tile{number}")

    def _at(self, at: _Block, column: Any, row: Any) -> dict[Any, Any]:
        places, count = {**at.places, self._axes[self._column]: column}, 1
        for axis in reversed(self._run):
            extent = self._extents[axis]
            place = tvm.tirx.floordiv(row, *long_of(count)) if count > 1 else row
            places[self._axes[axis]] = tvm.tirx.floormod(place, *long_of(extent)) if axis > self._run[0] else place
            count *= extent
        return places

    def _transposition(self, load: Any, at: _Block, tile: Any) -> Any:
        places = self._at(at, at.column, at.row)
        source = mapped(load, places.get)
        target, stride = self._store.buffer, math.prod(self._extents[self._column + 1 :])
        to = target[tuple(places[axis] for axis in self._axes)]
        if tile is not None:
            to, stride = tile[tuple(long_of(0, 0))], shape_of(tile)[1]
        place = self._place(load, len(self._axes) - 1) or 0
        arguments = [
            *long_of(stride),
            tvm.tirx.address_of(source),
            *long_of(math.prod(shape_of(load.source)[place + 1 :])),
        ]
        to = tvm.tirx.address_of(to)
        return tvm.tirx.Evaluate(tvm.tirx.call_extern("int32", TRANSPOSE, to, *arguments, at.rows, at.columns))

    def _computation(self, at: _Block, tiles: list[Any]) -> Any:
        column, row = variable("column"), variable("row")
        places = self._at(at, at.column + column, at.row + row)

        def moved(part: Any) -> Any:
            for load, tile in zip(self._turned, tiles, strict=True):
                if part.same_as(load):
                    return tile[column, row]
            return places.get(part) if isinstance(part, tvm.ir.Var) else None

        value = mapped(self._store.value, moved)
        store = tvm.tirx.BufferStore(self._store.buffer, value, [places[axis] for axis in self._axes])
        inner = tvm.tirx.For(row, *long_of(0), at.rows, _SERIAL, store)
        return tvm.tirx.For(column, *long_of(0), at.columns, _SERIAL, inner)


def _size(whole: int, begin: Any, most: int) -> Any:
    [size] = long_of(most)
    return size if whole % most == 0 else tvm.tirx.min(size, long_of(whole)[0] - begin)


def shuffle_designs(module: Any, lanes: int) -> Designs | None:
    """Return what schedules a shuffle of the last axis, of few groups or of groups of few; None if it is another.
    Written as one loop over the result, each number is read alone, by an index that divides: a third of the speed."""
    schedule = tvm.s_tir.Schedule(module)
    if reductions(schedule):
        return None
    try:
        store = schedule.get(_last(schedule)).body
    except tvm.s_tir.ScheduleError:
        return None
    groups = _groups(schedule.get(_last(schedule)), lanes) if isinstance(store, tvm.tirx.BufferStore) else 0
    return (lambda schedule: [_shuffled(schedule, groups)]) if groups else None


def _last(schedule: Any) -> Any:
    *others, last = schedule.get_child_blocks(schedule.get_sblock("root"))
    for block in others:
        schedule.compute_inline(block)
    return last


def _groups(block: Any, lanes: int) -> int:
    """Return how many numbers that are read apart follow one another in the result; 0 if it is no shuffle."""
    loads, store = list[Any](), block.body
    tvm_ffi.structural_walk(store.value, ((tvm.ir.TensorLoad,), loads.append), order="pre")
    axes, extents = [axis.var for axis in block.iter_vars], shape_of(store.buffer)
    if len(loads) != 1 or shape_of(loads[0].source) != extents or len(axes) != len(extents):
        return 0
    analyzer, channels = tvm.sym.Analyzer(), extents[-1]
    for axis in block.iter_vars:
        analyzer.bind(axis.var, axis.dom)
    *outer, last = loads[0].indices
    if not all(analyzer.can_prove_equal(index, axis) for index, axis in zip(outer, axes, strict=False)):
        return 0
    second = analyzer.simplify(mapped(last, {axes[-1]: long_of(1)[0]}.get))
    width = int(second) if isinstance(second, tvm.tirx.IntImm) else 0
    if width < 2 or channels % width or channels < 2 * lanes or min(width, channels // width) > _MOST_GROUPS:
        return 0
    groups = channels // width
    one, count = long_of(width, groups)
    shuffled = tvm.tirx.floormod(axes[-1], count) * one + tvm.tirx.floordiv(axes[-1], count)
    return groups if analyzer.can_prove_equal(last, shuffled) else 0


def _shuffled(schedule: Any, groups: int) -> Any:
    s = schedule
    *outer, channels = s.get_loops(_last(s))
    step, group = s.split(channels, [None, groups])
    few = group if groups <= _MOST_GROUPS else step
    if few is step:
        s.reorder(group, step)
    s.unroll(few)
    s.parallel(s.fuse(*outer) if len(outer) > 1 else outer[0])
    return s
