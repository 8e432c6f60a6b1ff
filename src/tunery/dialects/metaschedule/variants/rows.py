"""Softmax, layer normalisation and what else turns rows into rows: all steps of a row before the next row.
MetaSchedule's rules reach 19 GB/s for a softmax of 197 columns where ONNX Runtime has 60: sums and maxima along the row
are not in vectors, which 197 columns do not fill, and what steps hand on goes through memory. Here each step is a loop
over the row in whole vectors, the last of which begins earlier where they do not fill it; what that has in common with
the one before is written twice, and counts once. What steps hand on stays with the row. The one decision left is how
many rows a thread takes in turn."""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tunery._errors import DialectError
from tunery.dialects.metaschedule._tvm import tvm
from tunery.dialects.metaschedule.variants.rewriting import long_of, mapped, shape_of, variable
from tunery.dialects.metaschedule.variants.scheduling import extents_of, reductions

NAME = "rows"
_SERIAL, _VECTORIZED, _UNROLLED = 0, 2, 3  # TVM's kinds of loops
_LEAST_WIDTH = 8
_ACCUMULATORS = 4  # vectors that a sum is spread over, since each addition waits for the one before
_MOST_ROWS = 64  # that a thread takes in turn
_COMBINED: Mapping[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add, "Max": tvm.tirx.Max, "Min": tvm.tirx.Min,
}  # fmt: skip

At = Callable[[Any], Any]
"""A statement or a value at a place of the row."""


def rewrite(module: Any, lanes: int) -> Any:
    """Return the module with one loop over its rows, for vectors of `lanes` floats. None if it is not a program that
    takes rows along the last axis to rows, with a sum or the like over each."""
    schedule = tvm.s_tir.Schedule(module)
    *rows, width = shape_of(module["main"].params[-1])
    nests = schedule.get_child_blocks(schedule.get_sblock("root"))
    sums = reductions(schedule)
    if not rows or not sums or any(_kind(schedule.get(nests[place]), rows, width) != _SUM for place in sums):
        return None
    for nest in nests[:-1]:
        if not _kind(schedule.get(nest), rows, width):
            schedule.compute_inline(nest)  # such as weights of another type
    blocks = [schedule.get(nest) for nest in schedule.get_child_blocks(schedule.get_sblock("root"))]
    function = schedule.mod["main"]
    if _kind(blocks[-1], rows, width) != _WIDE or not blocks[-1].body.buffer.same_as(function.params[-1]):
        return None
    if width < _LEAST_WIDTH:
        raise DialectError("its rows are too short")
    program = _Program(function, blocks, rows, width, min(lanes, 1 << width.bit_length() - 1))
    body = program.nest()
    return tvm.IRModule({"main": tvm.tirx.PrimFunc(function.params, body).with_attrs(dict(function.attrs))})


def designs(schedule: Any) -> list[Any]:
    [row] = schedule.get_loops(schedule.get_sblock(NAME))
    outer, _ = schedule.split(row, schedule.sample_perfect_tile(row, 2, _MOST_ROWS))
    schedule.parallel(outer)
    return [schedule]


_WIDE, _SUM, _ONE = "a value for each place", "a sum over the row", "a value for the row"


def _kind(block: Any, rows: Sequence[int], width: int) -> str:
    spatial, reduced = (extents_of(block, reduced=which) for which in (False, True))
    while len(spatial) > len(rows) and spatial[-1] == 1 and width > 1:  # an axis that is kept
        spatial = spatial[:-1]
    if not isinstance(block.body, tvm.tirx.BufferStore):
        return ""
    if reduced:
        return _SUM if spatial == list(rows) and reduced == [width] else ""
    return {(*rows, width): _WIDE, tuple(rows): _ONE}.get(tuple(spatial), "")


