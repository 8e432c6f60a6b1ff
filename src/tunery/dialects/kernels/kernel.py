"""A built kernel in this process: its buffers, its clock, and what is looked for beside its outputs."""

import math
import weakref
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from typing_extensions import override

from tunery._errors import DialectError
from tunery.devices import Device
from tunery.dialects import Array, Kernel
from tunery.dialects.configurations.expressions import ExpressionError
from tunery.dialects.kernels.buffers import ArgumentSets, GuardedArray, poison
from tunery.dialects.kernels.formulas import compute
from tunery.dialects.kernels.process import LIBRARY, ROUND_TRIP_S, KernelProcess
from tunery.dialects.kernels.specification import Argument, KernelSpecification, decoded

_SPREAD = 2_654_435_761
_CLOSE, _CLOSE_HALF = 1e-3, 1e-2
_MANY, _FIRST, _ONE_IN = 16, 2, 4
"""Of many calls, of the first samples, and of one in so many others the answers are looked at."""


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
    """A built kernel with its arguments in guarded arrays; each call that is timed has wholly new inputs. Where the
    arrays are, and how the kernel is called, is its language's matter."""

    def __init__(self, specification: KernelSpecification, buffers: Mapping[str, Buffer]) -> None:
        self._spec, self._buffers = specification, buffers
        self._given: dict[str, Array] = {}
        self._checked, self._changed, self._samples = False, False, 0
        self._random = np.random.default_rng()

    @abstractmethod
    def call(self, calls: int = 1) -> float:
        """Call it on what the arrays hold, wait for the end, and return the seconds by the device's best clock."""

    @abstractmethod
    def call_anew(self) -> None:
        """Call it on what the arrays hold, with nothing left of earlier calls that could serve for an answer."""

    @abstractmethod
    def time_on_new(self, calls: int) -> float:
        """Return the seconds of calls, each on new numbers in all `varied` inputs."""

    @override
    def time(self, calls: int) -> float:
        if not self._checked:
            self._checked = True
            self._check_memory()
            self._restore()
        self._changed = True
        return max(self.time_on_new(calls), 1e-9)

    def _check_memory(self) -> None:
        """Check that an answer depends on the inputs alone: not on earlier calls, nor on who comes first. About half of
        each input is changed, its ends are not, and the answers of two calls, the first over the outputs of another
        input, are compared with that of one which cannot remember."""
        self.call()
        for one in self.varied:
            flat = self._given[one.name].reshape(-1)
            chosen = self._random.random(flat.size) < 0.5
            chosen[[0, -1]] = False
            self._buffers[one.name].put(np.where(chosen, np.roll(flat, 1), flat).reshape(one.shape))
        self.call()
        answers = [self.answer()]
        for call in (self.call, self.call_anew):
            self.poison()
            call()
            answers.append(self.answer())
        for answer in answers[:-1]:
            check_alike(answer, answers[-1])

    @override
    def bind(self, inputs: Sequence[Array]) -> None:
        self.give(filled(self._spec, inputs))

    def give(self, arrays: Mapping[str, Array]) -> None:
        self._given = {name: array.copy() for name, array in arrays.items()}
        self._restore()

    def _restore(self) -> None:
        self._changed = False
        for name, array in self._given.items():
            self._buffers[name].put(array)

    @override
    def poison(self) -> None:
        for one in self._spec.outputs:
            self._buffers[one.name].put(poison(one))

    @override
    def run(self) -> None:
        if self._changed:
            self._restore()
        self.call()

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
        return self.answer()

    def is_looked_at(self) -> bool:
        """Whether the answers of the next sample are looked at: of the first ones, and of one in so many others."""
        self._samples += 1
        return self._samples <= _FIRST or bool(self._random.random() * _ONE_IN < 1)

    def answer(self) -> list[Array]:
        return [self._buffers[one.name].array.copy() for one in self._spec.outputs]

    @property
    def varied(self) -> list[Argument]:
        return [one for one in self._spec.inputs if one.fill.varies]


