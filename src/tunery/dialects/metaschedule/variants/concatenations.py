"""Concatenations and shuffles of channels, with what is computed of them: a loop for each array that is read. TVM
writes a concatenation as one nest of loops that asks of every element from which array it comes. Of a few arrays the
compiler makes the best; DenseNet concatenates up to 41, and got 5 GB/s. Here the loop over channels is cut where the
arrays meet, and where their channels alternate (ShuffleNet), one from each array is taken in turn. The program has no
decision left open: threads share the places, vectors run along the channels."""

import operator
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from tunery._errors import DialectError
from tunery.dialects.metaschedule._tvm import tvm
from tunery.dialects.metaschedule.variants.rewriting import long_of, mapped, realized, shape_of, variable
from tunery.dialects.metaschedule.variants.scheduling import reductions
from tunery.dialects.metaschedule.variants.vectors import lengths

NAME = "concatenation"
_SERIAL, _PARALLEL, _VECTORIZED = 0, 1, 2  # TVM's kinds of loops
_LEAST_RUN = 4  # channels, in the mean
_LARGEST_GROUP = 4
_REGIONS = ("reads", "writes")
_PARTS = ("a", "b", "value", "condition", "true_value", "false_value")
_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add, "Sub": operator.sub, "Mul": operator.mul, "FloorDiv": operator.floordiv,
    "FloorMod": operator.mod, "LE": operator.le, "LT": operator.lt, "GE": operator.ge, "GT": operator.gt,
    "And": np.logical_and, "Or": np.logical_or,
}  # fmt: skip

Values = npt.NDArray[Any]


def rewrite(module: Any, lanes: int) -> Any:
    """Return the module with one loop for each array that is concatenated, for vectors of `lanes` floats. None if it
    chooses between no arrays, or sums something up."""
    schedule = tvm.s_tir.Schedule(module)
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    stores = [schedule.get(block).body for block in blocks]
    if reductions(schedule) or not any(_asked(getattr(store, "value", None))[0] for store in stores):
        return None
    results = []
    for block in blocks:
        [region] = schedule.get(block).writes
        if any(region.source.same_as(parameter) for parameter in module["main"].params):
            results.append(block)
        else:
            schedule.compute_inline(block)
    found = [_Result(schedule.get(block)) for block in results]
    written = [schedule.get(block) for block in results]
    reads, writes = (
        whole_regions([region for block in written for region in getattr(block, name)]) for name in _REGIONS
    )
    if any(read.source.same_as(write.source) for read in reads for write in writes):
        raise DialectError("a result is read again")
    if len({tuple(one.places) for one in found}) != 1:
        raise DialectError("its results are of different sizes")
    if not any(one.cut for one in found):
        raise DialectError("it is not a concatenation along the last axis")
    place = variable("place")
    parts = [part for one in found for part in one.parts(place, lanes)]
    body = parts[0] if len(parts) == 1 else tvm.tirx.SeqStmt(parts)
    body = tvm.tirx.For(place, *long_of(0, int(np.prod(found[0].places))), _PARALLEL, body)
    body = realized(tvm.s_tir.SBlock([], reads, writes, NAME, body, None, [], [], {}))
    body = realized(tvm.s_tir.SBlock([], [], [], "root", body, None, [], [], {}))
    function = schedule.mod["main"]
    return tvm.IRModule({"main": tvm.tirx.PrimFunc(function.params, body).with_attrs(dict(function.attrs))})


