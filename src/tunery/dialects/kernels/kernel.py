"""A built kernel in this process: its buffers, its clock, and what is looked for beside its outputs."""

import math
import weakref
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from tunery._errors import DialectError
from tunery.devices import Device
from tunery.dialects import Array, Kernel
from tunery.dialects.configurations.expressions import ExpressionError
from tunery.dialects.kernels.buffers import GuardedArray
from tunery.dialects.kernels.formulas import compute
from tunery.dialects.kernels.process import ROUND_TRIP_S, KernelProcess
from tunery.dialects.kernels.specification import Argument, KernelSpecification, decoded

_SPREAD = 2_654_435_761
_CLOSE, _CLOSE_HALF = 1e-3, 1e-2
_SAME_WORK = ((5, 1.5), (3, 3.0))
"""With so many samples of known and of new inputs each, how many times the fastest ones may differ."""
_PAIRS = 24  # of samples that are taken before a kernel is refused for that: on a busy machine chance is in the first
_OVERHEAD_S = 5e-5  # samples of known and of new inputs that differ by no more are not compared
_MANY, _FIRST, _ONE_IN = 16, 2, 4
"""The answer of a sample of so many calls is always looked at, that of fewer for the first ones and for one in four."""
_DEARER, _SLEEP_S, _ORDER_S, _SINGLES, _TRIES = 2.0, 2e-5, 8e-6, 6, 16
"""A call alone may take so many times what one of many takes, and so much longer: for each of several threads, which
may sleep, or for the order to a single one, which never does. On two cores with a load of 4, the least of 6 calls of
one thread took 3.6 µs longer at most; with two threads the least of 18 took 55 µs longer, and that of 96 took 21 µs."""
_BUSIER, _LATE_S = 1.2, 1e-2  # the system counts the time of threads that run on at its next tick
MOST_CHANGES = 1024
"""Places of an input that are written in turn."""


@dataclass(frozen=True)
class Change:
    """What is written to an input before each of many calls, so that it differs from the last, or, with its own values,
    is the same at the same cost.

    Call after call another of the `places`, which are distinct, gets its value of the first row of `values`; then, one
    by one, that of the second, what it held before; and so on in turn.
    """

    argument: str
    places: npt.NDArray[np.int64]
    values: Array

    def at(self, call: int) -> tuple[int, Array]:
        row, number = divmod(call, self.places.size)
        return int(self.places[number]), self.values[row % 2, number : number + 1]


class Buffer(Protocol):
    """The memory of one array argument."""

    @property
    def array(self) -> Array:
        """What it holds now; to be read only, for it may be a copy."""

    def put(self, values: Array | float) -> None:
        """Have it hold an array of its shape, or one number everywhere."""

    def check(self) -> None:
        """Check that nothing was written beside it."""


