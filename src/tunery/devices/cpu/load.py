"""What else the machine does while we measure, whether a sample can be trusted, and what energy it takes."""

import os
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from typing_extensions import override

from tunery.devices._base import EnergyMeter, ForeignLoad, Load, Watch

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_IDLE_FIELDS = (3, 4)  # idle, iowait
_STEAL_FIELD = 7
THROTTLE_COUNTERS = ("core_throttle_count", "package_throttle_count")
_GUEST_FIELD = 8  # guest time is counted in user time already


@dataclass(frozen=True, slots=True)
class Mark:
    """One look at the counters; None where the machine does not offer one. `cores_*` count the watched cores only."""

    wall_s: float
    own_cpu_s: float = 0.0
    switches: int = 0
    waited_s: float | None = None
    cores_busy_s: float | None = None
    cores_steal_s: float | None = None
    machine_busy_s: float | None = None
    pressure_s: float | None = None
    tree_cpu_s: float | None = None
    full: bool = False
    throttles: int | None = None


@dataclass(frozen=True, slots=True)
class CpuLoad(Load):
    """What happened between two marks; shares are of the wall time of one core. `waited` is how long our threads were
    ready but not running, `foreign` the use of the watched cores by others, `switches` how often we were interrupted,
    `machine_foreign` the cores used on the whole machine by processes outside our tree, `pressure` the kernel's own
    figure for anybody's tasks waiting for a CPU."""

    switches: int = 0
    steal: float | None = None
    machine_foreign: float | None = None
    pressure: float | None = None


# From where on a sample counts as contaminated. The kernel counts busy and stolen time in ticks of 10 ms, so those
# shares say nothing of less than `_LEAST_WALL_S`. Switches count where the time waited is not known.
_WAITED, _FOREIGN, _STEAL, _LEAST_WALL_S = 0.02, 0.15, 0.05, 0.1
_SWITCHES_PER_S = 100.0


class LoadWatch(Watch[Mark]):
    """Reads /proc; whatever file is missing leaves its figure out. The descendants of `root_pid` (default: our parent)
    are ours; their use of the machine is not foreign, but on the watched cores anything that is not this very process
    is."""

    least_s = 0.25  # busy time is counted in ticks of 10 ms

    def __init__(
        self,
        cores: Sequence[int],
        root_pid: int | None = None,
        proc: Path = Path("/proc"),
        cpus: Path = Path("/sys/devices/system/cpu"),
    ) -> None:
        self._cores = frozenset(f"cpu{core}" for core in cores)
        self._root_pid = os.getppid() if root_pid is None else root_pid
        self._proc = proc
        self._tasks = str(proc / "self" / "task")
        counters = (cpus / f"cpu{core}" / "thermal_throttle" / name for core in cores for name in THROTTLE_COUNTERS)
        self._throttle_files = [str(path) for path in counters if path.exists()]

    def mark(self, full: bool = False) -> Mark:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        own_cpu_s = usage.ru_utime + usage.ru_stime
        if not full:
            return Mark(time.perf_counter(), own_cpu_s, usage.ru_nivcsw, self._waited_s(), throttles=self._throttles())
        busy, steal, machine = self._stat()
        return Mark(
            time.perf_counter(), own_cpu_s, usage.ru_nivcsw, self._waited_s(),
            busy, steal, machine, self._pressure_s(), self._tree_cpu_s(), full=True, throttles=self._throttles(),
        )  # fmt: skip

    def since(self, mark: Mark) -> CpuLoad:
        return judge(mark, self.mark(full=mark.full))

    def _waited_s(self) -> float | None:
        # Two looks go with every sample, so no pathlib and no text files here: a quarter of the time.
        total, seen = 0, False
        threads = os.listdir(self._tasks) if os.path.isdir(self._tasks) else []  # noqa: PTH112, PTH208
        for thread in threads:
            fields = _line(f"{self._tasks}/{thread}/schedstat").split()  # none of a thread that has just ended
            if len(fields) > 1:
                total, seen = total + int(fields[1]), True
        return total / 1e9 if seen else None

    def _throttles(self) -> int | None:
        if not self._throttle_files:
            return None
        return sum(int(text) for file in self._throttle_files if (text := _read(Path(file)).strip()).isdigit())

    def _stat(self) -> tuple[float | None, float | None, float | None]:
        busy = steal = machine = None
        for line in _read(self._proc / "stat").splitlines():
            name, *rest = line.split()
            if not name.startswith("cpu"):
                break
            ticks = [int(field) for field in rest]
            used = sum(ticks[:_STEAL_FIELD]) - sum(ticks[i] for i in _IDLE_FIELDS)
            if name == "cpu":
                machine = used * _TICK_S
            elif name in self._cores:
                busy = (busy or 0.0) + used * _TICK_S
                steal = (steal or 0.0) + sum(ticks[_STEAL_FIELD:_GUEST_FIELD]) * _TICK_S
        return busy, steal, machine

    def _pressure_s(self) -> float | None:
        for line in _read(self._proc / "pressure" / "cpu").splitlines():
            if line.startswith("some") and "total=" in line:
                return int(line.rpartition("total=")[2]) / 1e6
        return None

    def _tree_cpu_s(self) -> float | None:
        """Return the CPU seconds of our tree's living processes and of their children that were waited for."""
        parents: dict[int, int] = {}
        used: dict[int, float] = {}
        # All processes several times a second, beside measurements: no pathlib and no text files here either.
        try:
            names = os.listdir(self._proc)  # noqa: PTH208
        except OSError:  # a confined process sees its own alone
            return None
        for name in filter(str.isdigit, names):
            fields = _line(f"{self._proc}/{name}/stat").rpartition(b")")[2].split()  # the name before may hold spaces
            if len(fields) > 14:
                pid = int(name)
                parents[pid] = int(fields[1])
                used[pid] = sum(map(int, fields[11:15])) * _TICK_S
        if self._root_pid not in used:
            return None
        return sum(cpu_s for pid, cpu_s in used.items() if self._is_ours(pid, parents))

    def _is_ours(self, pid: int, parents: dict[int, int]) -> bool:
        seen: set[int] = set()
        while pid != self._root_pid and pid in parents and pid not in seen:
            seen.add(pid)
            pid = parents[pid]
        return pid == self._root_pid


