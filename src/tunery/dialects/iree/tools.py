"""IREE's own programs, in the environment of this dialect."""

import os
import re
import subprocess
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from tunery._environments import check_environment, environment_python, site_packages
from tunery._errors import DialectError, ModelError, TargetError

NAME, VERSION = "iree", "3.13.0"
REQUIREMENTS = (f"iree-base-compiler[onnx]=={VERSION}", f"iree-base-runtime=={VERSION}")
OPSET = "17"
"""The importer is made for this version of ONNX's operators: it upgrades what is older."""
_PROCESSOR = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,59}")
_PROBE = "func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {\n  return %x : tensor<4xf32>\n}\n"


def import_onnx(model: Path, output: Path) -> None:
    """Write the MLIR module of an ONNX file.

    Raises:
        ModelError: the importer refuses it.
    """
    check_environment(NAME, REQUIREMENTS)
    command = [str(environment_python(NAME)), "-P", "-m", "iree.compiler.tools.import_onnx", str(model), "-o",
               str(output), "--opset-version", OPSET]  # fmt: skip
    variables = os.environ | {"PYTHONPATH": ""}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    if done.returncode or not output.exists():
        raise ModelError(f"IREE's importer refuses the model: {_reason(done.stderr)}; choose another dialect")


def compile_module(source: str | Path, flags: Sequence[str], output: Path | None = None) -> str:
    """Run `iree-compile` on a module, text or a file; return what it prints without an `output`.

    Raises:
        DialectError: it is refused, or the compiler dies of it.
    """
    check_environment(NAME, REQUIREMENTS)
    program = site_packages(NAME) / "iree" / "compiler" / "_mlir_libs" / "iree-compile"
    command = [str(program), "-" if isinstance(source, str) else str(source), *flags, "-o", str(output or "-")]
    text = source if isinstance(source, str) else None
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        what = f"dies of signal {-done.returncode}" if done.returncode < 0 else "refuses this"
        raise DialectError(f"iree-compile {what}: {_reason(done.stderr)}")
    return done.stdout


def cpu_flags(mcpu: str) -> tuple[str, ...]:
    """Return what tells the compiler which processor to make code for."""
    return ("--iree-hal-target-backends=llvm-cpu", f"--iree-llvmcpu-target-cpu={mcpu}")


@lru_cache(maxsize=8)
def device_line(mcpu: str) -> str:
    """Return how a module at the phase `flow` names the device, for a processor.

    Raises:
        TargetError: the compiler knows no such processor.
    """
    if not _PROCESSOR.fullmatch(mcpu):
        raise TargetError(f"{mcpu!r:.60} is no name of a processor; write native, or another name")
    try:
        text = compile_module(_PROBE, [*cpu_flags(mcpu), "--compile-to=flow"])
    except DialectError as error:
        raise TargetError(f"IREE has no processor {mcpu!r:.60}: {error}; write native, or another name") from error
    found = re.search(r"^ *util\.global private @__device_0 = .*$", text, re.MULTILINE)
    if found is None:
        raise TargetError(f"IREE {VERSION} does not tell what it makes code for; install its environment again")
    return found.group(0)


def native_processor() -> str:
    """Return what IREE calls this machine's processor."""
    found = re.search(r'\bcpu = "([^"]+)"', device_line("host"))
    return found.group(1) if found else "host"


def _reason(stderr: str) -> str:
    """Return the first error of a compiler's many lines, in one."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [re.sub(r"^.*?error: ", "", line) for line in lines if "error: " in line]
    return " ".join((errors or lines[-1:] or ["it says nothing"])[0].split())[:240]
