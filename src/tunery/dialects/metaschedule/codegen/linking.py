"""Object files to shared objects, for this machine or another one."""

import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tunery._errors import DialectError
from tunery.dialects.metaschedule.families import machine_of


def link(sources: Sequence[Path], destination: Path, config: Mapping[str, object]) -> None:
    """Link object files of a target to a shared object; the linker itself costs a fifth of the compiler driver."""
    linker = _linker(machine_of(config))
    done = subprocess.run([linker, "-shared", "-o", destination, *sources], capture_output=True, text=True, check=False)
    if done.returncode:
        raise DialectError(f"linking failed: {done.stderr.strip()[-200:]}")


def _linker(machine: str) -> str:
    here = machine == platform.machine()
    names = ("ld", "ld.lld", "cc") if here else (f"{machine}-linux-gnu-ld", "ld.lld", f"{machine}-linux-gnu-gcc")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        package = "binutils" if here else f"binutils-{machine.replace('_', '-')}-linux-gnu"
        raise DialectError(f"no linker for {machine} found; install {package} (for example: apt-get install {package})")
    return found
