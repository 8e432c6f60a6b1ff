"""The CPU of the machine that this process runs on."""

import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from typing_extensions import override

from tunery.devices._base import Device, EnergyMeter, Fill
from tunery.devices.cpu import placement
from tunery.devices.cpu.clocks import read_clocks
from tunery.devices.cpu.constant_buffers import CpuConstantBuffers
from tunery.devices.cpu.energy import open_meter
from tunery.devices.cpu.facts import cache_bytes, cpu_traits, describe_cpu
from tunery.devices.cpu.foreign import CpuForeignLoad
from tunery.devices.cpu.load import LoadWatch
from tunery.domain import DeviceDescription

_LEAST_FLUSH_BYTES = 32 * 2**20


class CpuDevice(Device):
    """Some cores of this machine. Kernels run in this process, on the cores of its slot."""

    kind = "cpu"

    def __init__(self, cores: Sequence[int] = (), slot: Sequence[int] = ()) -> None:
        super().__init__(tuple(cores) or placement.usable_cores(), slot)
        self._placed = placement.inspect_placement(self.slot)

    @classmethod
    @override
    def slots(cls, cores: Sequence[int], threads: int) -> list[tuple[int, ...]]:
        return placement.slots(cores, threads)

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
        self.slot = placement.pin(self.slot)

    @override
    def hold(self) -> bool:
        self._placed = placement.inspect_placement(self.slot)
        if not self._placed.held:
            placement.bring_back(self.slot)
        return self._placed.held

    @override
    def conditions(self) -> Mapping[str, Any]:
        placed = {"cores": list(self.slot), "process_threads": self._placed.threads, "nice": self._placed.nice}
        return {**placed, **self._memory, **read_clocks(self.slot)}

    @cached_property
    def _memory(self) -> Mapping[str, Any]:
        return placement.memory_facts(self.slot)

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
