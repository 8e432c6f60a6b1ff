"""`tunery doctor`: is this machine ready? `tunery version`: which versions run."""

import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed

from tunery._errors import StoreError
from tunery._extras import COMPILER, missing_part
from tunery.cli.console import options
from tunery.cli.console.commands import Result, command
from tunery.domain import Check, CheckState

_LIBRARIES = ("onnx", "onnxruntime", "numpy", "lightgbm")
_GIB = 2**30
# A worker with a compiler takes some 0.3 GiB, and there is one of each role for each of a few cores.
_LEAST_MEMORY_GIB, _GOOD_MEMORY_GIB = 1.0, 4.0
_GOOD_DISK_GIB = 2.0


@command("doctor", "doctor")
def doctor(store: options.StoreUrl = "") -> Result:
    """Check this machine: each line says ok, absent, warn or fail, and what to do."""
    return checked(list(all_checks(store)))


def checked(checks: Sequence[Check]) -> Result:
    """Return what checks have found, with exit code 1 if one failed."""
    failed = any(check.state is CheckState.FAIL for check in checks)
    lines = (
        f"{check.state.value:<6} {check.name:<9} {check.found}{'; ' + check.advice if check.advice else ''}"
        for check in checks
    )
    return Result({"ok": not failed, "checks": checks}, lines, int(failed))


@command("version", "version")
def version() -> Result:
    """Show the versions of tunery, its compilers and Python."""
    from tunery.dialects import get_dialect, installed_dialects

    compilers: list[str] = []
    for name in installed_dialects():
        try:
            compilers += get_dialect(name).packages
        except ImportError:  # `tunery doctor` says why
            compilers.append(name)
    versions: dict[str, str | None] = {name: _installed(name) for name in ("tunery", *compilers, *_LIBRARIES)}
    versions["python"] = platform.python_version()
    return Result(versions, (f"{name} {value or '(not installed)'}" for name, value in versions.items()))


def _installed(name: str) -> str | None:
    try:
        return installed(name)
    except PackageNotFoundError:
        return None


def all_checks(store: str) -> Iterator[Check]:
    """Look at everything, one after the other; what needs a part that is not installed is said."""
    checks: dict[str, Callable[[], Check | Iterator[Check]]] = {
        "python": python, "compilers": compilers, "cpu": cpu, "memory": memory, "store": lambda: store_place(store),
        "cache": cache, "models": models,
    }  # fmt: skip
    for name, look in checks.items():
        try:
            found = look()
            yield from [found] if isinstance(found, Check) else found
        except ModuleNotFoundError as error:
            if not (part := missing_part(error)):
                raise
            yield Check(name, CheckState.WARN, f"not looked at without {part}", f"to tune or serve here: {COMPILER}")


def python() -> Check:
    """Is this a system that tunery runs on? Without the right Python it would not be installed."""
    found = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    if platform.system() != "Linux":
        advice = "tuning needs Linux: workers are placed and watched by its means"
        return Check("python", CheckState.FAIL, found, advice)
    return Check("python", CheckState.OK, found)


def compilers() -> Iterator[Check]:
    """Can each dialect work here?"""
    from tunery.dialects import get_dialect, installed_dialects

    for name in installed_dialects():
        try:
            yield from get_dialect(name).doctor()
        except ImportError as error:
            yield Check(name, CheckState.FAIL, f"the dialect does not load: {error}", "install it again")


def cpu() -> Iterator[Check]:
    """Can the CPU be measured on?"""
    from tunery.devices.cpu.doctor import all_checks

    return all_checks()


def memory() -> Check:
    """Is there memory for the workers?"""
    import psutil

    free = psutil.virtual_memory().available / _GIB
    found = f"{free:.1f} GiB available"
    if free < _LEAST_MEMORY_GIB:
        return Check("memory", CheckState.FAIL, found, f"end other programs until there are {_GOOD_MEMORY_GIB:g} GiB")
    if free < _GOOD_MEMORY_GIB:
        return Check(
            "memory", CheckState.WARN, found, f"large networks need more: {_GOOD_MEMORY_GIB:g} GiB are comfortable"
        )
    return Check("memory", CheckState.OK, found)


def store_place(url: str) -> Check:
    """Can the store be opened and written?"""
    from tunery.store import missing, open_store

    try:
        absent = missing(url)
        if absent is not None:
            return Check("store", CheckState.OK, f"{absent}, not there yet: the first `tunery tune` begins it")
        with open_store(url) as opened:
            stats = opened.stats()
            opened.check()
    except StoreError as error:
        found, _, advice = str(error).partition("; ")
        return Check("store", CheckState.FAIL, found, advice)
    return Check("store", CheckState.OK, f"{stats.place}, {stats.records} records, {stats.size_bytes / 1e6:.1f} MB")


def cache() -> Check:
    """Can prepared networks and scratch files be written, and is there room?"""
    from tunery._locks import own_directory
    from tunery._settings import cache_directory

    directory = cache_directory()
    try:
        own_directory(directory)
        with tempfile.TemporaryFile(dir=directory):
            free = shutil.disk_usage(directory).free / _GIB
    except OSError as error:
        advice = "set TUNERY_CACHE to a directory of your own"
        return Check("cache", CheckState.FAIL, f"{directory} cannot be used ({error.strerror})", advice)
    if free < _GOOD_DISK_GIB:
        return Check(
            "cache", CheckState.WARN, f"{directory}, {free:.1f} GiB free", f"make room for {_GOOD_DISK_GIB:g} GiB"
        )
    return Check("cache", CheckState.OK, f"{directory}, {free:.1f} GiB free")


def models() -> Check:
    """Can the cost models that were trained here be read?"""
    from tunery._settings import models_directory
    from tunery.costmodels.registry import damaged, versions

    broken, directory = damaged(), models_directory()
    if broken:
        found, _, advice = broken[0].partition("; ")
        more = f" and {len(broken) - 1} more" if len(broken) > 1 else ""
        return Check("models", CheckState.WARN, f"{found}{more}", advice)
    return Check("models", CheckState.OK, f"{directory}, {len(versions())} trained here")
