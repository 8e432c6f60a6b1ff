"""A user's file read in bounds; each fault is one sentence."""

import re
from pathlib import Path

from tunery._errors import ModelError

DIALECTS = {"c": "kernels", "opencl": "opencl", "cuda": "cuda"}
_LANGUAGE = re.compile(rb"""(?:^|[{,])\s*"?language"?\s*[=:]\s*["'](opencl|cuda)["']""", re.IGNORECASE | re.MULTILINE)


def dialect_of(source: str) -> str:
    try:
        with Path(source).open("rb") as file:
            found = _LANGUAGE.search(file.read(1 << 20))
    except (OSError, ValueError):
        found = None
    return DIALECTS[found[1].decode().lower() if found else "c"]


def read_bytes(path: Path, most: int, what: str) -> bytes:
    try:
        if not path.exists():
            raise ModelError(f"{what} {shown(path)} is not there; check its name")
        if not path.is_file():
            raise ModelError(f"{what} {shown(path)} is no file")
        with path.open("rb") as file:
            data = file.read(most + 1)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else "") or str(error)
        raise ModelError(f"{what} {shown(path)} cannot be read: {reason}") from None
    if len(data) > most:
        raise ModelError(f"{what} {shown(path)} has more than {most / 1e6:.3g} MB")
    return data


def shown(path: Path) -> str:
    text = str(path)
    return repr(text if len(text) <= 300 else f"{text[:150]}...{text[-150:]}")
