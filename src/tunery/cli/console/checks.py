"""What `tunery doctor` looks at; each check returns what it found and what to do about it."""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec

from tunery._errors import StoreError

_GIB = 2**30
_IMPORT_DEADLINE_S = 120.0
# A worker with TVM takes some 0.3 GiB, and there is one of each role for each of a few cores.
_LEAST_MEMORY_GIB, _GOOD_MEMORY_GIB = 1.0, 4.0
_GOOD_DISK_GIB = 2.0
_QUIET_LOAD = 0.5


class State(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One look at the machine; `advice` is empty where there is nothing to do."""

    name: str
    state: State
    found: str
    advice: str = ""


def all_checks(store: str) -> Iterator[Check]:
    """Look at everything, one after the other."""
    yield python()
    yield pins()
    yield compiler()
    yield linker()
    yield cores()
    yield load()
    yield memory()
    yield store_place(store)
    yield cache()
    yield models()
    yield torch()


def python() -> Check:
    """Is this a system that tunery runs on? Without the right Python it would not be installed."""
    found = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    if platform.system() != "Linux":
        return Check("python", State.FAIL, found, "tuning needs Linux: workers are placed and watched by its means")
    return Check("python", State.OK, found)


def pins() -> Check:
    """Are the compiler and its foreign-function library the pair that was tested?"""
    wanted = _pinned()
    found = {name: _installed(name) for name in wanted}
    shown = ", ".join(f"{name} {have or 'missing'}" for name, have in found.items())
    if found == wanted:
        return Check("versions", State.OK, shown)
    command = " ".join(f"{name}=={pin}" for name, pin in wanted.items())
    return Check("versions", State.FAIL, shown, f"another pair may crash while tuning: pip install {command}")


def _pinned() -> dict[str, str]:
    lines = [line.partition(";")[0] for line in requires("tunery") or ()]
    pairs = [line.strip().split("==") for line in lines if line.startswith("apache-tvm") and "==" in line]
    return dict(pairs)


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def compiler() -> Check:
    """Does the compiler load? In its own process, where a crash is only an answer."""
    command = [sys.executable, "-c", "import tunery.dialects.metaschedule._tvm"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_IMPORT_DEADLINE_S, check=False)
    except subprocess.TimeoutExpired:
        return Check("compiler", State.FAIL, f"TVM does not load within {_IMPORT_DEADLINE_S:.0f} s", "reinstall it")
    if done.returncode == 0:
        return Check("compiler", State.OK, "TVM loads")
    last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return Check("compiler", State.FAIL, f"TVM does not load: {last[:200]}", "reinstall the pinned versions")


def linker() -> Check:
    """Is there a linker for built candidates?"""
    found = next(filter(None, map(shutil.which, ("ld", "ld.lld", "cc", "gcc", "clang"))), None)
    if found:
        return Check("linker", State.OK, found)
    return Check("linker", State.FAIL, "no ld, cc, gcc or clang", "install a linker, for example the package binutils")


def cores() -> Check:
    """How many cores may we use, and does anything cut them?"""
    from tunery.devices.cpu.cgroups import quota_cores
    from tunery.devices.cpu.placement import usable_cores

    usable, quota = len(usable_cores()), quota_cores()
    found = f"{usable} of {os.cpu_count()} usable" + (f", a quota of {quota:g}" if quota is not None else "")
    if quota is not None and quota < usable:
        return Check(
            "cores",
            State.WARN,
            found,
            f"the quota disturbs timings: use --threads {max(int(quota), 1)}",
        )
    if usable < 2:
        return Check("cores", State.WARN, found, "building and measuring share one core, which makes tuning slow")
    return Check("cores", State.OK, found)


def load() -> Check:
    """Is the machine quiet enough to measure on?"""
    average = os.getloadavg()[0]
    found = f"{average:.2f} over the last minute"
    if average > _QUIET_LOAD * (os.cpu_count() or 1):
        return Check("load", State.WARN, found, "others use this machine: measuring takes longer, end what you can")
    return Check("load", State.OK, found)


def memory() -> Check:
    """Is there memory for the workers?"""
    import psutil

    free = psutil.virtual_memory().available / _GIB
    found = f"{free:.1f} GiB available"
    if free < _LEAST_MEMORY_GIB:
        return Check("memory", State.FAIL, found, f"end other programs until there are {_GOOD_MEMORY_GIB:g} GiB")
    if free < _GOOD_MEMORY_GIB:
        return Check("memory", State.WARN, found, f"large networks need more: {_GOOD_MEMORY_GIB:g} GiB are comfortable")
    return Check("memory", State.OK, found)


def store_place(url: str) -> Check:
    """Can the store be opened and written?"""
    from tunery.store import missing, open_store

    try:
        absent = missing(url)
        if absent is not None:
            return Check("store", State.OK, f"{absent}, not there yet: the first `tunery tune` begins it")
        with open_store(url) as opened:
            stats = opened.stats()
            opened.check()
    except StoreError as error:
        found, _, advice = str(error).partition("; ")
        return Check("store", State.FAIL, found, advice)
    return Check("store", State.OK, f"{stats.place}, {stats.records} records, {stats.size_bytes / 1e6:.1f} MB")


def cache() -> Check:
    """Can prepared networks and scratch files be written, and is there room?"""
    from tunery._settings import cache_directory

    directory = cache_directory()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            free = shutil.disk_usage(directory).free / _GIB
    except OSError as error:
        advice = "set TUNERY_CACHE to a writable directory"
        return Check("cache", State.FAIL, f"{directory} cannot be written ({error.strerror})", advice)
    if free < _GOOD_DISK_GIB:
        return Check("cache", State.WARN, f"{directory}, {free:.1f} GiB free", f"make room for {_GOOD_DISK_GIB:g} GiB")
    return Check("cache", State.OK, f"{directory}, {free:.1f} GiB free")


def models() -> Check:
    """Can the cost models that were trained here be read?"""
    from tunery.costmodels.registry import damaged, models_directory, versions

    broken, directory = damaged(), models_directory()
    if broken:
        found, _, advice = broken[0].partition("; ")
        more = f" and {len(broken) - 1} more" if len(broken) > 1 else ""
        return Check("models", State.WARN, f"{found}{more}", advice)
    return Check("models", State.OK, f"{directory}, {len(versions())} trained here")


def torch() -> Check:
    """Is torch beside TVM? tunery keeps them apart; a user's own program may not."""
    if find_spec("torch") is None:
        return Check("torch", State.OK, "not installed; only .pt2 models and comparisons with torch need it")
    return Check(
        "torch", State.WARN, f"torch {_installed('torch')} beside TVM",
        "tunery keeps them in separate processes; do not load a compiled network in a program that imports torch",
    )  # fmt: skip
