"""Energy meters behind one contract: cumulative joules, and whether they were measured or modelled."""

import time
from abc import ABC, abstractmethod
from pathlib import Path

_POWERCAP = Path("/sys/class/powercap")
MODELLED_W_PER_CORE = 8.0
"""A server core under vector load: package power over cores of current x86 servers lies between 3 and 12 W."""


class Meter(ABC):
    """Counts joules from any start; differences between two readings are what matters."""

    modelled: bool
    name: str

    @abstractmethod
    def read_j(self) -> float:
        """Return the joules so far."""


class RaplMeter(Meter):
    """All CPU packages of the machine by the kernel's powercap counters, other processes' share included.

    Read it at least once a minute under load: the counters wrap, and only one wrap between two readings can be seen.

    Raises:
        OSError: the machine offers no readable package counter.
    """

    modelled = False
    name = "rapl"

    def __init__(self, root: Path = _POWERCAP) -> None:
        packages = [zone for zone in sorted(root.glob("intel-rapl:*")) if zone.name.count(":") == 1]
        self._zones = {zone: int((zone / "max_energy_range_uj").read_text()) for zone in packages}
        if not self._zones:
            raise FileNotFoundError(f"no CPU package counter under {root}")
        self._last = {zone: self._raw(zone) for zone in self._zones}
        self._total_uj = 0

    def read_j(self) -> float:
        """Read the counters, wraps undone."""
        for zone, span in self._zones.items():
            now = self._raw(zone)
            self._total_uj += (now - self._last[zone]) % (span + 1)
            self._last[zone] = now
        return self._total_uj / 1e6

    @staticmethod
    def _raw(zone: Path) -> int:
        return int((zone / "energy_uj").read_text())


class ModelledMeter(Meter):
    """This process's CPU seconds times a core's rated power: an estimate, always marked as such."""

    modelled = True
    name = "modelled"

    def __init__(self, watts_per_core: float = MODELLED_W_PER_CORE) -> None:
        self._watts = watts_per_core

    def read_j(self) -> float:
        """Return the process's CPU time in joules."""
        return time.process_time() * self._watts


def open_meter(root: Path = _POWERCAP) -> Meter:
    """Return the best meter this machine offers to this user."""
    try:
        return RaplMeter(root)
    except (OSError, ValueError):
        return ModelledMeter()
