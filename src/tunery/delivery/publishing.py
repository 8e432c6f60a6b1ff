"""Handing out a finished file: at its place there is the old one or the new one, never a part."""

import errno
import glob
import os
import shutil
from contextlib import suppress
from pathlib import Path

from tunery._errors import UsageError


def publish(made: Path, output: Path) -> None:
    """Bring `made` to `output` in one step, durably; what killed processes left beside it is removed.

    `made` may be gone then: on the same filesystem nothing is copied.

    Raises:
        UsageError: `output` cannot be written; what was there is still there.
    """
    part = output.with_name(f".{output.name}.{os.getpid()}.part")
    _sweep(output)
    try:
        _bring(made, part)
        with part.open("rb") as whole:
            os.fsync(whole.fileno())
        part.replace(output)
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror}; choose another place with -o") from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def _bring(made: Path, part: Path) -> None:
    try:
        made.replace(part)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        with made.open("rb") as source, part.open("wb") as copy:
            shutil.copyfileobj(source, copy, 1 << 20)


def _sweep(output: Path) -> None:
    for left in output.parent.glob(f".{glob.escape(output.name)}.*.part"):
        pid = left.name.split(".")[-2]
        if pid.isdigit() and not Path("/proc", pid).exists():
            with suppress(OSError):
                left.unlink()
