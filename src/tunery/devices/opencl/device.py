"""A device of OpenCL, whose kernels run in processes of their own."""

import os
from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from tunery.devices.cpu.device import CpuDevice
from tunery.devices.opencl.platform import MOST_THREADS, find
from tunery.domain import DeviceDescription


class OpenClDevice(CpuDevice):
    """The first device of OpenCL. Its kernels are timed from outside of their processes, by the host's clock.

    PoCL computes on the cores of the slot, in host memory: placement, load, energy and cold constants are the CPU's.
    """

    kind = "opencl"

    @classmethod
    @override
    def traits(cls, facts: Mapping[str, Any]) -> Mapping[str, float]:
        return {}

    @override
    def describe(self) -> DeviceDescription:
        return self.look()

    @override
    def look(self) -> DeviceDescription:
        one = find().device
        facts = {
            "platform": one.platform.name.strip(), "version": one.version.strip(), "driver": one.driver_version.strip(),
            "largest_group": one.max_work_group_size, "local_memory_bytes": one.local_mem_size,
            "aligned_bits": one.mem_base_addr_align,
        }  # fmt: skip
        return DeviceDescription(self.kind, one.name.strip(), self.cores, facts)

    @override
    def pin(self) -> None:
        super().pin()
        os.environ[MOST_THREADS] = str(len(self.slot))
