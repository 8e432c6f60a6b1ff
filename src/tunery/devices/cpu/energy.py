"""What a CPU uses: its own counters where it has any that can be read, else a model."""

import time
from collections.abc import Callable
from pathlib import Path

from tunery.devices._base import EnergyMeter

_POWERCAP = Path("/sys/class/powercap")
MODELLED_W_PER_CORE = 8.0
"""A server core under vector load: package power over cores of current x86 servers lies between 3 and 12 W."""


class ModelledMeter(EnergyMeter):
    """Busy seconds times rated power: an estimate, always marked as such. By default this process's on a core."""

    modelled = True
    name = "modelled"

    def __init__(self, watts: float = MODELLED_W_PER_CORE, busy_s: Callable[[], float] = time.process_time) -> None:
        self._watts, self._busy_s = watts, busy_s

    def read_j(self) -> float:
        return self._busy_s() * self._watts


class RaplMeter(EnergyMeter):
    """All CPU packages of the machine by the kernel's powercap counters, other processes' share included. Read it
    at least once a minute under load: the counters wrap, and only one wrap can be seen. A zone called psys is left
    out: it holds the packages, and all else on the board. If the counters are lost, it goes on with a model and is
    `modelled`."""

    modelled = False
    name = "rapl"

    def __init__(self, root: Path = _POWERCAP) -> None:
        packages = [zone for zone in sorted(root.glob("intel-rapl:*")) if zone.name.count(":") == 1 and _package(zone)]
        self._zones = {zone: int((zone / "max_energy_range_uj").read_text()) for zone in packages}
        if not self._zones:
            raise FileNotFoundError(f"no CPU package counter under {root}")
        self._last = self._raw()
        self._total_uj = 0
        self._model = ModelledMeter()
        self._lost_j = 0.0

    def read_j(self) -> float:
        if not self.modelled:
            try:
                self._count()
            except (OSError, ValueError):
                self.modelled, self._lost_j = True, self._model.read_j()
        return self._total_uj / 1e6 + (self._model.read_j() - self._lost_j if self.modelled else 0.0)

    def _count(self) -> None:
        now = self._raw()
        self._total_uj += sum((now[zone] - self._last[zone]) % (span + 1) for zone, span in self._zones.items())
        self._last = now

    def _raw(self) -> dict[Path, int]:
        return {zone: int((zone / "energy_uj").read_text()) for zone in self._zones}


def open_meter(root: Path = _POWERCAP) -> EnergyMeter:
    try:
        return RaplMeter(root)
    except (OSError, ValueError):
        return ModelledMeter()


def _package(zone: Path) -> bool:
    try:
        return not (zone / "name").read_text().startswith("psys")
    except OSError:
        return True