class BuiltKernel(Kernel):
    """A built kernel with its arguments in guarded arrays; every other sample that is timed has new inputs.

    Where the arrays are, and how the kernel is called, is its language's matter.
    """

    def __init__(self, specification: KernelSpecification, buffers: Mapping[str, Buffer]) -> None:
        self._spec, self._buffers = specification, buffers
        self._given: dict[str, Array] = {}
        self._checked, self._changed = False, False
        self._known: list[Array] | None = None
        self._taken: dict[int, tuple[list[tuple[float, float]], list[tuple[float, float]]]] = {}
        self._turn = np.random.default_rng(0)

    @abstractmethod
    def call(self, calls: int = 1, change: Change | None = None) -> float:
        """Call it on what the arrays hold, wait for the end, and return the seconds by the device's best clock."""

    @abstractmethod
    def call_anew(self) -> None:
        """Call it on what the arrays hold, with nothing left of earlier calls that could serve for an answer."""

    def worked_s(self) -> float | None:
        """Return a clock of the work that calls cost, which others on the machine hardly change; None: the device's.

        One that stands still leaves the work for known and for new inputs uncompared.
        """
        return None

    @override
    def bind(self, inputs: Sequence[Array]) -> None:
        self.give(filled(self._spec, inputs))

    def give(self, arrays: Mapping[str, Array]) -> None:
        self._given = {name: array.copy() for name, array in arrays.items()}
        self._known = None
        self._restore()

    def _restore(self) -> None:
        self._changed = False
        for name, array in self._given.items():
            self._buffers[name].put(array)

    @override
    def poison(self) -> None:
        for one in self._spec.outputs:
            kind = np.dtype(one.dtype)
            self._buffers[one.name].put(np.nan if kind.kind == "f" else np.iinfo(kind).min)

    @override
    def run(self) -> None:
        if self._changed:
            self._restore()
        self.call()

    @override
    def time(self, calls: int) -> float:
        if not self._checked:
            self._checked = True
            self._check_memory()
        changed = not self._changed and bool(self.varied)
        elapsed_s, worked_s = self._sample(calls, changed=changed)
        self._check_answer(calls, changed=changed)
        self._check_time(elapsed_s, worked_s, calls)
        self._check_work(calls)
        return max(elapsed_s, 1e-9)

    def _sample(self, calls: int, *, changed: bool) -> tuple[float, float]:
        """Call it on the input that is known, or on new ones; return the seconds, and those of its work."""
        self._restore()
        change = self._changes(calls, changed=changed) if self.varied else None
        self.poison()
        before_s = self.worked_s()
        elapsed_s = self.call(calls, change)
        self._changed = changed
        worked_s = elapsed_s if before_s is None else (self.worked_s() or 0.0) - before_s
        self._taken.setdefault(calls, ([], []))[changed].append((elapsed_s, worked_s))
        return elapsed_s, worked_s

    @override
    def outputs(self) -> list[Array]:
        if self._changed:
            self.poison()
            self.run()
        for name, buffer in self._buffers.items():
            buffer.check()
            if name not in self._given:
                continue
            given = self._given[name]
            now = buffer.array
            if not (_identical(now, given) or np.array_equal(now, given, equal_nan=given.dtype.kind == "f")):
                raise DialectError(f"the kernel has written to its input {name}")
        return self._answer()

    def _answer(self) -> list[Array]:
        return [self._buffers[one.name].array.copy() for one in self._spec.outputs]

    @property
    def varied(self) -> list[Argument]:
        """The inputs that hold other numbers each time."""
        return [one for one in self._spec.inputs if one.fill.varies]

    def _changes(self, calls: int, *, changed: bool) -> Change:
        """Return what is written to an input before each of so many calls: other values, or its own as often."""
        name = self.varied[0].name
        array = self._given[name].reshape(-1)
        places = np.unique(self._turn.integers(array.size, size=min(calls, MOST_CHANGES)))
        others = array[self._turn.integers(array.size, size=places.size)] if changed else array[places]
        return Change(name, places, np.stack([others, array[places]]))

    def _check_work(self, calls: int) -> None:
        """Check that calls cost as much for the input that is known as for new ones, which differ little from it.

        Noise makes runs dearer, so the cheapest of each kind are compared, and where these differ, more are taken.
        """
        for _ in range(_PAIRS):
            share = self._cheaper(calls)
            if not share:
                return
            for changed in (False, True):
                self._sample(calls, changed=changed)
        if share := self._cheaper(calls):
            raise DialectError(f"the kernel does {share} work for inputs that it does not know; it must not")

    def _cheaper(self, calls: int) -> str:
        """Return whether so many calls with new inputs do "less" or "more" work than others; "" if neither is seen."""
        known, new = self._taken[calls]
        least = min(len(known), len(new))
        most = next((ratio for count, ratio in _SAME_WORK if least >= count), None)
        if most is None:
            return ""
        seen = set()
        for clock in range(2):
            mine, other = (min(sample[clock] for sample in taken) for taken in (new, known))
            far = abs(mine - other) > _OVERHEAD_S and max(mine, other) > most * min(mine, other)
            seen.add(("more" if mine > other else "less") if far else "")
        return seen.pop() if len(seen) == 1 else ""

    def _check_answer(self, calls: int, *, changed: bool) -> None:
        """Check that calls that were timed have worked as one does alone."""
        if calls < _MANY and len(self._taken[calls][changed]) > _FIRST and self._turn.random() * _ONE_IN >= 1:
            return
        mine = self._answer()
        if changed or self._known is None:
            self.poison()
            self.call()
        right = self._answer() if changed or self._known is None else self._known
        if not changed:
            self._known = right
        if not all(_alike(one, other) for one, other in zip(mine, right, strict=True)):
            raise DialectError("the kernel's answer is another one where many calls follow each other")

    def _check_time(self, elapsed_s: float, worked_s: float, calls: int) -> None:
        """Check that so many calls can have taken so long."""

    def _check_memory(self) -> None:
        """Check that an answer depends on the inputs alone: not on earlier calls, nor on who comes first.

        About half of each input is changed, its ends are not, and the answers of two calls, the first over the outputs
        of another input, are compared with that of one which cannot remember.
        """
        self.call()
        for one in self.varied:
            given = self._buffers[one.name].array
            flat = given.reshape(-1)
            chosen = self._turn.random(flat.size) < 0.5
            chosen[[0, -1]] = False
            self._buffers[one.name].put(np.where(chosen, np.roll(flat, 1), flat).reshape(given.shape))
        self.call()
        answers = [self._answer()]
        for call in (self.call, self.call_anew):
            self.poison()
            call()
            answers.append(self._answer())
        self._restore()
        self.call()
        for mine in answers[:-1]:
            if not all(_alike(one, other) for one, other in zip(mine, answers[-1], strict=True)):
                raise DialectError(
                    "the kernel's answer depends on earlier calls: it remembers one, does not write it all, or races"
                )