class ProcessKernel(BuiltKernel):
    """A kernel in a process, which is timed from here. Each sample is taken in one that has never called it before."""

    least_sample_s = 20 * ROUND_TRIP_S
    _checks_last, _warm_below_s = True, 1e-3
    """A call that takes longer is not made before those that are timed, for its code and data to be at hand."""

    def __init__(
        self, specification: KernelSpecification, code: str, words: Sequence[object], threads: int, *,
        aligned: int = 64, zone: int = 0, **more: Any,
    ) -> None:  # fmt: skip
        arrays = [one for one in specification.arguments if not one.scalar]
        memory = {one.name: GuardedArray(one.name, one.shape, one.dtype, aligned=aligned, zone=zone) for one in arrays}
        super().__init__(specification, memory)
        self._sets = ArgumentSets(specification.arguments, aligned)
        guarded = [memory.get(one.name) for one in specification.arguments]
        self._process = KernelProcess(code, words, threads, guarded, self._sets, **more)
        self._end = weakref.finalize(self, self._process.close)
        self._right: dict[int, list[Array]] = {}  # by a set's number, the answers of calls that came alone
        self._call_s = math.inf  # the least that a call took

    @override
    def give(self, arrays: Mapping[str, Array]) -> None:
        super().give(arrays)
        self._right.clear()

    @override
    def call(self, calls: int = 1) -> float:
        if not self._process.is_there:
            self._process.restart()
        elapsed_s = self._process.run(calls)
        self._call_s = min(self._call_s, elapsed_s / calls)
        return elapsed_s

    @override
    def call_anew(self) -> None:
        self._process.restart()
        self.call()

    @override
    def time_on_new(self, calls: int) -> float:
        most = self._sets.count
        return sum(self._sample(min(most, calls - done)) for done in range(0, calls, most))

    def _sample(self, calls: int) -> float:
        """Time calls on as many sets of arguments; check the answers of the last, and of one that nobody knows. Those
        of a few calls, which may be large, are looked at in the first samples and in one of four."""
        self._sets.fill(calls)
        checked = set[int]()
        if self.is_looked_at() or calls >= _MANY:
            known = [number for number in self._right if number < calls - 1]
            new = len(known) < _FIRST or self._random.random() * _ONE_IN < 1
            checked = {int(self._random.integers(calls) if new else self._random.choice(known))}
            checked |= {calls - 1} if self._checks_last else set()
        self._sets.hide(calls)
        for each in checked - self._right.keys():  # as it is called where it is verified, which it cannot tell apart
            for name, numbers in self._sets.numbers(each).items():
                self._buffers[name].put(numbers)
            self.poison()
            self.call_anew()
            self._right[each] = self.answer()
            self._restore()
        self._process.restart()
        if self._call_s < self._warm_below_s:
            self._process.run()
        self._changed = True
        elapsed_s = self._process.run(calls, 0, last=True, show=lambda: self._sets.show(calls))
        for each in checked:
            check_alike([self._sets.output(one, each).copy() for one in self._spec.outputs], self._right[each])
        return elapsed_s


class CKernel(ProcessKernel):
    """A kernel in C: a shared library."""

    def __init__(self, specification: KernelSpecification, path: Path, device: Device, threads: int) -> None:
        super().__init__(specification, LIBRARY, [path], threads, clock=device.clock)


def check_alike(mine: Sequence[Array], right: Sequence[Array]) -> None:
    if not all(_alike(one, other) for one, other in zip(mine, right, strict=True)):
        raise DialectError(
            "the kernel's answer is another one where calls follow each other: it remembers one, does not write all of "
            "it, or races"
        )


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
        for one, array in zip(self._spec.outputs, self._outputs, strict=True):
            array.fill(poison(one))

    @override
    def run(self) -> None:
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
