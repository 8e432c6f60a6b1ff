"""IREE's own programs, in the environment of this dialect."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from tunery._environments import check_environment, environment_python, site_packages
from tunery._errors import DialectError, ModelError, TargetError
from tunery._processor import ARM_BEGINNINGS
from tunery._sandbox import SYSTEM, run
from tunery.domain.closed_target import closed

NAME, VERSION = "iree", "3.13.0"
REQUIREMENTS = (f"iree-base-compiler[onnx]=={VERSION}", f"iree-base-runtime=={VERSION}")
OPSET = "17"
"""The importer is made for this version of ONNX's operators: it upgrades what is older."""
_PROBE = "func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {\n  return %x : tensor<4xf32>\n}\n"


def import_onnx(model: Path, output: Path) -> None:
    check_environment(NAME, REQUIREMENTS)
    command = [str(environment_python(NAME)), "-P", "-m", "iree.compiler.tools.import_onnx", str(model), "-o",
               str(output), "--opset-version", OPSET]  # fmt: skip
    done = _run(command, [model.resolve().parent], output)
    if done.returncode or not output.exists():
        raise ModelError(f"IREE's importer refuses the model: {_reason(done.stderr)}; choose another dialect")


def compile_module(source: str | Path, flags: Sequence[str], output: Path | None = None) -> str:
    check_environment(NAME, REQUIREMENTS)
    program = site_packages(NAME) / "iree" / "compiler" / "_mlir_libs" / "iree-compile"
    command = [str(program), "-" if isinstance(source, str) else str(source), *flags, "-o", str(output or "-")]
    text = source if isinstance(source, str) else None
    done = _run(command, [] if text is not None else [source], output, text)
    if done.returncode:
        what = f"dies of signal {-done.returncode}" if done.returncode < 0 else "refuses this"
        raise DialectError(f"iree-compile {what}: {_reason(done.stderr)}")
    return done.stdout


def _run(
    command: Sequence[str], readable: Sequence[str | Path], output: Path | None, text: str | None = None
) -> subprocess.CompletedProcess[str]:
    installed: list[str | Path] = [environment_python(NAME).parents[1], sys.base_prefix]
    with tempfile.TemporaryDirectory(prefix="tunery-iree-") as scratch:  # where it compiles what it evaluates
        variables = os.environ | {"PYTHONPATH": "", "TMPDIR": scratch, "PYTHONDONTWRITEBYTECODE": "1"}
        writable: list[str | Path] = [scratch, *([output.parent] if output else [])]
        return run(command, [*SYSTEM, *installed, *readable], writable, text=text, environment=variables)


def cpu_flags(config: Mapping[str, Any]) -> tuple[str, ...]:
    closed(config)
    flags = ["--iree-hal-target-backends=llvm-cpu"]
    if "mtriple" in config:
        flags.append(f"--iree-llvmcpu-target-triple={config['mtriple']}")
    flags.append(f"--iree-llvmcpu-target-cpu={config['mcpu']}")
    if config.get("mattr"):
        flags.append(f"--iree-llvmcpu-target-cpu-features={','.join(config['mattr'])}")
    return tuple(flags)


def device_line(config: Mapping[str, Any]) -> str:
    """Return how a module at the phase `flow` names the device, for a target's processor."""
    return _device_line(cpu_flags(config))


@lru_cache(maxsize=8)
def _device_line(flags: tuple[str, ...]) -> str:
    try:
        text = compile_module(_PROBE, [*flags, "--compile-to=flow"])
    except DialectError as error:
        said = next(flag for flag in flags if "target-cpu=" in flag).partition("=")[2]
        raise TargetError(f"IREE has no processor {said!r:.60}: {error}; write native, or another name") from error
    found = re.search(r"^ *util\.global private @__device_0 = .*$", text, re.MULTILINE)
    if found is None:
        raise TargetError(f"IREE {VERSION} does not tell what it makes code for; install its environment again")
    return found.group(0)


def native_processor() -> str:
    found = re.search(r'\bcpu = "([^"]+)"', device_line({"mcpu": "host"}))
    return found.group(1) if found else "host"


def instructions(config: Mapping[str, Any]) -> set[str]:
    found = re.search(r'\bcpu_features = "([^"]*)"', device_line(config))
    names = (name.removeprefix("+") for name in (found[1] if found else "").split(","))
    return {name for name in names if name.startswith(ARM_BEGINNINGS)}


def _reason(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [re.sub(r"^.*?error: ", "", line) for line in lines if "error: " in line]
    return " ".join((errors or lines[-1:] or ["it says nothing"])[0].split())[:240]


_O3 = "--iree-opt-level=O3"
_CHANNELS_LAST = (
    "--iree-preprocessing-pass-pipeline=builtin.module(util.func(iree-preprocessing-convert-conv-to-channels-last))"
)
_IM2COL = "--iree-global-opt-use-im2col-for-convs"
TUNED = (_O3, _CHANNELS_LAST, _IM2COL)
"""Those that tasks are taken with: convolutions become products of matrices, which configurations are searched for."""
FLAGS: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "O3": (_O3,),
    "data-tiling": (_O3, "--iree-opt-data-tiling"),
    "channels-last": (_O3, _CHANNELS_LAST),
    "im2col": TUNED,
    "im2col-data-tiling": (*TUNED, "--iree-opt-data-tiling"),
}
_ROOM = ("--iree-llvmcpu-fail-on-large-vector=false", "--iree-llvmcpu-stack-allocation-limit=131072")
"""Without more than the 32 KiB of a stack that IREE allows itself, it refuses data tiling for many networks."""
SEARCHED: Mapping[str, tuple[str, ...]] = {
    "larger-stack": (*FLAGS["im2col-data-tiling"], *_ROOM),
    "microkernels": (*FLAGS["im2col-data-tiling"], *_ROOM, "--iree-llvmcpu-enable-ukernels=all"),
}
"""What is tried beside them. Microkernels (IREE's own code for single tiles) gain on some networks, lose on others."""
REWRITTEN = (
    *FLAGS["channels-last"],
    "--iree-opt-data-tiling",
    *_ROOM,
    "--iree-opt-outer-dim-concat=false",  # slices side by side are not to be transposed first
)
"""What is told of a network that `rewriting` wrote."""
REWRITINGS: Mapping[str, bool] = {"rewritten": True, "rewritten-direct": False}
"""How a network is rewritten, where that makes another one: with Winograd's algorithm or without."""
