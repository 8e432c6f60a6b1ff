"""Weights that come from memory, as in a network whose weights exceed the caches."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from tunery.devices._base import ConstantBuffers, Fill

ALIGNMENT = 64
_LEAST_CACHE_BYTES = 16 * 2**20
_RANDOM = 2**20


class CpuConstantBuffers(ConstantBuffers):
    """A large array of random numbers for each dtype; `take` goes through it in a circle. Until a place comes again,
    twice the bytes that the largest cache holds were given out: it is in no cache any more. All kernels of a measurer
    share it, for copies of each one's weights would cost 10 to 20 ms a candidate."""

    def __init__(self, cache_bytes: int, fill: Fill) -> None:
        self._between = 2 * max(_LEAST_CACHE_BYTES, cache_bytes)
        self._fill = fill
        self._held: dict[str, npt.NDArray[np.generic]] = {}
        self._next: dict[str, int] = {}

    @override
    def take(self, shape: Sequence[int], dtype: str) -> npt.NDArray[np.generic]:
        count = math.prod(shape)
        held = self._held.get(dtype)
        if held is None or held.nbytes < self._between + 2 * count * held.itemsize:
            held = self._held[dtype] = self._numbers(count, dtype)
        start = self._next.get(dtype, 0)
        if start + count > held.size:
            start = 0
        step = ALIGNMENT // held.itemsize
        self._next[dtype] = start + -(-count // step) * step
        return held[start : start + count].reshape(shape)

    def _numbers(self, count: int, dtype: str) -> npt.NDArray[np.generic]:
        some = self._fill(_RANDOM, dtype)
        bytes_needed = self._between + 2 * count * some.itemsize + 2 * ALIGNMENT
        numbers = np.resize(some, bytes_needed // some.itemsize)  # random ones for all of it take a second
        return numbers[-numbers.ctypes.data % ALIGNMENT // numbers.itemsize :]
