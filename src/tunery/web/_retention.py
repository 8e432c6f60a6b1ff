"""What the service forgets by its age: events of jobs, uploads, and compiled files."""

import os
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tunery.reports.job import ANSWER, COMPARED, COMPILED, STAGES
from tunery.store import Store

LASTING = (ANSWER, COMPARED, COMPILED, STAGES, "began")
"""Kinds of events that are what a job has answered, and what its report shows."""


def forget(store: Store, files: Path, older_s: float) -> int:
    """Delete events older than so many seconds, and files that no job needs that may go on; return how many went.

    Records, jobs, answers and the ledger stay. Who asks for a file that went is told to upload or to compile again.
    """
    before = time.time() - older_s
    gone = store.events.forget(before, but=LASTING)
    needed = "\n".join(_files_of(request) for request in store.requests_to_do())
    places = (("blobs", 2), ("models", 1), ("kernels", 1), ("compiled", 1))
    for path in (path for name, depth in places for path in _children(files / name, depth)):
        if path.name not in needed and path.stat().st_mtime < before:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            gone += 1
    return gone


def touch(path: Path) -> None:
    """Note that a file is in use: it counts as new from now on."""
    os.utime(path)


def _files_of(request: Mapping[str, Any]) -> str:
    return f"{request.get('model', '')}\n{request.get('options', '')}"


def _children(directory: Path, depth: int) -> Iterator[Path]:
    return directory.glob("/".join(["*"] * depth))