class _Program:
    """The blocks of a function, to be written as the steps of a row, with vectors of `length`."""

    def __init__(self, function: Any, blocks: Sequence[Any], rows: Sequence[int], width: int, length: int) -> None:
        self._function, self._blocks = function, blocks
        self._rows, self._width, self._length = rows, width, length
        self._row = variable("row")
        self._result = function.params[-1]
        self._kept: dict[Any, Any] = {}  # what steps hand on, by the buffer that it was in
        self._new: list[Any] = []
        self._check()

    def _check(self) -> None:
        written = [block.body.buffer for block in self._blocks]
        if any(str(buffer.ty.dtype) != "float32" for buffer in written):
            raise DialectError("it computes something else than float32")
        if any(buffer.same_as(parameter) for buffer in written[:-1] for parameter in self._function.params):
            raise DialectError("there is more than one result")
        wide = [b.body.buffer for b in self._blocks[:-1] if _kind(b, self._rows, self._width) == _WIDE]
        for block in self._blocks[:-1]:
            kind, buffer = _kind(block, self._rows, self._width), block.body.buffer
            if kind == _WIDE and len(wide) == 1 and self._width % self._length == 0:
                self._kept[buffer] = self._result  # the place that the result comes to
            else:
                self._kept[buffer] = self._buffer(str(buffer.name), self._width if kind == _WIDE else 1)

    def _buffer(self, name: str, size: int) -> Any:
        made = tvm.tirx.decl_buffer(long_of(size), "float32", name)
        self._new.append(made)
        return made

    def nest(self) -> Any:
        count = math.prod(self._rows)
        steps = [step for block in self._blocks for step in self._steps(block)]
        reads = [_whole(buffer) for buffer in self._function.params[:-1]]
        axis = tvm.tirx.IterVar(tvm.ir.Range.from_min_extent(*long_of(0, count)), self._row, tvm.tirx.IterVar.DataPar)
        writes = [_whole(self._result)]
        block = tvm.s_tir.SBlock([axis], reads, writes, NAME, tvm.tirx.SeqStmt(steps), None, self._new, [], {})
        loop = variable("r")
        nest = tvm.tirx.For(loop, *long_of(0, count), _SERIAL, tvm.s_tir.SBlockRealize([loop], True, block))
        return tvm.s_tir.SBlockRealize([], True, tvm.s_tir.SBlock([], [], [], "root", nest, None, [], [], {}))

    def _steps(self, block: Any) -> list[Any]:
        kind, store = _kind(block, self._rows, self._width), block.body
        axes = [axis.var for axis in block.iter_vars]
        place = axes[len(self._rows)] if kind != _ONE and len(axes) > len(self._rows) else None
        if kind == _SUM:
            place = next(axis.var for axis in block.iter_vars if int(axis.iter_type) == tvm.tirx.IterVar.CommReduce)
        fixed = dict(zip(axes, self._places(), strict=False)) | {
            axis: long_of(0)[0] for axis in axes[len(self._rows) :] if not axis.same_as(place)
        }

        if not all(one.same_as(axis) for one, axis in zip(store.indices, axes, strict=False)):
            raise DialectError("a step of it is not written axis by axis")

        def value(expression: Any) -> At:
            own = (*axes[: len(self._rows)], place)
            return lambda at: self._moved(expression, {**fixed, **({place: at} if place is not None else {})}, own)

        if kind == _SUM:
            return self._summed(store, block.init.value, value)
        if kind == _ONE:
            return [self._store(self._kept[store.buffer], value(store.value)(None))]
        if not store.buffer.same_as(self._result):
            kept = self._kept[store.buffer]
            return self._everywhere(lambda at: self._written(kept, value(store.value)(at), at))
        first, values = self._inverted(store.value, value)
        return [*first, *self._everywhere(lambda at: self._written(store.buffer, values(at), at))]

    def _inverted(self, expression: Any, value: Callable[[Any], At]) -> tuple[list[Any], At]:
        """Return how to divide by a sum of the row: by one division, and a product for each place."""
        sums = [b.body.buffer for b in self._blocks if _kind(b, self._rows, self._width) == _SUM]
        if not isinstance(expression, tvm.tirx.Div) or not any(_loads(expression.b, buffer) for buffer in sums):
            return [], value(expression)
        inverse = self._buffer("inverse", 1)
        one = tvm.tirx.FloatImm("float32", 1.0)
        first = self._store(inverse, one / value(expression.b)(None))
        return [first], lambda at: value(expression.a)(at) * inverse[long_of(0)[0]]

    def _summed(self, store: Any, identity: Any, value: Callable[[Any], At]) -> list[Any]:
        """Return the steps of a sum, or of what is like one: in vectors, which are then folded in halves."""
        combine = _COMBINED.get(type(store.value).__name__)
        own = [_loads(side, store.buffer) for side in (store.value.a, store.value.b)] if combine else []
        if combine is None or sum(own) != 1:
            raise DialectError("it sums up in a way that is not known")
        if combine is operator.add and not (isinstance(identity, tvm.tirx.FloatImm) and float(identity.value) == 0):
            raise DialectError("its sum does not begin with 0")  # which each lane begins with
        term = value(store.value.b if own[0] else store.value.a)
        length, vectors, rest = self._length, self._width // self._length, self._width % self._length
        spread = _ACCUMULATORS if vectors >= 2 * _ACCUMULATORS else 1
        sums = self._buffer("sums", spread * length)

        def taken_in(to: Any, more: Any) -> Any:
            return self._store(sums, combine(sums[to], more), to)

        def vector(number: Any, which: Any) -> Any:
            return self._lanes(length, lambda lane: taken_in(which * length + lane, term(number * length + lane)))

        def folded(half: int) -> Any:
            return self._lanes(half, lambda lane: taken_in(lane, sums[lane + half]))

        turn, which = variable("turn"), variable("which")
        turns = tvm.tirx.For(which, *long_of(0, spread), _UNROLLED, vector(turn * spread + which, which))
        steps = [
            self._lanes(spread * length, lambda lane: self._store(sums, identity, lane)),
            tvm.tirx.For(turn, *long_of(0, vectors // spread), _SERIAL, turns),
            *(vector(*long_of(n, n % spread)) for n in range(vectors // spread * spread, vectors)),
        ]
        if rest:  # of the last vector, what was not in the one before
            new, start = length - rest, self._width - length
            steps.append(
                self._lanes(
                    length,
                    lambda lane: taken_in(lane, tvm.tirx.Select(lane >= new, term(lane + start), identity)),
                )
            )
        halves = [1 << bit for bit in reversed(range((spread * length).bit_length() - 1))]
        return [*steps, *map(folded, halves), self._store(self._kept[store.buffer], sums[long_of(0)[0]])]

    def _everywhere(self, step: At) -> list[Any]:
        length, turn = self._length, variable("turn")
        body = self._lanes(length, lambda lane: step(turn * length + lane))
        steps = [tvm.tirx.For(turn, *long_of(0, self._width // length), _SERIAL, body)]
        if self._width % length:
            steps.append(self._lanes(length, lambda lane: step(lane + (self._width - length))))
        return steps

    def _lanes(self, size: int, step: At) -> Any:
        if size == 1:
            return step(long_of(0)[0])
        lane = variable("lane")
        return tvm.tirx.For(lane, *long_of(0, size), _VECTORIZED, step(lane))

    def _written(self, buffer: Any, value: Any, at: Any) -> Any:
        indices = [*self._places(), at] if buffer.same_as(self._result) else [at]
        return tvm.tirx.BufferStore(buffer, value, indices)

    def _store(self, buffer: Any, value: Any, at: Any = None) -> Any:
        return tvm.tirx.BufferStore(buffer, value, [long_of(0)[0] if at is None else at])

    def _places(self) -> list[Any]:
        count, places = 1, list[Any]()
        for extent in reversed(self._rows):
            number = tvm.tirx.floordiv(self._row, long_of(count)[0]) if count > 1 else self._row
            places.append(tvm.tirx.floormod(number, long_of(extent)[0]))
            count *= extent
        return places[::-1]

    def _moved(self, expression: Any, places: Mapping[Any, Any], own: Sequence[Any]) -> Any:
        """Return an expression at a place, with what earlier steps have handed on read from where it is kept. `own` are
        the axes of the step, that along the row last."""
        *rows, place = own

        def change(part: Any) -> Any:
            if isinstance(part, tvm.ir.Var):
                return next((at for axis, at in places.items() if axis.same_as(part)), part)
            if not isinstance(part, tvm.ir.TensorLoad):
                return None
            home = next((home for buffer, home in self._kept.items() if buffer.same_as(part.source)), None)
            if home is None:
                return None
            if not all(one.same_as(row) for one, row in zip(part.indices, rows, strict=False)):
                raise DialectError("a step of it reads another row")
            if not home.same_as(self._result) and shape_of(home) == [1]:
                return home[long_of(0)[0]]
            at = part.indices[len(rows)]
            if not home.same_as(self._result):
                return home[mapped(at, change)]
            if not at.same_as(place):  # in place, so each step must read where it writes
                raise DialectError("a step of it reads another place")
            return home[(*self._places(), mapped(at, change))]

        return mapped(expression, change)


def _loads(expression: Any, buffer: Any) -> bool:
    return isinstance(expression, tvm.ir.TensorLoad) and bool(expression.source.same_as(buffer))


def _whole(buffer: Any) -> Any:
    ranges = [tvm.ir.Range.from_min_extent(*long_of(0, extent)) for extent in shape_of(buffer)]
    return tvm.tirx.BufferRegion(buffer, ranges)
