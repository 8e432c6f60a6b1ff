"""Commands run as an attacker, or an unkind machine, would have them run; what may come of it is one sentence."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from second_user import needs_root, other_starts

PATIENCE_S = 120.0
FAKE = ("--dialect", "fake", "--threads", "1")
GROUPS = Path("/sys/fs/cgroup/memory")

Change = Callable[[], None]


def places(directory: Path) -> dict[str, str]:
    """Return an environment in which everything of a user lies below `directory`, and nothing else is known."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "TUNERY_LOAD_WATCH") if name in os.environ}
    # A socket below a test's directory may be too long for one.
    return kept | {"HOME": str(directory / "home"), "TMPDIR": str(directory / "tmp"), "XDG_RUNTIME_DIR": "/nowhere"}


def run(
    directory: Path, *words: object, env: Mapping[str, str] | None = None, other: bool = False,
    change: Change | None = None, memory: int = 0, **more: Any,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """Run a command to its end; `change` is called in its process before it begins, and `memory` is all it may take."""
    for name in ("home", "tmp"):
        (directory / name).mkdir(exist_ok=True)
    command = [sys.executable, "-P", "-m", "tunery", *map(str, words)]
    given: dict[str, Any] = {"env": places(directory) | (env or {}), "cwd": directory, "stdin": subprocess.DEVNULL}
    with memory_group(memory) as join:
        started = _starter(other)(command, preexec_fn=lambda: (join(), change and change()), **(given | more))
        with started as process:
            try:
                out, err = process.communicate(timeout=PATIENCE_S)
            finally:
                process.kill()
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def _starter(other: bool) -> Callable[..., subprocess.Popen[str]]:
    def ours(command: Sequence[str], **more: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(command, text=True, **({"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | more))

    return other_starts if other else ours


def tune(directory: Path, *words: object, model: str = "fake:x", **more: Any) -> subprocess.CompletedProcess[str]:
    """Tune a network of the fake dialect in a few trials."""
    return run(directory, "tune", model, *FAKE, "--budget", "6trials", *words, **more)


def expect_done(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, (done.args, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr


def expect_refused(done: subprocess.CompletedProcess[str]) -> None:
    """The command has failed with one sentence, and none of it is our mistake."""
    said = done.stderr or done.stdout or ""
    assert done.returncode in {1, 2}, (done.args, done.returncode, said)
    assert "Traceback" not in said, said
    assert "internal error" not in said, said
    assert sum(line.startswith("error: ") for line in said.splitlines()) == 1, said


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[Change]:
    """Yield what moves a process into a control group with so much memory, where this process may make one."""
    group = GROUPS / f"tunery-test-{os.getpid()}"
    made = False
    if limit_bytes:
        with suppress(OSError):
            group.mkdir()
            made = True
            (group / "memory.limit_in_bytes").write_text(str(limit_bytes))

    def join() -> None:
        if made:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    try:
        yield join
    finally:
        with suppress(OSError):
            group.rmdir()


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """Yield a directory that is a small file system in memory."""
    needs_root()
    folder.mkdir(exist_ok=True)
    command = [shutil.which("mount") or "false", "-t", "tmpfs", "-o", options, "tmpfs", folder]
    if subprocess.run(command, check=False).returncode:
        pytest.skip("needs the right to mount a small file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
