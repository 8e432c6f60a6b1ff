"""Frequency, temperature and throttling of the measuring cores, where the machine offers them."""

from collections.abc import Sequence
from pathlib import Path

_SYS = Path("/sys")


def read_clocks(cores: Sequence[int], root: Path = _SYS) -> dict[str, float]:
    """Return what is offered of `mhz` (slowest core), `celsius` (hottest zone) and `throttled` (events so far)."""
    cpus = [root / "devices/system/cpu" / f"cpu{core}" for core in cores]
    mhz = [khz / 1e3 for cpu in cpus if (khz := _number(cpu / "cpufreq/scaling_cur_freq")) is not None]
    throttled = [n for cpu in cpus if (n := _number(cpu / "thermal_throttle/core_throttle_count")) is not None]
    zones = [milli / 1e3 for zone in sorted((root / "class/thermal").glob("thermal_zone*/temp"))
             if (milli := _number(zone)) is not None]  # fmt: skip
    found = {"mhz": min(mhz, default=None), "celsius": max(zones, default=None)}
    found["throttled"] = sum(throttled) if throttled else None
    return {name: value for name, value in found.items() if value is not None}


def _number(path: Path) -> float | None:
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        return None