class CKernel(BuiltKernel):
    """A kernel in C, in a process of its own, which is timed from here."""

    least_sample_s = 20 * ROUND_TRIP_S

    def __init__(self, specification: KernelSpecification, path: Path, device: Device, threads: int) -> None:
        self._path, self._threads, self._clock = path, threads, device.clock
        arrays = [one for one in specification.arguments if not one.scalar]
        self._memory = {one.name: GuardedArray(one.name, one.shape, one.dtype) for one in arrays}
        super().__init__(specification, self._memory)
        self._places = {one.name: place for place, one in enumerate(specification.arguments)}
        self._process = self._started()
        self._end = weakref.finalize(self, self._process.close)
        self._alone_s, self._elapsed_s, self._used_s = math.inf, 0.0, 0.0

    def _started(self) -> KernelProcess:
        arrays = [self._memory.get(one.name) for one in self._spec.arguments]
        return KernelProcess(self._path, self._threads, arrays, MOST_CHANGES, self._clock)

    @override
    def call(self, calls: int = 1, change: Change | None = None) -> float:
        if change is None:
            return self._process.run(calls)
        return self._process.run(calls, self._places[change.argument], change.places, change.values)

    @override
    def worked_s(self) -> float:
        return self._process.worked_s()

    @override
    def call_anew(self) -> None:
        fresh = self._started()
        try:
            fresh.run(1)
        finally:
            fresh.close()

    @override
    def _check_time(self, elapsed_s: float, worked_s: float, calls: int) -> None:
        """Check that many calls take as long as so many single ones, and no more threads than it was given."""
        self._elapsed_s, self._used_s = self._elapsed_s + elapsed_s, self._used_s + worked_s
        if self._used_s > self._threads * (_BUSIER * self._elapsed_s + _LATE_S):
            raise DialectError(f"the kernel uses more than the {self._threads} threads that it was given")
        order_s = min(max(_ORDER_S, self._process.trip_s), _SLEEP_S)  # a slow machine's takes as long as a trip
        most_s = _DEARER * elapsed_s / calls + (order_s if self._threads == 1 else _SLEEP_S * self._threads)
        for _ in range(_TRIES if calls > 1 else 0):
            if self._alone_s <= most_s:
                return
            self._alone_s = min(self._alone_s, self._single_s())
        if calls > 1 and self._alone_s > most_s:
            raise DialectError("many calls of the kernel take less time than so many single ones")

    def _single_s(self) -> float:
        """Return the least that a call took which came alone, and whose answer is right."""
        self._restore()
        taken_s = []
        for _ in range(_SINGLES):
            self.poison()
            taken_s.append(self._process.run_alone_s())
            mine = self._answer()
            if self._known is None:
                self._known = mine
            if not all(_alike(one, other) for one, other in zip(mine, self._known, strict=True)):
                raise DialectError("the kernel's answer is another one where single calls follow each other")
        return min(taken_s)


