"""The way to CUDA: its driver, the first GPU, and a context and a stream of it."""

import os
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from typing_extensions import override

from tunery._errors import DeviceLostError, DialectError
from tunery._extras import pip_install
from tunery._processor import room_for_addresses
from tunery.devices._base import EnergyMeter, Load, Watch

NO_DRIVER = "there is no CUDA driver: install that of the GPU, which `nvidia-smi` shows"
_NO_GPU = "there is no GPU for CUDA: `nvidia-smi` lists those that the driver sees, CUDA_VISIBLE_DEVICES may hide them"
_LEAST_DRIVER = 12040
_LOST = frozenset({214, 700, 702, 710, 714, 715, 716, 717, 718, 719})
"""The driver's errors after which a process gets no other answer: memory faults, traps, a kernel that was ended."""


def no_library() -> str:
    return f"the Python package cuda-bindings is not installed: {pip_install('cuda')}"


def done(answer: tuple[Any, ...]) -> Any:
    status, *values = answer
    code = int(status)
    if code in _LOST:
        raise DeviceLostError(f"the kernel broke the GPU's context: {status.name}")
    if code:
        raise DialectError(f"CUDA answers {status.name}")
    return values[0] if values else None


@dataclass(frozen=True)
class Gpu:
    """The first GPU: the module `cu` of the driver's calls, its ordinal, and what it is. None of it is in use yet."""

    cu: Any
    ordinal: Any
    name: str
    arch: str
    driver: str

    def attribute(self, name: str) -> int:
        which = getattr(self.cu.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(done(self.cu.cuDeviceGetAttribute(which, self.ordinal)))


@cache
def find() -> Gpu:
    os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")  # or a kernel's first run would be its loading
    try:
        from cuda.bindings import driver as cu
    except ImportError as error:
        raise DialectError(no_library()) from error
    try:
        with room_for_addresses():
            (status,) = cu.cuInit(0)
    except RuntimeError as error:  # the package finds no driver to load
        raise DialectError(NO_DRIVER) from error
    if int(status):
        raise DialectError(f"{_NO_GPU} ({status.name})")
    version = int(done(cu.cuDriverGetVersion()))
    if version < _LEAST_DRIVER:
        raise DialectError(
            f"the CUDA driver is for CUDA {_version(version)}; install one for {_version(_LEAST_DRIVER)}"
        )
    if not int(done(cu.cuDeviceGetCount())):
        raise DialectError(_NO_GPU)
    ordinal = done(cu.cuDeviceGet(0))
    name = done(cu.cuDeviceGetName(128, ordinal)).split(b"\0")[0].decode(errors="replace").strip()
    found = Gpu(cu, ordinal, name, "", _version(version))
    major, minor = (found.attribute(f"COMPUTE_CAPABILITY_{part}") for part in ("MAJOR", "MINOR"))
    return Gpu(cu, ordinal, name, f"sm_{major}{minor}", found.driver)


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


@dataclass(frozen=True)
class CudaStream:
    """The first GPU in this process, with a context and a stream of our own."""

    gpu: Gpu
    context: Any
    stream: Any

    def use(self) -> Any:
        done(self.gpu.cu.cuCtxSetCurrent(self.context))
        return self.gpu.cu

    def let_go_with(self, owner: object, *calls: tuple[Any, ...]) -> None:
        weakref.finalize(owner, _let_go, self, calls).atexit = False

    def wait(self) -> None:
        done(self.gpu.cu.cuStreamSynchronize(self.stream))


def _let_go(to: CudaStream, calls: tuple[tuple[Any, ...], ...]) -> None:
    try:
        cu = to.use()
        for name, *arguments in calls:
            done(getattr(cu, name)(*arguments))
    except (DialectError, DeviceLostError):
        return  # then all of it goes with the process


@cache
def connect() -> CudaStream:
    gpu = find()
    cu = gpu.cu
    with room_for_addresses():
        context = done(cu.cuDevicePrimaryCtxRetain(gpu.ordinal))
    done(cu.cuCtxSetCurrent(context))
    return CudaStream(gpu, context, done(cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING)))


RATED_W = 350.0
"""Where the GPU does not count its energy: a current one for data centres at work takes 250 to 700 W."""
# Of the reasons that the library tells for a clock below the highest: power brake, heat and hardware's slowdowns.
_SLOWED = 0x08 | 0x20 | 0x40 | 0x80


class Management:
    """The library's view of one GPU, by its address on the bus; without the library it knows nothing."""

    def __init__(self, bus_id: str) -> None:
        self._library: Any = None
        try:
            import pynvml

            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByPciBusId(bus_id)
            self._library = pynvml
        except (ImportError, OSError, ValueError) as error:
            self.trouble = str(error)
        except Exception as error:  # noqa: BLE001 - the library's errors have no class of their own without it
            self.trouble = str(error)

    def ask(self, function: str, *arguments: int) -> Any:
        if self._library is None:
            return None
        try:
            return getattr(self._library, function)(self._handle, *arguments)
        except (self._library.NVMLError, AttributeError):
            return None

    def conditions(self) -> Mapping[str, Any]:
        told = {
            "sm_mhz": self.ask("nvmlDeviceGetClockInfo", 1),
            "memory_mhz": self.ask("nvmlDeviceGetClockInfo", 2),
            "temperature_c": self.ask("nvmlDeviceGetTemperature", 0),
            "power_mw": self.ask("nvmlDeviceGetPowerUsage"),
        }
        return {name: int(value) for name, value in told.items() if value is not None}

    def processes(self) -> int | None:
        found = self.ask("nvmlDeviceGetComputeRunningProcesses")
        return None if found is None else len(found)

    def slowed(self) -> bool | None:
        reasons = self.ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        return None if reasons is None else bool(int(reasons) & _SLOWED)


@dataclass(frozen=True, slots=True)
class GpuMark:
    """One look: the time, and for a full one whether the GPU was slowed down, and how many processes used it."""

    wall_s: float
    slowed: bool | None = None
    processes: int | None = None


class GpuWatch(Watch[GpuMark]):
    """Asks the library at full looks only: one takes some 10 to 100 µs."""

    least_s = 0.25

    def __init__(self, management: Management) -> None:
        self._management = management

    @override
    def mark(self, full: bool = False) -> GpuMark:
        if not full:
            return GpuMark(time.monotonic())
        return GpuMark(time.monotonic(), self._management.slowed(), self._management.processes())

    @override
    def since(self, mark: GpuMark) -> Load:
        wall_s = time.monotonic() - mark.wall_s
        if mark.slowed is None and mark.processes is None:
            return Load(wall_s)
        now = self.mark(full=True)
        slowed = bool(mark.slowed or now.slowed)
        others = max(mark.processes or 0, now.processes or 0) > 1
        flags = (*(("throttled",) if slowed else ()), *(("other-processes",) if others else ()))
        return Load(time.monotonic() - mark.wall_s, throttles=int(slowed), contaminated=flags)


class GpuMeter(EnergyMeter):
    """The GPU's own counter of millijoules; where it has none, time at its rated power."""

    def __init__(self, management: Management) -> None:
        self._management = management
        self.modelled = management.ask("nvmlDeviceGetTotalEnergyConsumption") is None
        self.name = "modelled" if self.modelled else "nvml"
        self._last_j = 0.0

    @override
    def read_j(self) -> float:
        counted = None if self.modelled else self._management.ask("nvmlDeviceGetTotalEnergyConsumption")
        if counted is not None:
            self._last_j = max(self._last_j, int(counted) / 1e3)
        elif self.modelled:
            self._last_j = time.process_time() * RATED_W
        return self._last_j
