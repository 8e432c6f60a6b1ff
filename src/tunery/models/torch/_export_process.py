"""Saved torch programs: converted to ONNX in a process of their own, since torch and a compiler never share one."""

import importlib.metadata
import importlib.util
import mmap
import os
import shlex
import subprocess
import sys
from pathlib import Path

from tunery._errors import ModelError
from tunery.domain import digest
from tunery.models._files import open_regular

EXPORT_TIMEOUT_S = 900.0
_MOST_BYTES = 16_000_000_000
_NEEDED = ("torch", "onnxscript")


def export(path: Path, directory: Path) -> Path:
    """Convert a saved ExportedProgram and return the ONNX file, kept in `directory` under the content of the program.

    Raises:
        ModelError: the file is missing, torch is not installed, or torch cannot load or convert the program.
    """
    content = content_of(path)
    target = directory / f"{content}.export.onnx"
    if target.exists():
        return target
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        what, advice = " and ".join(missing), f"pip install {shlex.join(_extra())}"
        raise ModelError(f"{str(path)!r} is a torch program and needs {what}, not installed; {advice}")
    command = [sys.executable, "-m", "tunery.models.torch._export", str(path), str(target)]
    # The child watches this pipe, which nobody writes to, and ends with this process, however that one is killed.
    reading, writing = os.pipe()
    try:
        done = subprocess.run(
            command, stdin=reading, capture_output=True, text=True, timeout=EXPORT_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise ModelError(
            f"torch took more than {EXPORT_TIMEOUT_S:.0f} s to convert {str(path)!r}; export it to ONNX yourself"
        ) from None
    finally:
        os.close(reading)
        os.close(writing)
    if done.returncode or not target.exists():
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        reason = lines[-1][:300] if lines else f"exit code {done.returncode}"
        raise ModelError(
            f"torch cannot convert {str(path)!r}: {reason}; save it with torch.export.save, by a torch near this one"
        )
    return target


def content_of(path: Path) -> str:
    """Return the digest of a saved program.

    Raises:
        ModelError: the file is missing, no file, or too large.
    """
    with open_regular(path, _MOST_BYTES, "a saved program has at most 16 GB; check the file") as file:
        if not os.fstat(file.fileno()).st_size:
            raise ModelError(f"{str(path)!r} is empty; save it again with torch.export.save")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return digest(content)


def _extra() -> list[str]:
    """Return what the extra `torch` asks for; named one by one, as no index need have a package called tunery."""
    lines = [line.partition(";") for line in importlib.metadata.requires("tunery") or ()]
    return [need.strip() for need, _, marker in lines if marker.strip() in {'extra == "torch"', "extra == 'torch'"}]
