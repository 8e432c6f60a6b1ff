"""What a CPU is: the facts that make two timings comparable, as Linux tells them."""

import math
import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunery._processor import limit_bytes
from tunery.domain import DeviceDescription

_ARM = "aarch64"
_CPUINFO = Path("/proc/cpuinfo")
_MEMINFO = Path("/proc/meminfo")
_BOARD = Path("/sys/firmware/devicetree/base/model")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_GIB = 2**20  # in the KiB of /proc/meminfo


def describe_cpu(
    cores: Sequence[int],
    cpuinfo: Path = _CPUINFO,
    meminfo: Path = _MEMINFO,
    caches: Path = _CACHES,
    machine: str = "",
) -> DeviceDescription:
    """The facts are those of the machine type: no host name, no clock of the moment, no memory size to the byte (a
    kernel update changes it), so that another machine of the same type, or this one after a restart, has the same
    fingerprint."""
    processor, machine = _processor(cpuinfo), machine or platform.machine()
    if machine == _ARM:
        return _describe_arm(cores, processor, caches, _memory_gib(meminfo))
    name = processor.get("model name") or platform.processor() or machine
    flags = processor.get("flags", "").split() or processor.get("Features", "").split()
    facts = {
        "arch": machine,
        "vendor": processor.get("vendor_id", ""),
        "family": processor.get("cpu family", ""),
        "model": processor.get("model", ""),
        "stepping": processor.get("stepping", ""),
        "vector": _vector(flags),
        "virtual": "hypervisor" in flags,
        "caches": _cache_sizes(caches),
        "memory_gib": _memory_gib(meminfo),
    }
    return DeviceDescription(kind="cpu", name=name, cores=tuple(cores), facts=facts)


def _describe_arm(
    cores: Sequence[int], processor: Mapping[str, str], caches: Path, memory_gib: int
) -> DeviceDescription:
    """Describe an ARM processor. Under an emulator /proc tells of the machine that it runs on, and is not believed."""
    emulated = "CPU implementer" not in processor
    board = _read(_BOARD).strip("\0\n ")
    name = f"{_ARM} (emulated)" if emulated else board or processor.get("model name", _ARM)
    facts = {
        "arch": _ARM,
        "vendor": processor.get("CPU implementer", ""),
        "family": processor.get("CPU architecture", ""),
        "model": processor.get("CPU part", ""),
        "stepping": ".".join(processor[key] for key in ("CPU variant", "CPU revision") if key in processor),
        "vector": _vector(_seen_by_numpy() if emulated else processor.get("Features", "").split()),
        "virtual": emulated,
        "caches": {} if emulated else _cache_sizes(caches),
        "memory_gib": memory_gib,
    }
    return DeviceDescription(kind="cpu", name=name, cores=tuple(cores), facts=facts)


def _vector(flags: Iterable[str]) -> list[str]:
    return sorted(flag for flag in flags if flag.startswith(("avx", "amx", "sve", "asimd", "fma", "i8mm", "bf16")))


def _seen_by_numpy() -> list[str]:
    """Return the processor's features as NumPy has them from the kernel's own word to this process."""
    from numpy._core._multiarray_umath import __cpu_features__  # type: ignore[import-not-found]

    return [name.lower() for name, has in __cpu_features__.items() if has]


def cpu_traits(facts: Mapping[str, Any]) -> dict[str, float]:
    vector = [str(flag) for flag in facts.get("vector", ())]
    bits = 512 if any(flag.startswith("avx512") for flag in vector) else 256 if "avx2" in vector else 128
    told = facts.get("caches", {})
    caches = {name: _log2_kib(str(told[name])) for name in ("L1d", "L2", "L3") if name in told}
    sizes = {f"{name}_log2_kib": size for name, size in caches.items() if size is not None}
    return {"vector_bits": bits, "virtual": float(bool(facts.get("virtual"))), **sizes}


def cache_bytes(caches: Path = _CACHES) -> int:
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    sizes = (text for text in _cache_sizes(caches).values() if text[:-1].isdigit() and text[-1] in units)
    return max((int(text[:-1]) * units[text[-1]] for text in sizes), default=0)


def _processor(path: Path) -> dict[str, str]:
    fields: dict[str, str] = {}
    for line in _read(path).splitlines():
        if not line.strip() and fields:
            break
        key, _, value = line.partition(":")
        fields[key.strip()] = value.strip()
    return fields


def _cache_sizes(path: Path) -> dict[str, str]:
    sizes = {}
    for index in sorted(path.glob("index*")):
        level, kind, size = (_read(index / part).strip() for part in ("level", "type", "size"))
        if level and size:
            sizes[f"L{level}{kind[:1].lower() if kind != 'Unified' else ''}"] = size
    return sizes


def _memory_gib(path: Path) -> int:
    for line in _read(path).splitlines():
        if line.startswith("MemTotal:"):
            return round(int(line.split()[1]) / _GIB)
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _log2_kib(text: str) -> float | None:
    match = re.fullmatch(r"(\d+)([KMG]?)", text.strip())
    if not match or not int(match[1]):
        return None
    return math.log2(int(match[1]) * {"": 2**-10, "K": 1, "M": 2**10, "G": 2**20}[match[2]])


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
