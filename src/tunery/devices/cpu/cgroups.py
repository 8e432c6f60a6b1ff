"""What the control groups that this process is in, nested as they may be, grant it: cores and memory."""

from collections.abc import Iterator
from pathlib import Path

_MEMBERSHIP = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")


def quota_cores(membership: Path = _MEMBERSHIP, root: Path = _ROOT) -> float | None:
    """Return how many cores' worth of time we may use (the least `cpu.max` or `cfs_quota_us`), None for no limit."""
    found: list[float] = []
    for directory in _directories("cpu", membership, root):
        try:
            if (directory / "cpu.max").exists():
                quota, period = (directory / "cpu.max").read_text().split()
            else:
                quota = (directory / "cpu.cfs_quota_us").read_text()
                period = (directory / "cpu.cfs_period_us").read_text()
            found.append(float(quota) / float(period))
        except (OSError, ValueError, ZeroDivisionError):
            continue  # "max", or no limits at this place
    return min((cores for cores in found if cores > 0), default=None)


def limit_bytes(membership: Path = _MEMBERSHIP, root: Path = _ROOT) -> int | None:
    found: list[int] = []
    for directory in _directories("memory", membership, root):
        for name in ("memory.max", "memory.limit_in_bytes"):
            try:
                found.append(int((directory / name).read_text()))
            except (OSError, ValueError):
                continue
    return min(found, default=None)


def _directories(controller: str, membership: Path, root: Path) -> Iterator[Path]:
    """Yield the directories of our group and of those around it, of version 2 and of the controller's version 1.

    In a container the paths may be those of the host, which are not to be seen here: then the mount itself is ours.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        lines = []
    groups = {controller: "/", "": "/"}
    for line in lines:
        _, controllers, path = line.split(":", 2)
        groups.update((name, path) for name in controllers.split(",") if name in groups)
    for mount, path in ((root, groups[""]), (root / "unified", groups[""]), (root / controller, groups[controller])):
        inside = Path(path.lstrip("/"))
        yield from (mount / part for part in (inside, *inside.parents) if ".." not in part.parts)
