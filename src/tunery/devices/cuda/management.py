"""What NVIDIA's management library tells of a GPU: clocks, heat, what slows it down, and its energy."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from tunery.devices._base import EnergyMeter, Load, Watch

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
