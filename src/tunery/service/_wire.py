"""What daemon and clients say to each other: one JSON object a line, data only.

A connection carries one request, `{"do": ...}`, and its answers: `{"job": ...}`, any number of `{"progress": ...}`,
then `{"status": ...}`, or at any time one `{"error": ..., "usage": ...}`, which is the last line.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from tunery._errors import UsageError, misfit
from tunery._settings import socket_place
from tunery.reports.data import plain

T = TypeVar("T")
VARIABLE = "TUNERY_SOCKET"
MOST_BYTES = 1 << 18
_LONGEST_PATH = 100  # of a unix socket's address, with some room for the lock's name


def socket_path(chosen: str = "") -> Path:
    """Return where this user's daemon listens: `chosen`, TUNERY_SOCKET, or a place in the user's runtime directory.

    Raises:
        UsageError: the path is too long for a socket.
    """
    path = Path(chosen) if chosen else socket_place()
    if len(os.fsencode(path.absolute())) > _LONGEST_PATH:
        raise UsageError(f"the socket's path {path} is too long; choose a shorter one with --socket or {VARIABLE}")
    return path.absolute()


def line(message: Mapping[str, Any]) -> bytes:
    """Return a message as it is sent."""
    return json.dumps(plain(message), allow_nan=False).encode() + b"\n"


def read_as(kind: type[T], data: object) -> T:
    """Return `data` as a dataclass, without guessing: every key known, every value of its type.

    Raises:
        UsageError: it is not one.
    """
    _check_keys(kind, data)
    try:
        found: T = TypeAdapter(kind).validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        raise UsageError(f"the {_words(kind)}'s {misfit(error.errors())}") from error
    return found


def _check_keys(kind: type[object], data: object) -> None:
    """Refuse what has a key that `kind` lacks, or that one of its parts lacks: pydantic ignores those.

    Raises:
        UsageError: there is one, or `data` is no object at all.
    """
    known = {field.name: field.type for field in fields(kind)}  # type: ignore[arg-type]
    if not isinstance(data, dict) or not data.keys() <= known.keys():
        raise UsageError(f"a {_words(kind)} is an object with the keys {', '.join(sorted(known))}")
    for name, part in known.items():
        if is_dataclass(part) and isinstance(part, type) and name in data:
            _check_keys(part, data[name])


def _words(kind: type[object]) -> str:
    """Return a class's name as words: ShareRequest is a "share request"."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", kind.__name__).lower()
