"""Building kernels in C by gcc: the source as the author wrote it, under its parameters as macros."""

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tunery._errors import DialectError, TargetError
from tunery._sandbox import run
from tunery.dialects.kernels.specification import C_TYPES, Argument, KernelSpecification, Program
from tunery.domain.closed_target import closed

_FLAGS = ("-O3", "-fopenmp")
_CHECKED = ("-Werror=incompatible-pointer-types", "-Werror=implicit-function-declaration", "-Werror=int-conversion")
_LONGEST_S = 100.0
_MEMORY_BYTES, _FILE_BYTES = 4 << 30, 256 << 20  # of one of gcc's processes
_MCPU = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}(\+[a-z0-9]+)*")

# What tunery calls. It stands before the author's text, no macro of which so reaches it; it calls no other function,
# and its name may not be used again. Each call gets arguments of its own: those of the last, and so many bytes further.
_ENTRY = """
void tunery_call(void **);
__attribute__((visibility("default")))
void tunery_run(void **p, const long *strides, long count, long calls) {
    void (*volatile entry)(void **) = tunery_call;
    for (long i = 0; i < calls; i++) {
        for (long k = 0; i && k < count; k++) p[k] = (char *)p[k] + strides[k];
        entry(p);
    }
}
#pragma GCC poison tunery_run
#include <stdint.h>
"""
_CALL = "void tunery_call(void **p) {{ {function}({arguments}); }}\n"


@dataclass(frozen=True)
class Processor:
    """What code is generated for: a processor, by gcc's name of it, of another kind of `machine` where that is told."""

    name: str
    machine: str = ""

    @property
    def gcc(self) -> str:
        return f"{self.machine}-linux-gnu-gcc" if self.machine else "gcc"


def processor_of(config: Mapping[str, Any]) -> Processor:
    fields = closed(config)
    return Processor(str(fields["mcpu"]), str(fields.get("machine", "")))


@cache
def version(gcc: str = "gcc") -> str:
    if shutil.which(gcc) is None:
        return ""
    done = subprocess.run([gcc, "-dumpfullversion"], capture_output=True, text=True, check=False)
    return done.stdout.strip()


@cache
def native_processor() -> str:
    if not version():
        raise TargetError("kernels in C are built by gcc, which is not installed; install it, for example as `gcc`")
    done = subprocess.run(["gcc", "-march=native", "-Q", "--help=target"], capture_output=True, text=True, check=False)
    found = re.search(r"^\s+-m(?:arch|cpu)=\s+([\w.+-]+)\s*$", done.stdout, re.MULTILINE)
    return found[1] if found else "native"


@cache
def processor_flags(processor: Processor) -> tuple[str, ...]:
    """Return what has gcc generate code for a processor; for this one, all that it knows of it, in words for any host.
    A name such as `znver3` is not enough: a virtual machine may have more instructions, or fewer."""
    if processor.machine:
        return (f"-mcpu={processor.name}",)
    if processor.name != native_processor():
        return (f"-march={processor.name}",)
    command = ["gcc", "-march=native", "-###", "-x", "c", "-S", "-o", "-", "/dev/null"]
    done = subprocess.run(command, env={**os.environ, "LC_ALL": "C"}, capture_output=True, text=True, check=False)
    words = next((shlex.split(line) for line in done.stderr.splitlines() if "/cc1 " in line), [])
    found = tuple(word for word in words if word.startswith("-m"))
    return found if any(word.startswith(("-march=", "-mcpu=")) for word in found) else ("-march=native",)


@cache
def defined(processor: Processor) -> frozenset[str]:
    if processor.machine and not _has_library(processor.gcc):
        raise TargetError(
            f"kernels in C for {processor.machine} are built by {processor.gcc}, which is not installed with its C "
            f"library; install it, for example as `gcc-{processor.machine}-linux-gnu` and `libc6-dev-arm64-cross`"
        )
    native = "" if processor.machine else native_processor()
    if processor.name == native or _MCPU.fullmatch(processor.name):
        command = [processor.gcc, *processor_flags(processor), "-x", "c", "-dM", "-E", "-"]
        done = subprocess.run(command, input="", capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return frozenset(line.split()[1] for line in done.stdout.splitlines())
    known = f", or {{'kind': 'c', 'mcpu': {native!r}}}, and measure on hosts of this kind" if native else ""
    raise TargetError(f"{processor.gcc} knows no processor {processor.name!r:.60}; write native{known}")


def _has_library(gcc: str) -> bool:
    """Return whether a gcc is here with the C library that programs for its machine are linked with."""
    if not version(gcc):
        return False
    done = subprocess.run([gcc, "-print-file-name=crti.o"], capture_output=True, text=True, check=False)
    return "/" in done.stdout


def flags(kernel: KernelSpecification, processor: Processor) -> list[str]:
    return [*_FLAGS, *processor_flags(processor), *kernel.flags]


def build(program: Program, processor: Processor, path: Path) -> None:
    kernel, function = program.kernel, program.function
    defined(processor)
    values = [_argument(place, one) for place, one in enumerate(kernel.arguments)]
    text = (
        f'{_ENTRY}{program.macros}#line 1 "{function}.c"\n{program.source}\n'
        f'#line 1 "its call"\n{_CALL.format(function=function, arguments=", ".join(values))}'
    )
    with tempfile.TemporaryDirectory(prefix="gcc-", dir=path.parent) as scratch:
        part, library = Path(scratch) / "kernel.o", Path(scratch) / "kernel.so"
        gcc, built = processor.gcc, str(part)
        compiling = [gcc, "-x", "c", *flags(kernel, processor), *_CHECKED, "-fPIC", "-pipe", "-c", "-o", built, "-"]
        # Linked without the author's flags: with -ffast-math it would change how the whole process rounds.
        linking = [gcc, "-shared", "-fopenmp", "-s", "-Wl,--no-undefined", "-o", str(library), built, "-lm"]

        _run(compiling, function, scratch, text)
        _run(linking, function, scratch)
        library.rename(path)


def _run(command: Sequence[str], function: str, scratch: str, text: str = "") -> None:
    environment = os.environ | {"TMPDIR": scratch, "LC_ALL": "C", "CCACHE_DISABLE": "1"}
    try:
        done = run(
            command, [_tools(command[0])], [scratch], text=text, environment=environment, timeout_s=_LONGEST_S,
            memory_bytes=_MEMORY_BYTES, file_bytes=_FILE_BYTES,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DialectError(f"gcc does not build {function}: {type(error).__name__}") from error
    if done.returncode:
        raise DialectError(f"gcc refuses {function}: {_first_error(done.stderr)}")


@cache
def _tools(gcc: str) -> Path:
    done = subprocess.run([gcc, "-print-search-dirs"], capture_output=True, text=True, check=False)
    found = re.match(r"install: (.*?)/lib(?:64|exec)?/gcc[^/]*/", done.stdout)
    return Path(found[1] if found else "/usr")


def _argument(place: int, one: Argument) -> str:
    c_type = C_TYPES[one.dtype]
    if one.value is not None:
        return f"({c_type}){one.value!r}"
    return f"({'' if one.output else 'const '}{c_type} *)p[{place}]"


def _first_error(text: str) -> str:
    lines = [line for line in text.splitlines() if "error" in line.lower() or "undefined reference" in line]
    return " ".join((lines or text.splitlines() or ["it says nothing"])[0].split())[:240]
