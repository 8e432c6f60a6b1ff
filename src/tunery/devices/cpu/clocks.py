"""Frequency, temperature and throttling of the measuring cores, where the machine offers them."""

from collections.abc import Sequence
from pathlib import Path

from tunery.devices.cpu.load import THROTTLE_COUNTERS

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
    chips = [chip for chip in (root / "class/hwmon").glob("hwmon*") if _text(chip / "name") in _CPU_CHIPS]
    zones = sorted((root / "class/thermal").glob("thermal_zone*"))
    own = [zone for zone in zones if any(word in _text(zone / "type").lower() for word in _CPU_ZONES)]
    files = [file for chip in chips for file in chip.glob("temp*_input")] or [zone / "temp" for zone in own or zones]
    return max((milli / 1e3 for file in files if (milli := _number(file)) is not None), default=None)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _number(path: Path) -> float | None:
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        return None