def judge(before: Mark, after: Mark) -> CpuLoad:
    wall_s = max(after.wall_s - before.wall_s, 1e-9)
    own, known = after.own_cpu_s - before.own_cpu_s, before.tree_cpu_s is not None and after.tree_cpu_s is not None
    tree_cpu_s = (after.tree_cpu_s or 0.0) - (before.tree_cpu_s or 0.0) if known else None
    load = CpuLoad(
        wall_s=wall_s,
        switches=after.switches - before.switches,
        waited=_share(before.waited_s, after.waited_s, wall_s),
        foreign=_share(before.cores_busy_s, after.cores_busy_s, wall_s, own),
        steal=_share(before.cores_steal_s, after.cores_steal_s, wall_s),
        machine_foreign=None
        if tree_cpu_s is None
        else _share(before.machine_busy_s, after.machine_busy_s, wall_s, tree_cpu_s),
        pressure=_share(before.pressure_s, after.pressure_s, wall_s),
        throttles=None if before.throttles is None or after.throttles is None else after.throttles - before.throttles,
    )
    flags = ["throttled"] if load.throttles else []
    if load.waited is not None and load.waited > _WAITED:
        flags.append("waited")
    if load.waited is None and load.switches > 1 + wall_s * _SWITCHES_PER_S:
        flags.append("switched")
    if wall_s >= _LEAST_WALL_S:
        flags += ["foreign"] if (load.foreign or 0.0) > _FOREIGN else []
        flags += ["steal"] if (load.steal or 0.0) > _STEAL else []
    return replace(load, contaminated=tuple(flags))


def _share(before: float | None, after: float | None, wall_s: float, ours: float = 0.0) -> float | None:
    if before is None or after is None:
        return None
    return max(0.0, (after - before - ours) / wall_s)


def _line(path: str) -> bytes:
    try:
        file = os.open(path, os.O_RDONLY)
        try:
            return os.read(file, 1024)
        finally:
            os.close(file)
    except OSError:
        return b""  # the process has just ended


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


class CpuForeignLoad(ForeignLoad):
    """Looks at /proc. This process and its descendants are ours, all others are foreign."""

    least_s = 0.1  # the kernel counts in ticks of 10 ms

    def __init__(self, cores: Sequence[int], watch: LoadWatch | None = None) -> None:
        self._watch = watch or LoadWatch(cores, root_pid=os.getpid())
        self._seen: Mark | None = None

    @override
    def taken(self) -> float:
        before, self._seen = self._seen, self._watch.mark(full=True)
        return 0.0 if before is None else taken_cores(before, self._seen)


def taken_cores(before: Mark, after: Mark) -> float:
    """Return how many of the watched cores others used between two full marks, stolen time included; 0 if not known.
    Time pressure (PSI) says nothing here: we press ourselves as soon as there are more stages than cores."""
    wall_s = max(after.wall_s - before.wall_s, 1e-9)
    marks = (before.cores_busy_s, after.cores_busy_s, before.tree_cpu_s, after.tree_cpu_s)
    if any(value is None for value in marks):
        return 0.0
    busy_before, busy_after, tree_before, tree_after = (value or 0.0 for value in marks)
    foreign_s = busy_after - busy_before - (tree_after - tree_before)
    stolen_s = (after.cores_steal_s or 0.0) - (before.cores_steal_s or 0.0)
    return (max(0.0, foreign_s) + max(0.0, stolen_s)) / wall_s


_SYS = Path("/sys")
_CPU_CHIPS = frozenset({"coretemp", "k10temp", "zenpower", "cpu_thermal"})
_CPU_ZONES = ("pkg_temp", "cpu", "soc")


def read_clocks(cores: Sequence[int], root: Path = _SYS) -> dict[str, float]:
    """Return what is offered of `mhz` (slowest core), `celsius` (hottest zone) and `throttled` (events so far). The
    zone is the processor's where one is called so: others are batteries and network cards. Events of a whole package
    count for each of its cores."""
    cpus = [root / "devices/system/cpu" / f"cpu{core}" for core in cores]
    mhz = [khz / 1e3 for cpu in cpus if (khz := _number(cpu / "cpufreq/scaling_cur_freq")) is not None]
    counters = [cpu / "thermal_throttle" / name for cpu in cpus for name in THROTTLE_COUNTERS]
    throttled = [n for counter in counters if (n := _number(counter)) is not None]
    found = {"mhz": min(mhz, default=None), "celsius": _celsius(root)}
    found["throttled"] = sum(throttled) if throttled else None
    return {name: value for name, value in found.items() if value is not None}


def _celsius(root: Path) -> float | None:
    chips = [chip for chip in (root / "class/hwmon").glob("hwmon*") if _read(chip / "name").strip() in _CPU_CHIPS]
    zones = sorted((root / "class/thermal").glob("thermal_zone*"))
    own = [zone for zone in zones if any(word in _read(zone / "type").lower() for word in _CPU_ZONES)]
    files = [file for chip in chips for file in chip.glob("temp*_input")] or [zone / "temp" for zone in own or zones]
    return max((milli / 1e3 for file in files if (milli := _number(file)) is not None), default=None)


def _number(path: Path) -> float | None:
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        return None


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