def whole_regions(regions: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for region in regions:
        if not any(region.source.same_as(other.source) for other in found):
            whole = [tvm.ir.Range.from_min_extent(*long_of(0, extent)) for extent in shape_of(region.source)]
            found.append(tvm.ir.TensorRegion(region.source, whole, region.ty))
    return found


class _Result:
    """What one block writes: `places` are the extents of all axes but the channels. Channels are taken in turns of
    `group`, each turn of the same arrays as the one before but where a run ends."""

    def __init__(self, block: Any) -> None:
        self._store = block.body
        axes = [axis.var for axis in block.iter_vars]
        if not isinstance(self._store, tvm.tirx.BufferStore) or not all(map(_same, self._store.indices, axes)):
            raise DialectError("the result is not written axis by axis")
        *self.places, self._channels = shape_of(self._store.buffer)
        if not self.places or len(axes) != len(self.places) + 1:
            raise DialectError("it has no channels")
        *self._axes, self._channel = axes
        conditions, divisors = _asked(self._store.value)
        every = np.arange(self._channels)
        answers = np.array([_values(condition, self._channel, every) for condition in conditions], dtype=bool)
        answers = answers.reshape(len(conditions), self._channels).T
        groups = [n for n in range(1, _LARGEST_GROUP + 1) if self._channels % n == 0 and n in {1, *divisors}]
        self._group = min(groups, key=lambda group: len(_runs(answers, group)))
        self._runs = _runs(answers, self._group)
        if len(self._runs) * _LEAST_RUN > self._channels:
            raise DialectError("its parts are too short")

    @property
    def cut(self) -> bool:
        return len(self._runs) > 1 or self._group > 1

    def parts(self, place: Any, lanes: int) -> list[Any]:
        count, places = 1, dict[Any, Any]()
        for axis, extent in reversed(list(zip(self._axes, self.places, strict=True))):
            places[axis] = tvm.tirx.floormod(tvm.tirx.floordiv(place, long_of(count)[0]), long_of(extent)[0])
            count *= extent
        return [self._part(places, start, end, lanes) for start, end in self._runs]

    def _part(self, places: Mapping[Any, Any], start: int, end: int, lanes: int) -> Any:
        turn = variable("turn")
        if self._group > 1:  # the compiler makes vectors of these
            stores = [
                self._at(places, (turn + start) * self._group + number, start * self._group + number)
                for number in range(self._group)
            ]
            return tvm.tirx.For(turn, *long_of(0, end - start), _SERIAL, tvm.tirx.SeqStmt(stores))
        lane, length = variable("lane"), lengths(end - start, lanes, 1)[0]
        body = self._at(places, turn * length + lane + start, start)
        body = tvm.tirx.For(lane, *long_of(0, length), _VECTORIZED, body)
        return tvm.tirx.For(turn, *long_of(0, (end - start) // length), _SERIAL, body)

    def _at(self, places: Mapping[Any, Any], channel: Any, first: int) -> Any:
        moved = _Moved({**places, self._channel: channel}, self._channel, first)
        store = self._store
        return tvm.tirx.BufferStore(store.buffer, moved.of(store.value), [*map(moved.of, store.indices)])


class _Moved:
    """Expressions at other places, with all questions answered as for one channel."""

    def __init__(self, places: Mapping[Any, Any], channel: Any, first: int) -> None:
        self._places, self._channel, self._first = places, channel, np.array([first])

    def of(self, expression: Any) -> Any:
        return mapped(expression, self._changed)

    def _changed(self, part: Any) -> Any:
        if isinstance(part, tvm.ir.Var):
            return self._places.get(part, part)
        if _is_choice(part):
            condition, yes, no = part.args
            return self.of(yes if _values(condition, self._channel, self._first)[0] else no)
        return None


def _asked(expression: Any) -> tuple[list[Any], set[int]]:
    """Return the conditions that an expression's choices ask, and the divisors of which it takes remainders."""
    conditions, divisors = list[Any](), set[int]()
    stack = [expression]
    while stack:
        node = stack.pop()
        if _is_choice(node):
            conditions.append(node.args[0])
        if type(node).__name__ == "FloorMod" and isinstance(node.b, tvm.tirx.IntImm):
            divisors.add(int(node.b.value))
        if isinstance(node, tvm.ir.Call):
            stack.extend(node.args)
        elif isinstance(node, tvm.ir.TensorLoad):
            stack.extend(node.indices)
        else:
            stack.extend(getattr(node, name) for name in _PARTS if hasattr(node, name))
    return conditions, divisors


def _values(expression: Any, channel: Any, channels: Values) -> Values:
    if _same(expression, channel):
        return channels
    if isinstance(expression, tvm.tirx.IntImm):
        return np.full_like(channels, int(expression.value))
    name = type(expression).__name__
    if name not in _OPERATORS:
        raise DialectError("what it reads is not decided by the channel alone")
    a, b = (_values(each, channel, channels) for each in (expression.a, expression.b))
    return np.asarray(_OPERATORS[name](a, b))


def _runs(answers: Values, group: int) -> Sequence[tuple[int, int]]:
    turns = answers.reshape(len(answers) // group, -1)
    cuts = 1 + np.flatnonzero((turns[1:] != turns[:-1]).any(axis=1))
    return list(pairwise([0, *map(int, cuts), len(turns)]))


def _is_choice(expression: Any) -> bool:
    return isinstance(expression, tvm.ir.Call) and bool(expression.op == tvm.ir.Op.get("prim.if_then_else"))


def _same(index: Any, axis: Any) -> bool:
    return bool(index.same_as(axis))
