"""What the operating system must do for us: end children with their parent, and say who used how much."""

import ctypes
import errno
import os
import resource
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(parent: int, signum: signal.Signals) -> None:
    """Have the kernel send `signum` when the thread that started this process ends (Linux, prctl(2)). A parent that
    ended before the request is noticed by its changed process id, and this process ends at once."""
    _prctl(_PR_SET_PDEATHSIG, signum)
    if os.getppid() != parent:
        os._exit(0)


def adopt_orphans() -> None:
    """Make this process the parent of all descendants whose own parent ends, so that none escapes. Under qemu's user
    mode there is no such thing: there the groups that workers lead are ended, and no more."""
    try:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise


def own_cpu_s() -> float:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def cpu_s(pid: int) -> float:
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system + times.children_user + times.children_system)


def is_stopped(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() in {psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP}
    except psutil.Error:
        return False


def move(pid: int, cores: Iterable[int]) -> None:
    """Pin all threads of a process to these CPUs; one that has ended, or may not run there, stays as it is."""
    wanted = set(cores)
    with suppress(OSError):
        for thread in Path("/proc", str(pid), "task").iterdir():
            with suppress(OSError):
                os.sched_setaffinity(int(thread.name), wanted)


def bare_cpu_s(pid: int) -> float:
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


def kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value}) failed")
