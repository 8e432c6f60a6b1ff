"""Whether TVM and what it needs are here, looked at without importing it."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec

from tunery._extras import COMPILER, pip_install
from tunery.domain import Check, CheckState

PACKAGES = ("apache-tvm", "apache-tvm-ffi")
_IMPORT_DEADLINE_S = 120.0


def all_checks() -> Iterator[Check]:
    """Look at everything, one after the other; without a compiler, at what runs compiled files."""
    if find_spec("tvm") is None:
        yield Check("compiler", CheckState.WARN, "TVM is not installed", f"to tune or compile here: {COMPILER}")
        yield runtime()
        return
    yield pins()
    yield compiler()
    yield linker()
    yield torch()


def pins() -> Check:
    """Are the compiler and its foreign-function library the pair that was tested?"""
    wanted = _pinned()
    found = {name: _installed(name) for name in wanted}
    shown = ", ".join(f"{name} {have or 'missing'}" for name, have in found.items())
    if found == wanted:
        return Check("versions", CheckState.OK, shown)
    command = " ".join(f"{name}=={pin}" for name, pin in wanted.items())
    return Check("versions", CheckState.FAIL, shown, f"another pair may crash while tuning: pip install {command}")


def _pinned() -> dict[str, str]:
    pairs = (line.partition(";")[0].strip().split("==") for line in requires("tunery") or ())
    return {pair[0]: pair[1] for pair in pairs if pair[0] in PACKAGES and len(pair) > 1}


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def compiler() -> Check:
    why = _why_not("_tvm")
    if not why:
        return Check("compiler", CheckState.OK, "TVM loads")
    return Check("compiler", CheckState.FAIL, f"TVM does not load: {why}", "reinstall the pinned versions")


def runtime() -> Check:
    why = _why_not("loading.library")
    if not why:
        return Check("runtime", CheckState.OK, "TVM's runtime loads: compiled files run here")
    return Check("runtime", CheckState.WARN, "compiled files do not run here", why)


def _why_not(module: str) -> str:
    """Return why a module of this dialect is not imported, "" if it is, in a process that may crash over it."""
    command = [sys.executable, "-P", "-c", f"import tunery.dialects.metaschedule.{module}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_IMPORT_DEADLINE_S, check=False)
    except subprocess.TimeoutExpired:
        return f"it takes more than {_IMPORT_DEADLINE_S:.0f} s"
    if done.returncode == 0:
        return ""
    last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return last.removeprefix("tunery._errors.UsageError: ")[:200]


def linker() -> Check:
    """Is there a linker for built candidates?"""
    found = next(filter(None, map(shutil.which, ("ld", "ld.lld", "cc", "gcc", "clang"))), None)
    if found:
        return Check("linker", CheckState.OK, found)
    advice = "install a linker, for example the package binutils"
    return Check("linker", CheckState.FAIL, "no ld, cc, gcc or clang", advice)


def torch() -> Check:
    if find_spec("torch") is None:
        needed = "not there (needed for .pt2 models and comparisons with torch)"
        return Check("torch", CheckState.ABSENT, needed, pip_install("torch"))
    return Check("torch", CheckState.OK, f"torch {_installed('torch')}, in processes without TVM's compiler")
