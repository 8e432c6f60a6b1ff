"""Files that a user names, or that a model names: what they are is checked before a byte is read."""

import os
import shlex
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from tunery._archive import Archive, ArchiveError
from tunery._errors import ModelError
from tunery.models import zoo

SCRATCH = ".scratch-"
"""How the names of temporary directories beside prepared models begin."""
_SHOWN = 300
_DEEPEST, _LONGEST_PART = 8, 200
_KINDS = (
    (stat.S_ISDIR, "a directory"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)  # fmt: skip


def check(model: str) -> None:
    """Check what the name of a model tells by itself, and what kind of file it is, at no cost."""
    if model.startswith(zoo.PREFIX):
        zoo.parts(model.removeprefix(zoo.PREFIX))
        return
    unknown = not os.path.exists(model)  # noqa: PTH110 - of a name that is too long, a Path only raises
    if unknown and any(entry.name == model.partition("@")[0] for entry in zoo.names()):
        meant = shlex.quote(f"zoo:{model}")
        raise ModelError(f"there is no file {model!r}, but the zoo has a network of that name; write {meant}")
    with open_regular(Path(model), sys.maxsize, ""):
        pass
    refuse_compiled(Path(model))


@contextmanager
def open_regular(path: Path, most_bytes: int, too_large: str) -> Iterator[IO[bytes]]:
    """Open a regular file of at most `most_bytes` for reading; `too_large` says what to do about a larger one."""
    try:
        # A pipe without a writer would hold up the opening itself.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise ModelError(
            f"there is no file {shown(path)}; give an .onnx or .pt2 file, or a zoo:NAME from `tunery zoo list`"
        ) from None
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else "") or str(error)
        raise ModelError(f"{shown(path)} cannot be read: {reason}; check its name and permissions") from None
    try:
        _check(path, os.fstat(descriptor), most_bytes, too_large)
    except ModelError:
        os.close(descriptor)
        raise
    with os.fdopen(descriptor, "rb") as file:
        yield file


def _check(path: Path, found: os.stat_result, most_bytes: int, too_large: str) -> None:
    if not stat.S_ISREG(found.st_mode):
        what = next((name for is_kind, name in _KINDS if is_kind(found.st_mode)), "no file")
        raise ModelError(f"{shown(path)} is {what}; give the .onnx or .pt2 file itself")
    if found.st_size > most_bytes:
        raise ModelError(f"{shown(path)} has {gigabytes(found.st_size)}; {too_large}")


def refuse_compiled(path: Path) -> None:
    with suppress(ArchiveError, OSError, ValueError), Archive(path) as archive:
        if "dialect" in archive.manifest:
            raise ModelError(
                f"{shown(path)} is a compiled network, not a model; give the model that it was made from "
                "(`tunery inspect` shows what is in it)"
            )


def read_regular(path: Path, most_bytes: int, too_large: str) -> bytes:
    with open_regular(path, most_bytes, too_large) as file:
        try:
            return file.read(os.fstat(file.fileno()).st_size)
        except OSError as error:
            raise ModelError(f"{shown(path)} cannot be read: {error.strerror}; check the disk") from None


def is_inside(name: str) -> bool:
    parts = name.split("/")
    plain = name.isprintable() and "\\" not in name and len(parts) <= _DEEPEST
    return plain and all(part.strip(" .") and len(part.encode()) <= _LONGEST_PART for part in parts)


def shown(path: Path) -> str:
    text = str(path)
    return repr(text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]}...{text[-_SHOWN // 2 :]}")


def gigabytes(size: int) -> str:
    return f"{size / 1e9:.3g} GB"
