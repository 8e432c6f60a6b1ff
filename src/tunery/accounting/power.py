"""How much energy work takes: measured by the machine's counters where there are any, else modelled."""

import time
from collections.abc import Callable

import psutil

from tunery.devices import EnergyMeter
from tunery.devices.cpu.load import MODELLED_W_PER_CORE, open_meter

_WINDOW_S, _LONGEST_S = 1.0, 60.0


class Power:
    """Joules per core-second of this machine, for sharing out its energy among stages. The counters know whole
    processor packages. What they counted over a window of at least a second is divided by the core-seconds that all
    programs were busy in it, ours and others': a busy core bears its share of the idle ones. One of over a minute tells
    nothing, for the counters may have wrapped more than once. Where the meter loses its counters the model goes on, and
    what it says is marked as such."""

    def __init__(
        self,
        meter: EnergyMeter | None = None,
        busy_core_s: Callable[[], float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._meter = meter or open_meter()
        self._busy_core_s = busy_core_s or machine_busy_core_s
        self._clock = clock
        self.modelled = self._meter.modelled
        self._watts = MODELLED_W_PER_CORE
        self._last = (clock(), 0.0, 0.0) if self.modelled else self._look()

    @property
    def name(self) -> str:
        return self._meter.name

    def joules(self, core_s: float) -> float:
        if not self.modelled and self._clock() - self._last[0] >= _WINDOW_S:
            before, self._last = self._last, self._look()
            busy_s, counted_j = self._last[1] - before[1], self._last[2] - before[2]
            if self._meter.modelled:
                self.modelled, self._watts = True, MODELLED_W_PER_CORE
            elif busy_s > 0 and counted_j >= 0 and self._last[0] - before[0] <= _LONGEST_S:
                self._watts = counted_j / busy_s
        return core_s * self._watts

    def _look(self) -> tuple[float, float, float]:
        return self._clock(), self._busy_core_s(), self._meter.read_j()


def modelled_w(cores: int) -> float:
    return MODELLED_W_PER_CORE * cores


def machine_busy_core_s() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq)
