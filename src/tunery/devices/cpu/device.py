"""The CPU of the machine that this process runs on."""

import math
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from tunery.devices._base import ConstantBuffers, Device, EnergyMeter, Fill
from tunery.devices.cpu import facts as cpu_facts
from tunery.devices.cpu.facts import cache_bytes, cpu_traits, describe_cpu
from tunery.devices.cpu.load import CpuForeignLoad, LoadWatch, open_meter, read_clocks
from tunery.domain import DeviceDescription

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


_LEAST_FLUSH_BYTES = 32 * 2**20


class CpuDevice(Device):
    """Some cores of this machine. Kernels run in this process, on the cores of its slot."""

    kind = "cpu"

    def __init__(self, cores: Sequence[int] = (), slot: Sequence[int] = ()) -> None:
        super().__init__(tuple(cores) or cpu_facts.usable_cores(), slot)
        self._placed = cpu_facts.inspect_placement(self.slot)

    @classmethod
    @override
    def slots(cls, cores: Sequence[int], threads: int) -> list[tuple[int, ...]]:
        return cpu_facts.slots(cores, threads)

    @classmethod
    @override
    def foreign_load(cls, cores: Sequence[int]) -> CpuForeignLoad:
        return CpuForeignLoad(cores)

    @classmethod
    @override
    def traits(cls, facts: Mapping[str, Any]) -> Mapping[str, float]:
        return cpu_traits(facts)

    @override
    def describe(self) -> DeviceDescription:
        return describe_cpu(self.cores)

    @override
    def pin(self) -> None:
        self.slot = cpu_facts.pin(self.slot)

    @override
    def hold(self) -> bool:
        self._placed = cpu_facts.inspect_placement(self.slot)
        if not self._placed.held:
            cpu_facts.bring_back(self.slot)
        return self._placed.held

    @override
    def conditions(self) -> Mapping[str, Any]:
        placed = {"cores": list(self.slot), "process_threads": self._placed.threads, "nice": self._placed.nice}
        return {**placed, **self._memory, **read_clocks(self.slot)}

    @cached_property
    def _memory(self) -> Mapping[str, Any]:
        return cpu_facts.memory_facts(self.slot)

    clock = staticmethod(time.perf_counter)  # without a call in between: kernels are timed by it

    @override
    def flush_caches(self) -> None:
        self._filler += 1

    @cached_property
    def _filler(self) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
        return np.zeros(max(_LEAST_FLUSH_BYTES, 2 * cache_bytes()) // 8, np.int64)

    @override
    def constant_buffers(self, fill: Fill) -> CpuConstantBuffers:
        return CpuConstantBuffers(cache_bytes(), fill)

    @override
    def watch(self) -> LoadWatch:
        return LoadWatch(self.slot)

    @override
    def meter(self) -> EnergyMeter:
        return open_meter()
