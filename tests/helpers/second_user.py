"""A second user of the machine: programs under another account, and a directory in which both may write."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

OTHER = 65534  # nobody's, everywhere
# The other user may read what the installation needs, wherever it lies, and write nothing of ours.
_AS_OTHER = (
    "setpriv", f"--reuid={OTHER}", f"--regid={OTHER}", "--clear-groups", "--inh-caps=+dac_read_search",
    "--ambient-caps=+dac_read_search", "--pdeathsig=KILL", "--",
)  # fmt: skip


def needs_root() -> None:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs the right to act as another user")


@contextmanager
def shared_place() -> Iterator[Path]:
    """Yield a directory such as /tmp: everybody may write it, and nobody may remove what is another's."""
    place = Path(tempfile.mkdtemp(prefix="tunery-users-", dir="/tmp"))
    try:
        place.chmod(0o1777)
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def other_starts(command: Sequence[object], **more: Any) -> subprocess.Popen[str]:
    """Start a program as the other user."""
    more = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": "/"} | more
    return subprocess.Popen([*_AS_OTHER, *map(str, command)], text=True, **more)
