"""Blobs whose releases others follow."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from typing_extensions import override

from tunery.blobs import BlobPlace, Blobs


class FollowedBlobs(Blobs):
    """The blobs `home`; each of `followers` hears of a blob that is released, to drop its copies on other hosts.

    Whoever made `home` closes it.
    """

    def __init__(self, home: Blobs, followers: Sequence[Callable[[str], object]]) -> None:
        self._home, self._followers = home, followers

    @override
    def put(
        self, source: bytes | Path, *, temporary: bool = False, move: bool = False, sync: bool = True, known: str = ""
    ) -> str:
        return self._home.put(source, temporary=temporary, move=move, sync=sync, known=known)

    @override
    def get(self, digest: str, *, verify: bool = False) -> Path:
        return self._home.get(digest, verify=verify)

    @override
    def has(self, digest: str) -> bool:
        return self._home.has(digest)

    @override
    def release(self, digest: str) -> None:
        self._home.release(digest)
        for follower in self._followers:
            follower(digest)

    @override
    def take(self, digest: str, path: Path) -> None:
        self._home.take(digest, path)
        for follower in self._followers:
            follower(digest)

    @override
    def remember(self, key: str, digest: str) -> None:
        self._home.remember(key, digest)

    @override
    def find(self, key: str) -> str | None:
        return self._home.find(key)

    @override
    def scratch(self) -> AbstractContextManager[Path]:
        return self._home.scratch()

    @override
    def sweep(self) -> int:
        return self._home.sweep()

    @property
    @override
    def place(self) -> BlobPlace | None:
        return self._home.place

    @override
    def close(self) -> None:
        """Nothing: `home` is closed by who made it."""
