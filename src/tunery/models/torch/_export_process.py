"""Saved torch programs: converted to ONNX in a process of their own, since torch and a compiler never share one."""

import errno
import importlib.machinery
import mmap
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tunery._errors import ModelError
from tunery._extras import pip_install
from tunery.domain import digest
from tunery.models._files import SCRATCH, open_regular, shown
from tunery.models.torch._export import DISK_FULL, NEEDS_TRUST

EXPORT_TIMEOUT_S = 900.0
_MOST_BYTES = 16_000_000_000
_TAIL_BYTES = 8192
_KEPT = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH")
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # a process with threads cannot leave the network
_NEEDED = ("torch", "onnxscript")


def export(path: Path, directory: Path, *, trust: bool = False) -> Path:
    """Convert a saved ExportedProgram and return the ONNX file, kept in `directory` under the content of the program.
    The process that does it has no network, no home directory and none of this one's environment. Code that the program
    holds runs there only with `trust`."""
    content = content_of(path)
    target = directory / f"{content}.export.onnx"
    if target.exists():
        return target
    # Not `find_spec`, which says that a module is absent where this process may not import it.
    missing = [name for name in _NEEDED if importlib.machinery.PathFinder.find_spec(name) is None]
    if missing:
        what, advice = " and ".join(missing), pip_install("torch")
        raise ModelError(f"{shown(path)} is a torch program and needs {what}, not installed; {advice}")
    with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=directory) as scratch:
        code, said = _run(path.resolve(), Path(scratch).resolve(), trust=trust)
        made = Path(scratch, "model.onnx")
        if code == 0 and made.is_file() and not made.is_symlink():
            made.replace(target)
            return target
    if code == DISK_FULL:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(directory))
    if code == NEEDS_TRUST:
        raise ModelError(
            f"{shown(path)} {said}: loading it can run code of its author; if you would let them run a program here, "
            "add --trust (in Python: load(..., trust=True))"
        )
    raise ModelError(
        f"torch cannot convert {shown(path)}: {said}; save it with torch.export.save, by a torch near this one"
    )


def _run(path: Path, scratch: Path, *, trust: bool) -> tuple[int, str]:
    command = [sys.executable, "-P", "-m", "tunery.models.torch._export", str(path), str(scratch), *["--trust"] * trust]
    log = scratch / "log"
    # The child watches this pipe, which nobody writes to, and ends with this process, however that one is killed.
    reading, writing = os.pipe()
    try:
        with log.open("wb") as output:
            done = subprocess.run(
                command, stdin=reading, stdout=output, stderr=output, timeout=EXPORT_TIMEOUT_S, check=False,
                env=_variables(scratch), cwd=scratch,
            )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ModelError(
            f"torch took more than {EXPORT_TIMEOUT_S:.0f} s to convert {shown(path)}; export it to ONNX yourself"
        ) from None
    finally:
        os.close(reading)
        os.close(writing)
    with log.open("rb") as output:
        output.seek(max(0, output.seek(0, os.SEEK_END) - _TAIL_BYTES))
        lines = [line for line in output.read().decode(errors="replace").splitlines() if line.strip()]
    return done.returncode, lines[-1][:300] if lines else f"exit code {done.returncode}"


def _variables(scratch: Path) -> dict[str, str]:
    """Return the environment of the conversion: no secrets of this one's, and an empty directory for a home."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    own = dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"), str(scratch))
    path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path if entry)
    return {**kept, **own, **_ONE_THREAD, "PYTHONPATH": path, "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def content_of(path: Path) -> str:
    with open_regular(path, _MOST_BYTES, "a saved program has at most 16 GB; check the file") as file:
        if not os.fstat(file.fileno()).st_size:
            raise ModelError(f"{str(path)!r} is empty; save it again with torch.export.save")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return digest(content)
