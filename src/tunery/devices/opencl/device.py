"""A device of OpenCL: a queue with events that tell the time."""

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from typing_extensions import override

from tunery.devices.cpu.device import CpuDevice
from tunery.devices.opencl.platform import MOST_THREADS, OpenClQueue, connect, find
from tunery.domain import DeviceDescription

_LEAST_FLUSH_BYTES = 32 * 2**20


class OpenClDevice(CpuDevice):
    """The first device of OpenCL. Its clock is that of its events. PoCL computes on the cores of the slot, in host
    memory: placement, load, energy and cold constants are the CPU's."""

    kind = "opencl"

    def __init__(self, cores: Sequence[int] = (), slot: Sequence[int] = ()) -> None:
        super().__init__(cores, slot)
        self._filler: Any = None

    @classmethod
    @override
    def traits(cls, facts: Mapping[str, Any]) -> Mapping[str, float]:
        return {}

    @cached_property
    def connection(self) -> OpenClQueue:
        return connect()

    @override
    def describe(self) -> DeviceDescription:
        connect()  # takes addresses, which a worker may have no room for later
        return self.look()

    @override
    def look(self) -> DeviceDescription:
        one = find().device
        facts = {
            "platform": one.platform.name.strip(),
            "version": one.version.strip(),
            "driver": one.driver_version.strip(),
            "largest_group": one.max_work_group_size,
            "local_memory_bytes": one.local_mem_size,
            "aligned_bits": one.mem_base_addr_align,
        }
        return DeviceDescription(self.kind, one.name.strip(), self.cores, facts)

    @override
    def pin(self) -> None:
        super().pin()
        os.environ[MOST_THREADS] = str(len(self.slot))

    @override
    def clock(self) -> float:
        marker = self.connection.cl.enqueue_marker(self.connection.queue)
        marker.wait()
        return float(marker.profile.end) * 1e-9

    @override
    def flush_caches(self) -> None:
        import numpy as np

        cl, queue = self.connection.cl, self.connection.queue
        size = max(_LEAST_FLUSH_BYTES, 2 * self.connection.device.global_mem_cache_size)
        if self._filler is None:
            self._filler = cl.Buffer(self.connection.context, cl.mem_flags.READ_WRITE, size)
        cl.enqueue_fill_buffer(queue, self._filler, np.uint8(1), 0, size).wait()
