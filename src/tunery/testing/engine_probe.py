"""The service that the contract suite calls: everything here works in every engine."""

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from tunery._errors import DialectError, ModelError, TargetError
from tunery.blobs import Blobs
from tunery.domain import BlobDigest


class Colour(StrEnum):
    """An enum that crosses the border."""

    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Parcel:
    """One of each kind of plain data."""

    colour: Colour
    blob: bytes
    path: Path
    numbers: tuple[float, ...]
    nested: Mapping[str, tuple[int, ...]]
    maybe: float | None = None
    loose: Mapping[str, Any] | None = None


class Probe:
    """Echoes, counts, waits and fails on request."""

    def __init__(self, blobs: Blobs, first: int = 0, home: Path | None = None) -> None:
        self._blobs = blobs
        self._count = first
        self._home = home

    def echo(self, parcel: Parcel) -> Parcel:
        assert type(parcel) is Parcel
        return parcel

    def echo_bytes(self, data: bytes) -> bytes:
        return data

    def echo_float(self, value: float) -> float:
        return value

    def echo_many(self, parcels: list[Parcel], colour: Colour | None = None) -> tuple[list[Parcel], Colour | None]:
        return parcels, colour

    def home(self) -> Path | None:
        return self._home

    def reverse(self, digest: BlobDigest) -> BlobDigest:
        """Return the digest of a blob that holds another's bytes backwards."""
        return self._blobs.put(self._blobs.get(digest).read_bytes()[::-1], temporary=True)

    def count(self) -> int:
        """Return how often it was called, from `first` on."""
        self._count += 1
        return self._count

    def sleep(self, seconds: float) -> float:
        """Wait, then return how long."""
        time.sleep(seconds)
        return seconds

    def meet(self, mine: Path, other: Path) -> bool:
        """Leave a file for another worker and wait for its: true only where two calls run at the same time."""
        mine.touch()
        for _ in range(2000):
            if other.exists():
                return True
            time.sleep(0.01)
        return False

    def burn(self, seconds: float) -> int:
        """Use CPU time and return the process id."""
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            pass
        return os.getpid()

    def where(self) -> tuple[int, int]:
        return os.getpid(), threading.get_ident()

    def fail(self, kind: str, message: str) -> None:
        kinds: dict[str, type[Exception]] = {"model": ModelError, "target": TargetError, "dialect": DialectError}
        raise kinds.get(kind, ValueError)(message)

    def lie(self) -> int:
        return "not a number"  # type: ignore[return-value]


class Stillborn:
    """A service that cannot be created."""

    def __init__(self) -> None:
        raise KeyError("nothing to start from")

    def count(self) -> int:
        return 0
