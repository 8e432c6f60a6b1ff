"""Output files: every file that a command or an API call writes for a user is written by this module.

`replacing` writes a file of our own, which nobody else puts there.

An output appears whole or not at all. It replaces an existing file only if that is an output of the same kind, or if
the user insists (`force`). It never replaces a file that the same command reads, a database, a device or a pipe.

A symbolic link is judged by what it points to. It is then replaced itself: nothing is written through a link.
"""

import errno
import os
import re
import shutil
import stat
import struct
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import IO, BinaryIO

from tunery._errors import UsageError

_HEAD_BYTES = 1 << 16
_DIRECTORY_BYTES = 1 << 20  # of a zip archive or a Parquet file: ours are far smaller, and nothing larger is read
_ROOM = 1 << 20
_STALE_S = 3600.0
_SQLITE = b"SQLite format 3\0"
_BESIDE_DATABASE = ("-wal", "-shm", "-journal")
_numbers = count()


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of output: its name for messages (`a compiled network`), and how a file of this kind is recognised."""

    name: str
    recognise: Callable[[BinaryIO], bool]


def check_room(directory: Path) -> None:
    with tempfile.TemporaryFile(dir=directory) as file:
        os.posix_fallocate(file.fileno(), 0, _ROOM)


def check_output(path: Path, kind: Kind, *, inputs: Iterable[Path] = (), force: bool = False) -> None:
    """`inputs` are the files that the same command reads or writes otherwise: the model, the store."""
    try:
        if not path.parent.is_dir():
            raise UsageError(f"there is no directory {str(path.parent)!r}; create it, or name another file")
        _refuse(path, kind, inputs, force=force)
        # The new file takes the old one's place, so the directory counts as well.
        if not os.access(path.parent, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
            raise UsageError(f"{str(path)!r} cannot be written; name another file")
    except OSError as error:
        raise _unwritable(path, error) from error


@contextmanager
def whole_file(path: Path, kind: Kind, *, inputs: Iterable[Path] = (), force: bool = False) -> Iterator[BinaryIO]:
    """Yield a file to write the output to; it takes its place at `path` in one step, durably, if the block succeeds."""
    inputs = tuple(inputs)
    check_output(path, kind, inputs=inputs, force=force)
    with _translated(path), _part_of(path) as (part, file):
        yield file
        file.flush()
        _refuse(path, kind, inputs, force=force)  # the work may have taken hours
        _install(part, file, path)


def publish(made: Path, path: Path, kind: Kind, *, inputs: Iterable[Path] = (), force: bool = False) -> None:
    """Move a finished file to `path` in one step, durably. `made` may be gone then: it is copied only if it must be."""
    inputs = tuple(inputs)
    check_output(path, kind, inputs=inputs, force=force)
    with _translated(path), _part_of(path) as (part, file):
        try:
            made.chmod(stat.S_IMODE(part.stat().st_mode))
            made.replace(part)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            with made.open("rb") as source:
                shutil.copyfileobj(source, file, 1 << 20)
            file.flush()
        _refuse(path, kind, inputs, force=force)
        with part.open("rb") as whole:
            _install(part, whole, path)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a place beside `path`; what the block writes there takes the place of `path` in one step, unless it fails.
    This is for files of our own, in our own directories: nobody checks what is at `path`, or waits for the disk."""
    part = _beside(path)
    try:
        yield part
        part.replace(path)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def _beside(path: Path) -> Path:
    return path.with_name(f".tunery.{os.getpid()}.{next(_numbers)}.part")


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> UsageError:
    return UsageError(f"cannot write {path}: {error.strerror or error}; name another file")


@contextmanager
def _part_of(path: Path) -> Iterator[tuple[Path, BinaryIO]]:
    _sweep(path.parent)
    part = _beside(path)
    try:
        with part.open("xb") as file:  # it is ours: an existing file or link of this name is an error
            yield part, file
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def _install(part: Path, file: IO[bytes], path: Path) -> None:
    with suppress(FileNotFoundError):
        part.chmod(stat.S_IMODE(path.stat().st_mode) & 0o777)  # whoever could read the old file can read the new one
    os.fsync(file.fileno())
    part.replace(path)
    with suppress(OSError):
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)  # sends nothing
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return pid > 0


