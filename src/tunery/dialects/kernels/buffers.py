"""Arrays between pages that nobody may touch, so that a kernel which leaves its arguments is caught."""

import ctypes
import fcntl
import math
import mmap
import os
import weakref
from collections.abc import Sequence

import numpy as np

from tunery._errors import DialectError
from tunery.dialects import Array
from tunery.dialects.kernels.specification import Argument

_ALIGNED = 64
_GUARD = 16 << 20  # bytes on each side, which take addresses and no memory
_KNOWN = 0xA5
_SETS_BYTES, _MOST_SETS = 16 << 20, 1 << 13
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class GuardedArray:
    """An array whose end lies at pages that cannot be read or written, and that begins after other such pages. What is
    between the array and these pages holds known bytes: fewer than `aligned` behind it, fewer than a page before it,
    and `zone` bytes more on each side. All of that is `inside`, where the array begins at `offset`. `shared` is what
    another process needs to have the same memory: a file, how many bytes lie there between how many others, and where
    the array begins in them."""

    def __init__(self, name: str, shape: Sequence[int], dtype: str, *, aligned: int = _ALIGNED, zone: int = 0) -> None:
        kind = np.dtype(dtype)
        size = math.prod(shape) * kind.itemsize
        zone = -(-zone // aligned) * aligned
        back = -(-size // aligned) * aligned + zone
        inner = -(-(back + zone) // mmap.PAGESIZE) * mmap.PAGESIZE
        file = os.memfd_create(name, os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, file)
        os.truncate(file, inner + 2 * _GUARD)
        seal(file)
        self._memory = mmap.mmap(file, 0)
        whole = np.frombuffer(self._memory, np.uint8)
        for pages in (whole[:_GUARD], whole[-_GUARD:]):
            if _libc.mprotect(pages.ctypes.data, _GUARD, 0):
                raise DialectError("this system does not let memory be protected")
        start = _GUARD + inner - back
        self.inside, self.offset = whole[_GUARD:-_GUARD], inner - back
        self.shared = (file, inner, _GUARD, self.offset)
        self._name = name
        self._before, self._behind = whole[_GUARD:start], whole[start + size : -_GUARD]
        self._before[:], self._behind[:] = _KNOWN, _KNOWN
        self._array = whole[start : start + size].view(kind).reshape(shape)
        self.address = self._array.ctypes.data

    @property
    def array(self) -> Array:
        return self._array

    def put(self, values: Array | float) -> None:
        self._array[...] = values

    def check(self) -> None:
        if (self._before != _KNOWN).any() or (self._behind != _KNOWN).any():
            raise DialectError(f"the kernel has written outside of its argument {self._name}")


def seal(file: int) -> None:
    """Keep a file in memory at its size, whoever has it open: who maps less than was promised is ended by a signal."""
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)


class ArgumentSets:
    """Many sets of a kernel's arguments in one file in memory, one after the other, for calls that follow each other.
    Each set has numbers of its own in the varied inputs, and outputs of its own. The numbers are kept apart until they
    are shown, so that nobody computes with them before. `shared` is what another process needs to have the same
    memory."""

    def __init__(self, arguments: Sequence[Argument], aligned: int = _ALIGNED) -> None:
        places: list[int | str] = []
        size, self._parts = 0, dict[str, tuple[int, Argument]]()
        for one in arguments:
            if one.scalar or not (one.output or one.fill.varies):
                places.append("")
                continue
            self._parts[one.name] = (size, one)
            places.append(size)
            size += -(-math.prod(one.shape) * np.dtype(one.dtype).itemsize // aligned) * aligned
        self._size = max(size, aligned)
        self.count = min(max(_SETS_BYTES // self._size, 1), _MOST_SETS)
        self._filled = 0
        self._random = np.random.default_rng()
        file = os.memfd_create("sets", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, file)
        os.truncate(file, self._size * self.count)
        seal(file)
        self._memory = mmap.mmap(file, 0)
        self._numbers = mmap.mmap(-1, self._size * self.count)
        self.shared = (file, self._size, self._size * self.count, *places)

    def fill(self, count: int) -> None:
        for one in self._inputs:
            for row in self._rows(one, self._numbers)[self._filled : count]:
                row[...] = drawn(self._random, one)
        self._filled = max(self._filled, count)

    def show(self, count: int) -> None:
        for one in self._inputs:
            self._rows(one)[:count] = self._rows(one, self._numbers)[:count]

    def hide(self, count: int) -> None:
        """Take back the numbers of the first sets, and poison their outputs."""
        for _, one in self._parts.values():
            self._rows(one)[:count] = poison(one) if one.output else 0

    def numbers(self, number: int) -> dict[str, Array]:
        return {one.name: self._rows(one, self._numbers)[number].reshape(one.shape) for one in self._inputs}

    def output(self, one: Argument, number: int) -> Array:
        return np.asarray(self._rows(one)[number].reshape(one.shape))

    @property
    def _inputs(self) -> list[Argument]:
        return [one for _, one in self._parts.values() if not one.output]

    def _rows(self, one: Argument, memory: mmap.mmap | None = None) -> Array:
        kind = np.dtype(one.dtype)
        shape, steps = (self.count, math.prod(one.shape)), (self._size, kind.itemsize)
        return np.ndarray(shape, kind, memory or self._memory, self._parts[one.name][0], steps)


def poison(one: Argument) -> float:
    kind = np.dtype(one.dtype)
    return np.nan if kind.kind == "f" else int(np.iinfo(kind).min)


def drawn(random: np.random.Generator, one: Argument) -> Array:
    """Return new numbers for a varied input, in its range: what was met of them before does not help."""
    size, kind, low, high = math.prod(one.shape), np.dtype(one.dtype), one.fill.low, one.fill.high
    if kind.kind != "f":
        return random.integers(int(low), int(high), size, kind, endpoint=True)
    values = random.random(size, np.float64 if kind.itemsize > 4 else np.float32)
    values *= high - low
    values += low
    return np.asarray(values.astype(kind, copy=False))
