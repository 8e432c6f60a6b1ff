"""Object files to shared objects, for this machine or another one."""

import json
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from tunery._errors import DialectError
from tunery.dialects.metaschedule import loading
from tunery.dialects.metaschedule._tvm import open_target, tvm_ffi
from tunery.dialects.metaschedule.families import machine_of

_FLAGS = """
!llvm.module.flags = !{{!9000, !9001}}
!9000 = !{{i32 2, !"tvm_target", !"{target}"}}
!9001 = !{{i32 8, !"PIC Level", i32 2}}
"""
_PAUSE = {"x86_64": "pause", "aarch64": "yield"}


def link(sources: Sequence[Path], destination: Path, config: Mapping[str, object]) -> None:
    """Link object files of a target, with our parallel regions, to a shared object. The linker itself costs a fifth of
    the compiler driver."""
    linker = _linker(machine_of(config))
    with tempfile.NamedTemporaryFile(suffix=".o") as support:
        support.write(_support(json.dumps(dict(config)), machine_of(config)))
        support.flush()
        command = [linker, "-shared", "-o", str(destination), *map(str, sources), support.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DialectError(f"linking failed: {done.stderr.strip()[-200:]}")


@cache
def _support(config: str, machine: str) -> bytes:
    text = Path(loading.__path__[0], "native", "support.ll").read_text(encoding="utf-8")
    target = str(open_target(json.loads(config))).replace("\\", "\\5C").replace('"', "\\22")
    with tempfile.TemporaryDirectory(prefix="tunery-") as scratch:
        source, made = Path(scratch, "support.ll"), Path(scratch, "support.o")
        source.write_text(text.replace("PAUSE", _PAUSE[machine]) + _FLAGS.format(target=target), encoding="utf-8")
        tvm_ffi.get_global_func("ffi.Module.load_from_file.ll")(str(source), "ll").write_to_file(str(made), "o")
        return made.read_bytes()


def _linker(machine: str) -> str:
    here = machine == platform.machine()
    names = ("ld", "ld.lld", "cc") if here else (f"{machine}-linux-gnu-ld", "ld.lld", f"{machine}-linux-gnu-gcc")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        package = "binutils" if here else f"binutils-{machine.replace('_', '-')}-linux-gnu"
        raise DialectError(f"no linker for {machine} found; install {package} (for example: apt-get install {package})")
    return found
