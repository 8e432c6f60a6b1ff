"""On which cores this process runs, and whether that still holds after a compiler's runtime has started its threads. A
runtime may override the affinity it is started with; what keeps it from that is in its dialect's environment."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunery._processor import limit_bytes

_TASKS = Path("/proc/self/task")
_CPUS = Path("/sys/devices/system/cpu")
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@dataclass(frozen=True, slots=True)
class Placement:
    """Where this process may run now: `held` is False if any of its threads left the cores it was pinned to."""

    cores: tuple[int, ...]
    held: bool
    threads: int
    nice: int


def usable_cores() -> tuple[int, ...]:
    return tuple(sorted(os.sched_getaffinity(0)))


def granted_bytes() -> int:
    """Return how much memory this process and its children may use: the cgroup's limit, else the machine's memory."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = limit_bytes()
    return total if limit is None else min(total, limit)


def pin(cores: Sequence[int]) -> tuple[int, ...]:
    """Pin all threads of this process before a compiler's runtime is loaded: later threads inherit the mask."""
    chosen = set(cores) & set(usable_cores()) or set(usable_cores())
    bring_back(tuple(chosen))
    return tuple(sorted(chosen))


def bring_back(cores: Sequence[int]) -> None:
    """Keep all threads of this process to `cores` again, wherever they were moved since it was pinned there."""
    for thread in _threads():
        with suppress(OSError):  # the thread has ended
            os.sched_setaffinity(thread, cores)


def inspect_placement(cores: Sequence[int]) -> Placement:
    allowed, held, count = set(cores), True, 0
    for thread in _threads():
        try:
            held = held and os.sched_getaffinity(thread) <= allowed
        except OSError:
            continue
        count += 1
    return Placement(usable_cores(), held, count, os.getpriority(os.PRIO_PROCESS, 0))


def slots(cores: Sequence[int], threads: int, cpus: Path = _CPUS) -> list[tuple[int, ...]]:
    """Return the disjoint core sets on which kernels of `threads` threads may be measured at the same time. Those that
    share no physical core with an earlier one come first, as far as the machine says which logical cores are siblings
    (a virtual one may not): so few measurements at once are far from one another."""
    width = max(1, threads)
    found = [tuple(cores[i : i + width]) for i in range(0, len(cores) - width + 1, width)]
    taken: set[str] = set()
    first: list[tuple[int, ...]] = []
    later: list[tuple[int, ...]] = []
    for slot in found:
        physical = {_siblings(core, cpus) for core in slot}
        (later if physical & taken else first).append(slot)
        taken |= physical
    return first + later


def memory_facts(cores: Sequence[int], cpus: Path = _CPUS, huge_pages: Path = _HUGE_PAGES) -> dict[str, Any]:
    nodes = {int(node.name[4:]) for core in cores for node in (cpus / f"cpu{core}").glob("node[0-9]*")}
    found: dict[str, Any] = {"numa_nodes": sorted(nodes)} if nodes else {}
    with suppress(OSError):  # a kernel without them
        found["huge_pages"] = huge_pages.read_text().partition("[")[2].partition("]")[0]
    return found


def _siblings(core: int, cpus: Path) -> str:
    try:
        return (cpus / f"cpu{core}" / "topology" / "thread_siblings_list").read_text().strip()
    except OSError:
        return str(core)


def _threads() -> list[int]:
    try:
        return [int(entry.name) for entry in _TASKS.iterdir()]
    except OSError:
        return [0]