def _sweep(directory: Path) -> None:
    """Remove what killed processes left; the age is for processes of other machines on a shared disk."""
    for left in directory.glob(".tunery.*.part"):
        pid = left.name.split(".")[2]
        with suppress(OSError):
            old = time.time() - left.lstat().st_mtime > _STALE_S
            if pid.isdigit() and old and not is_running(int(pid)):
                left.unlink()


def _refuse(path: Path, kind: Kind, inputs: Iterable[Path], *, force: bool) -> None:
    for other in inputs:
        if _same(path, other):
            raise UsageError(f"{str(path)!r} is what this command works on; name another file")
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:  # also a link to nothing
        if _is_beside_database(path):
            raise _database(path) from None
        return
    if not stat.S_ISREG(mode):  # a device or a pipe would be replaced by a file
        raise UsageError(f"{str(path)!r} is not a file; name another file")
    if _is_database(path) or _is_beside_database(path):
        raise _database(path)
    if not force and not _is_replaceable(path, kind):
        raise UsageError(
            f"{str(path)!r} is not {kind.name}, and would be lost; name another file, or replace it with --force"
        )


def _database(path: Path) -> UsageError:
    return UsageError(f"{str(path)!r} is a database or belongs to one, and is never replaced; name another file")


def _same(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except OSError:  # one of them is not there: a store may be created only later
        return path.resolve() == other.resolve()


def _is_database(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE


def _is_beside_database(path: Path) -> bool:
    for each in dict.fromkeys((path, path.resolve())):
        for suffix in _BESIDE_DATABASE:
            database = each.with_name(each.name.removesuffix(suffix) or each.name)
            if database != each and database.is_file() and _is_database(database):
                return True
    return False


def _is_replaceable(path: Path, kind: Kind) -> bool:
    with path.open("rb") as file:
        if not file.read(1):  # nothing is lost
            return True
        file.seek(0)
        return kind.recognise(file)


def begins_with(pattern: bytes) -> Callable[[BinaryIO], bool]:
    compiled = re.compile(pattern)
    return lambda file: compiled.match(file.read(_HEAD_BYTES)) is not None


def _is_network(file: BinaryIO) -> bool:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 22))
    tail = file.read(22)
    if len(tail) < 22 or tail[:4] != b"PK\5\6" or struct.unpack("<L", tail[12:16])[0] > _DIRECTORY_BYTES:
        return False
    try:
        with zipfile.ZipFile(file) as archive, archive.open("manifest.json") as manifest:
            return b'"dialect"' in manifest.read(_DIRECTORY_BYTES)
    except (zipfile.BadZipFile, KeyError, NotImplementedError, RuntimeError, EOFError, ValueError, zlib.error):
        return False


def _is_dataset(file: BinaryIO) -> bool:
    """Look for our key in the metadata at the end of a Parquet file."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 8))
    tail = file.read(8)
    if len(tail) < 8 or tail[4:] != b"PAR1":
        return False
    length = min(struct.unpack("<L", tail[:4])[0], 16 * _DIRECTORY_BYTES, size - 8)
    file.seek(size - 8 - length)
    return b"tunery" in file.read(length)


def _is_chart(file: BinaryIO) -> bool:
    """Look for an image's format and the library that drew it, which all three formats name near an end."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    head = file.read(_HEAD_BYTES)
    file.seek(max(0, size - _HEAD_BYTES))
    formats = (b"\x89PNG", b"<?xml", b"%PDF")
    return head.startswith(formats) and b"atplotlib" in head + file.read(_HEAD_BYTES)


TEXT = Kind("a text that tunery wrote", begins_with(rb"/\* [^\n]*made by tunery|\{\s*\"made by\": \"tunery"))
NETWORK = Kind("a compiled network", _is_network)
RECORDS = Kind("a file of exported records", begins_with(rb'\{"format":\s*"tunery-records"'))
RESULTS = Kind("a file of measured results", begins_with(rb'\{\s*"(device_name|schema_version)"'))
DATASET = Kind("a dataset of records", _is_dataset)
DATASET_CARD = Kind("a dataset's description", begins_with(rb'\{\s*"tunery": "dataset"'))
CHART = Kind("a chart", _is_chart)
PAGE = Kind("a report", begins_with(rb'<!doctype html>[^\n]{,80}<meta name="generator" content="made by tunery'))
