"""What the service forgets by its age: events of jobs, uploads, and compiled files."""

import os
import shutil
import time
from collections.abc import Collection, Iterator, Mapping
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
    gone = store.events.forget(time.time() - older_s, but=LASTING)
    return gone + forget_files(store, files, older_s, ("blobs", "models", "kernels", "compiled"))


def forget_files(
    store: Store, files: Path, older_s: float, kinds: Collection[str] = ("blobs", "models", "kernels")
) -> int:
    """Delete files of some kinds that nobody has used for so many seconds and no job needs that may go on."""
    before, gone = time.time() - older_s, list[str]()
    needed = "\n".join(_files_of(request) for request in store.requests_to_do())
    for path in (path for kind in kinds for path in _children(files / kind, 2 if kind == "blobs" else 1)):
        if path.name not in needed and path.stat().st_mtime < before:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            gone.append(path.name)
    store.accounts.drop_uploads(gone)
    return len(gone)


def sweep(files: Path) -> None:
    """Delete what uploads and exports left that were cut short; no other process has these files."""
    for path in (path for depth in range(1, 4) for path in _children(files, depth)):
        if path.name.startswith((".part-", ".export-")):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def touch(path: Path) -> None:
    """Note that a file is in use: it counts as new from now on."""
    os.utime(path)


def _files_of(request: Mapping[str, Any]) -> str:
    return f"{request.get('model', '')}\n{request.get('options', '')}"


def _children(directory: Path, depth: int) -> Iterator[Path]:
    return directory.glob("/".join(["*"] * depth))