def _identical(mine: Array, theirs: Array) -> bool:
    """Whether two arrays of one type hold the same bits, which is seen much sooner than that their floats are close."""
    bits = f"u{mine.dtype.itemsize}"
    return bool(np.array_equal(mine.view(bits), theirs.view(bits)))


def _alike(mine: Array, theirs: Array) -> bool:
    if _identical(mine, theirs):
        return True
    if mine.dtype.kind != "f":
        return False
    finite = theirs[np.isfinite(theirs)]
    scale = float(np.sqrt(np.mean(np.square(finite, dtype=np.float64)))) if finite.size else 0.0
    close = _CLOSE if mine.dtype.itemsize > 2 else _CLOSE_HALF
    return bool(np.allclose(mine, theirs, rtol=close, atol=close * scale, equal_nan=True))


class FormulaKernel(Kernel):
    """A reference in NumPy: right, and slow."""

    def __init__(self, specification: KernelSpecification, device: Device) -> None:
        self._spec, self._clock = specification, device.clock
        self._outputs = [np.zeros(one.shape, one.dtype) for one in specification.outputs]
        self._given: dict[str, Array] = {}

    @override
    def bind(self, inputs: Sequence[Array]) -> None:
        self._given = filled(self._spec, inputs)

    @override
    def poison(self) -> None:
        for array in self._outputs:
            array.fill(np.nan if array.dtype.kind == "f" else np.iinfo(array.dtype).min)

    @override
    def run(self) -> None:
        """Compute all outputs."""
        scalars = {one.name: one.value for one in self._spec.arguments if one.value is not None}
        for one, into in zip(self._spec.outputs, self._outputs, strict=True):
            try:
                found = compute(self._spec.reference.numpy[one.name], self._given, {**self._spec.problem, **scalars})
            except ExpressionError as error:
                raise DialectError(str(error)) from error
            if found.shape != one.shape and found.size != into.size:
                raise DialectError(f"the reference of {one.name} has the shape {found.shape}, not {one.shape}")
            with np.errstate(over="ignore"):  # in half precision it is infinite
                into[...] = found.reshape(one.shape).astype(into.dtype)

    @override
    def time(self, calls: int) -> float:
        start = self._clock()
        for _ in range(calls):
            self.run()
        return max(self._clock() - start, 1e-9)

    @override
    def outputs(self) -> list[Array]:
        return [array.copy() for array in self._outputs]


def filled(specification: KernelSpecification, inputs: Sequence[Array]) -> dict[str, Array]:
    """Return the kernel's inputs by name: the numbers of `inputs`, in each one's range, and those that are fixed."""
    waiting, found = list(inputs), {}
    for one in specification.inputs:
        if one.fill.recorded:
            found[one.name] = decoded(one.fill.recorded)
        elif not one.fill.varies:
            found[one.name] = np.full(one.shape, one.fill.low, one.dtype)
        else:
            found[one.name] = _ranged(one, waiting.pop(0))
    return found


def _ranged(one: Argument, given: Array) -> Array:
    low, high = one.fill.low, one.fill.high
    if given.dtype.kind == "f":
        share = (given.astype(np.float64) + 1) / 2
        return np.asarray((low + share * (high - low)).astype(given.dtype))
    span = int(high) - int(low) + 1
    mixed = (given.astype(np.int64) + np.arange(given.size).reshape(given.shape)).astype(np.uint64) * np.uint64(_SPREAD)
    places = (mixed >> np.uint64(7)) % np.uint64(span)
    return np.asarray((places.astype(np.int64) + int(low)).astype(given.dtype))


def reproduces(kernel: BuiltKernel, specification: KernelSpecification) -> bool:
    recorded = specification.reference
    inputs = {one.name: np.full(one.shape, one.fill.low, one.dtype) for one in specification.inputs}
    inputs |= {one.name: decoded(one.fill.recorded) for one in specification.inputs if one.fill.recorded}
    kernel.give(inputs | {name: decoded(text) for name, text in recorded.inputs.items()})
    kernel.poison()
    kernel.run()
    right = [decoded(recorded.outputs[one.name]) for one in specification.outputs]
    return all(_alike(mine, theirs) for mine, theirs in zip(kernel.outputs(), right, strict=True))
