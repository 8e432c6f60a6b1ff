"""What this process may use: cores and memory, as control groups grant them, and instructions, of which others end it.
And what compilers call another host's ARM processor."""

import ctypes
import os
import platform
import resource
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from numpy._core._multiarray_umath import __cpu_features__  # type: ignore[import-not-found]

_OTHERWISE = {
    "fma": "fma3",
    "sse4.1": "sse41",
    "sse4.2": "sse42",
    "neon": "asimd",
    "dotprod": "asimddp",
    "fullfp16": "asimdhp",
}
"""What NumPy calls instructions otherwise than LLVM, beside underscores and capitals."""
_X86 = ("avxvnni", "avx512bf16", "amxtile", "amxint8", "amxbf16")
_ARM_BITS = {"sve2": 1, "i8mm": 13, "bf16": 14}
"""What NumPy does not tell of: Linux does, by these flags or by these bits of AT_HWCAP2."""
_AT_HWCAP2 = 26
_MEMBERSHIP = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")
# Implementer and part, as /proc/cpuinfo has them (the Arm Architecture Reference Manual's MIDR_EL1).
_ARM = {
    ("0x41", "0xd03"): "cortex-a53",
    ("0x41", "0xd04"): "cortex-a35",
    ("0x41", "0xd05"): "cortex-a55",
    ("0x41", "0xd07"): "cortex-a57",
    ("0x41", "0xd08"): "cortex-a72",
    ("0x41", "0xd09"): "cortex-a73",
    ("0x41", "0xd0a"): "cortex-a75",
    ("0x41", "0xd0b"): "cortex-a76",
    ("0x41", "0xd0c"): "neoverse-n1",
    ("0x41", "0xd0d"): "cortex-a77",
    ("0x41", "0xd40"): "neoverse-v1",
    ("0x41", "0xd41"): "cortex-a78",
    ("0x41", "0xd42"): "cortex-a78ae",
    ("0x41", "0xd44"): "cortex-x1",
    ("0x41", "0xd46"): "cortex-a510",
    ("0x41", "0xd47"): "cortex-a710",
    ("0x41", "0xd48"): "cortex-x2",
    ("0x41", "0xd49"): "neoverse-n2",
    ("0x41", "0xd4b"): "cortex-a78c",
    ("0x41", "0xd4f"): "neoverse-v2",
    ("0x4e", "0x004"): "carmel",
    ("0xc0", "0xac3"): "ampere1",
}
ARM_NAMES = frozenset({"generic", *_ARM.values()})
"""What compilers call ARM processors, of those that are known here."""
ARM_INSTRUCTIONS = {"asimd": "neon", "asimddp": "dotprod", "asimdhp": "fullfp16", "sve": "sve", "i8mm": "i8mm",
                    "bf16": "bf16"}  # fmt: skip
"""Linux's names of instructions, and LLVM's."""
ARM_BEGINNINGS = ("neon", "sve", "sme", "dotprod", "i8mm", "bf16", "fullfp16")
"""How the names of instructions begin by which code differs."""
ARM_VECTORS = ("neon", "dotprod", "fullfp16")
"""What is named in the target of a processor that is not in the table: its vectors are of 128 bits."""


def lacking(needed: Iterable[object]) -> list[str]:
    known = _told_by_linux() | {_plain(name): has for name, has in __cpu_features__.items()}
    return sorted(str(one) for one in needed if known.get(_plain(_OTHERWISE.get(str(one), str(one)))) is False)


@cache
def _told_by_linux() -> dict[str, bool]:
    """Return whether this processor has each instruction that NumPy does not know and Linux tells of."""
    known = dict.fromkeys((*_X86, *_ARM_BITS), False)
    if platform.machine() == "aarch64":
        getauxval = ctypes.CDLL(None).getauxval
        getauxval.restype, getauxval.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
        bits = getauxval(_AT_HWCAP2)
        return known | {name: bool(bits >> bit & 1) for name, bit in _ARM_BITS.items()}
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
            flags = next(line.split() for line in lines if line.startswith("flags"))
    except (OSError, StopIteration):
        return {name: has for name, has in known.items() if name not in _X86}
    has = set(map(_plain, flags))
    return known | {name: name in has for name in _X86}


def granted_cores() -> int:
    """Return how many threads this process can keep at work: its affinity and its quota, rounded down, at least one."""
    usable, quota = len(os.sched_getaffinity(0)), quota_cores()
    return usable if quota is None else max(1, min(usable, int(quota + 0.01)))


def quota_cores(membership: Path = _MEMBERSHIP, root: Path = _ROOT) -> float | None:
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
    """Yield the directories of our group and of those around it, of version 2 and of the controller's version 1. In a
    container the paths may be those of the host, which are not to be seen here: then the mount itself is ours."""
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


def arm_name(facts: Mapping[str, Any]) -> str | None:
    return _ARM.get((str(facts.get("vendor")), str(facts.get("model"))))


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def entered() -> float:
    """Return when this process began, on the monotonic clock: from then on a command's user waits."""
    try:
        ticks = int(Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return time.monotonic()
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - max(age_s, 0.0)


def wait_for_stop(process: int) -> None:
    """Wait until no thread of a process, of which there is a descriptor, runs any more: it was stopped, or ends."""
    lines = Path(f"/proc/self/fdinfo/{process}").read_text().splitlines()
    pid = next(line for line in lines if line.startswith("Pid:")).split()[1]
    with suppress(OSError):  # as it has ended
        while any(_state(task) not in "TtZXx" for task in Path("/proc", pid, "task").iterdir()):
            os.sched_yield()


def _state(task: Path) -> str:
    return (task / "stat").read_bytes().rpartition(b") ")[2][:1].decode()


def keep_to_cores(pid: int, count: int) -> None:
    """Have the only thread of a process, and what it starts from now on, run on so many of this process's cores."""
    os.sched_setaffinity(pid, sorted(os.sched_getaffinity(0))[:count])


@contextmanager
def room_for_addresses() -> Iterator[None]:
    """The driver takes some addresses for all memory of the GPU and of the host, and hardly any memory: the process's
    limit is higher by as much afterwards."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY:
        yield
        return
    before = _address_bytes()
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    try:
        yield
    finally:
        limit = soft + max(0, _address_bytes() - before)
        resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def _address_bytes() -> int:
    import psutil

    return int(psutil.Process().memory_info().vms)


def is_another_thread_running() -> bool:
    """Say whether a thread of this process beside the caller's is ready to run."""
    me = str(threading.get_native_id())
    for path in Path("/proc/self/task").glob("*/stat"):
        with suppress(OSError):  # it has ended
            if path.parent.name != me and path.read_text().rpartition(")")[2].split()[0] == "R":
                return True
    return False
