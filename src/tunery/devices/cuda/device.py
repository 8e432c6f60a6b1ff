"""A GPU of CUDA: a stream whose events tell the time."""

import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from typing_extensions import override

from tunery._errors import DialectError
from tunery.devices._base import EnergyMeter
from tunery.devices.cpu.device import CpuDevice
from tunery.devices.cuda.driver import CudaStream, GpuMeter, GpuWatch, Management, connect, done, find
from tunery.domain import DeviceDescription

NO_GPU = "no GPU"
_LEAST_FLUSH_BYTES = 32 * 2**20
_FLUSHED = 0x5A


class CudaDevice(CpuDevice):
    """The first GPU of CUDA; the cores of the slot launch its kernels. Where there is none, it describes itself as
    such: kernels are compiled for it then, and none is loaded."""

    kind = "cuda"
    uses_host_cores = False

    def __init__(self, cores: Sequence[int] = (), slot: Sequence[int] = ()) -> None:
        super().__init__(cores, slot)
        self._flushing: tuple[Any, int] | None = None

    @classmethod
    @override
    def slots(cls, cores: Sequence[int], threads: int) -> list[tuple[int, ...]]:
        """Return one: measurements on one GPU would share it."""
        return super().slots(cores, threads)[:1]

    @classmethod
    @override
    def traits(cls, facts: Mapping[str, Any]) -> Mapping[str, float]:
        return {}

    @property
    def connection(self) -> CudaStream:
        return connect()

    @cached_property
    def _management(self) -> Management:
        gpu = self.connection.gpu
        bus_id: bytes = done(gpu.cu.cuDeviceGetPCIBusId(32, gpu.ordinal))
        return Management(bus_id.split(b"\0")[0].decode())

    @override
    def describe(self) -> DeviceDescription:
        if self._present:
            connect()  # takes addresses, which a worker may have no room for later
        return self.look()

    @override
    def look(self) -> DeviceDescription:
        try:
            gpu = find()
        except DialectError as error:
            return DeviceDescription(self.kind, NO_GPU, self.cores, {"reason": str(error)})
        facts = {
            "compute_capability": gpu.arch.removeprefix("sm_"),
            "driver": gpu.driver,
            "multiprocessors": gpu.attribute("MULTIPROCESSOR_COUNT"),
            "clock_khz": gpu.attribute("CLOCK_RATE"),
            "memory_clock_khz": gpu.attribute("MEMORY_CLOCK_RATE"),
            "memory_bus_bits": gpu.attribute("GLOBAL_MEMORY_BUS_WIDTH"),
            "memory_gib": round(int(done(gpu.cu.cuDeviceTotalMem(gpu.ordinal))) / 2**30),
            "l2_bytes": gpu.attribute("L2_CACHE_SIZE"),
            "largest_group": gpu.attribute("MAX_THREADS_PER_BLOCK"),
            "shared_memory_bytes": gpu.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
            "ecc": bool(gpu.attribute("ECC_ENABLED")),
        }
        return DeviceDescription(self.kind, gpu.name, self.cores, facts)

    @override
    def conditions(self) -> Mapping[str, Any]:
        return {**super().conditions(), **(self._management.conditions() if self._present else {})}

    @cached_property
    def _present(self) -> bool:
        try:
            find()
        except DialectError:
            return False
        return True

    @override
    def clock(self) -> float:
        """Return the host's time once all that was asked of the GPU is done; its events time the kernels."""
        if self._present:
            self.connection.use()
            self.connection.wait()
        return time.perf_counter()

    @override
    def flush_caches(self) -> None:
        self.enqueue_flush()
        self.connection.wait()

    def enqueue_flush(self) -> None:
        """Have the stream write more than the GPU's second cache holds, before what it is asked next."""
        to = self.connection
        cu = to.use()
        if self._flushing is None:
            size = max(_LEAST_FLUSH_BYTES, 2 * to.gpu.attribute("L2_CACHE_SIZE"))
            self._flushing = done(cu.cuMemAlloc(size)), size
        done(cu.cuMemsetD8Async(self._flushing[0], _FLUSHED, self._flushing[1], to.stream))

    @override
    def watch(self) -> Any:
        return GpuWatch(self._management) if self._present else super().watch()

    @override
    def meter(self) -> EnergyMeter:
        return GpuMeter(self._management) if self._present else super().meter()
