"""Energy meters behind one contract: cumulative joules, and whether they were measured or modelled."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

_POWERCAP = Path("/sys/class/powercap")
MODELLED_W_PER_CORE = 8.0
"""A server core under vector load: package power over cores of current x86 servers lies between 3 and 12 W."""
MODELLED_W_PER_GPU = 300.0
"""A data-centre GPU at work: their rated powers lie between 70 and 700 W."""


class EnergyMeter(ABC):
    """Counts joules from any start; differences between two readings are what matters."""

    modelled: bool
    name: str

    @abstractmethod
    def read_j(self) -> float:
        """Return the joules so far; this never fails."""


class ModelledMeter(EnergyMeter):
    """Busy seconds times rated power: an estimate, always marked as such. By default this process's on a core."""

    modelled = True
    name = "modelled"

    def __init__(self, watts: float = MODELLED_W_PER_CORE, busy_s: Callable[[], float] = time.process_time) -> None:
        self._watts, self._busy_s = watts, busy_s

    def read_j(self) -> float:
        """Return the busy time in joules."""
        return self._busy_s() * self._watts


class CountingMeter(EnergyMeter):
    """One that reads a counter; if that is lost, it goes on with a model and is `modelled` from then on."""

    modelled = False

    def __init__(self, model: ModelledMeter) -> None:
        self._model = model
        self._counted_j = self._lost_j = 0.0

    def read_j(self) -> float:
        """Read the counter while there is one."""
        if not self.modelled:
            try:
                self._counted_j = self._count_j()
            except (OSError, ValueError):
                self.modelled, self._lost_j = True, self._model.read_j()
        return self._counted_j + (self._model.read_j() - self._lost_j if self.modelled else 0.0)

    @abstractmethod
    def _count_j(self) -> float:
        """Return the joules so far.

        Raises:
            OSError, ValueError: the counter cannot be read any more.
        """


class RaplMeter(CountingMeter):
    """All CPU packages of the machine by the kernel's powercap counters, other processes' share included.

    Read it at least once a minute under load: the counters wrap, and only one wrap between two readings can be seen.
    A zone called psys is left out: it holds the packages, and all else on the board.

    Raises:
        OSError, ValueError: the machine offers no readable package counter.
    """

    name = "rapl"

    def __init__(self, root: Path = _POWERCAP) -> None:
        super().__init__(ModelledMeter())
        packages = [zone for zone in sorted(root.glob("intel-rapl:*")) if zone.name.count(":") == 1 and _package(zone)]
        self._zones = {zone: int((zone / "max_energy_range_uj").read_text()) for zone in packages}
        if not self._zones:
            raise FileNotFoundError(f"no CPU package counter under {root}")
        self._last = self._raw()
        self._total_uj = 0

    def _count_j(self) -> float:
        now = self._raw()
        self._total_uj += sum((now[zone] - self._last[zone]) % (span + 1) for zone, span in self._zones.items())
        self._last = now
        return self._total_uj / 1e6

    def _raw(self) -> dict[Path, int]:
        return {zone: int((zone / "energy_uj").read_text()) for zone in self._zones}


class NvmlMeter(CountingMeter):
    """One NVIDIA GPU by its driver's counter, of Volta and later ones, other processes' share included.

    `nvml` is the module pynvml of the package nvidia-ml-py.

    Raises:
        OSError: there is no such GPU, or it does not count.
    """

    name = "nvml"

    def __init__(self, nvml: ModuleType, index: int = 0) -> None:
        super().__init__(ModelledMeter(MODELLED_W_PER_GPU, time.monotonic))
        self._nvml, self._index = nvml, index
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            raise OSError(f"no NVIDIA driver answers: {error}") from error
        self._count_j()

    def _count_j(self) -> float:
        try:
            gpu = self._nvml.nvmlDeviceGetHandleByIndex(self._index)
            return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(gpu)) / 1e3
        except self._nvml.NVMLError as error:
            raise OSError(f"GPU {self._index} has no energy counter: {error}") from error


def open_meter(root: Path = _POWERCAP, gpu: int | None = None) -> EnergyMeter:
    """Return the best meter this machine offers to this user: of its processors, or of the GPU with index `gpu`.

    A GPU's counter needs the package nvidia-ml-py (the extra `nvidia`). A modelled GPU is taken for always busy, as one
    that measures is.
    """
    try:
        if gpu is None:
            return RaplMeter(root)
        import pynvml

        return NvmlMeter(pynvml, gpu)
    except (ImportError, OSError, ValueError):
        return ModelledMeter() if gpu is None else ModelledMeter(MODELLED_W_PER_GPU, time.monotonic)


def _package(zone: Path) -> bool:
    try:
        return not (zone / "name").read_text().startswith("psys")
    except OSError:
        return True
