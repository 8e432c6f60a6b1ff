"""A private copy of a SQLite store that cannot be written: the file, its directory or the whole disk is read-only.

SQLite reads a write-ahead log only with a second file beside it that it may write. So a store is copied, and the copy
is an ordinary store: it can be migrated, and takes in what a delivery would remember for the next one.
"""

import os
import shutil
import sqlite3
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path

from tunery._errors import StoreError
from tunery._locks import hold_directory, is_held
from tunery._outputs import is_running

_PREFIX = "tunery-store-"
_ATTEMPTS, _PAUSE_S = 20, 0.1


def is_read_only(path: Path) -> bool:
    """Return whether a store at `path` cannot be written or made; its log needs the directory as well."""
    path = path.resolve()
    places = (path, path.parent) if path.exists() else (next(each for each in path.parents if each.exists()),)
    return not all(os.access(place, os.W_OK) for place in places)


class Snapshot:
    """A copy of the store at `path` as it was at one moment; it lies in a temporary directory until `close`.

    Where there is no store, an empty one is made there.

    Raises:
        StoreError: the store cannot be read, or there is no room for a copy.
    """

    def __init__(self, path: Path) -> None:
        _sweep(Path(tempfile.gettempdir()))
        self._directory = tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{os.getpid()}-")
        self.path = Path(self._directory.name, "store.db")
        self._held = hold_directory(self.path.parent)
        try:
            if path.exists():
                _copy(path.resolve(), self.path)
        except OSError as error:
            self.close()
            raise StoreError(
                f"{path} is read-only, and cannot be copied to {self._directory.name} ({error.strerror}); make room "
                "there, or set TMPDIR to another directory"
            ) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._directory.cleanup()
        if self._held >= 0:
            os.close(self._held)
            self._held = -1


def _copy(path: Path, to: Path) -> None:
    try:
        _backup(path, to)
    except sqlite3.OperationalError as error:
        if not error.sqlite_errorname.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY")):
            raise
        _copy_files(path, to)  # nobody has it open, so what its log needs is not there


def _backup(path: Path, to: Path) -> None:
    """Copy a store that others may be writing."""
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as source, closing(sqlite3.connect(to)) as made:
        source.backup(made)


def _copy_files(path: Path, to: Path) -> None:
    """Copy the database and the log that a killed process may have left; again if somebody has written meanwhile."""
    for _ in range(_ATTEMPTS):
        before = _state(path)
        for suffix in ("", "-wal"):
            copy = Path(f"{to}{suffix}")
            copy.unlink(missing_ok=True)
            with suppress(FileNotFoundError):
                shutil.copyfile(f"{path}{suffix}", copy)
        if before == _state(path):
            return
        time.sleep(_PAUSE_S)
    raise StoreError(f"{path} is read-only here, and others write it all the time; try again, or copy it yourself")


def _state(path: Path) -> list[tuple[int, int, int]]:
    found = []
    for suffix in ("", "-wal"):
        with suppress(FileNotFoundError):
            now = Path(f"{path}{suffix}").stat()
            found.append((now.st_ino, now.st_size, now.st_mtime_ns))
    return found


def _sweep(directory: Path) -> None:
    """Remove the copies of processes that were killed."""
    for left in directory.glob(f"{_PREFIX}*"):
        pid = left.name.removeprefix(_PREFIX).partition("-")[0]
        if pid.isdigit() and not is_running(int(pid)) and not is_held(left):
            shutil.rmtree(left, ignore_errors=True)
