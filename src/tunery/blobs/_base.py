"""The contract of a host's blobs; `tunery.testing.blob_contract` is its test-suite."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tunery._errors import BlobError

_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class BlobPlace:
    """How another process of this host joins a lease on its blobs: never sent to another host."""

    directory: str
    lease: str
    limit_bytes: int


class Blobs(ABC):
    """One user's view of the blobs of a host: what it puts and gets is in use by it until it is released.

    A blob in use is never removed. Others are removed, the least recently used first, where all that is kept exceeds a
    limit. Processes that work together share one view, so that one of them may release what another has put. A blob is
    never changed: its path is for reading.

    Example:
        digest = blobs.put(b"the bytes")
        assert blobs.get(digest).read_bytes() == b"the bytes"
    """

    @abstractmethod
    def put(
        self, source: bytes | Path, *, temporary: bool = False, move: bool = False, sync: bool = True, known: str = ""
    ) -> str:
        """Store bytes, or what is in a file, and return their SHA-256 as 64 hexadecimal digits.

        A `temporary` blob is seen by this view alone and ends with its release; it is for what can be made again. With
        `move` the file `source` may be gone afterwards, and nothing is copied on one file system. Without `sync` the
        disk is not waited for: after a power cut the blob may be damaged, which `get` notices if it verifies. The
        digest of a file that is moved is not computed where it is `known`.

        Raises:
            BlobError: it cannot be written, as on a full disk; nothing is left of it.
            OSError: the file `source` cannot be read.
        """

    @abstractmethod
    def get(self, digest: str, *, verify: bool = False) -> Path:
        """Return the path of a file with the blob, which stays there until the blob is released.

        With `verify` its bytes are hashed; a damaged blob is removed and counts as missing.

        Raises:
            BlobNotFoundError: it is not here.
        """

    @abstractmethod
    def has(self, digest: str) -> bool:
        """Return whether `get` would find the blob now."""

    @abstractmethod
    def release(self, digest: str) -> None:
        """Say that a blob is no longer in use by this view, if it was; a temporary one is gone with that."""

    @abstractmethod
    def take(self, digest: str, path: Path) -> None:
        """Bring a blob's bytes to the new file `path`, which is the caller's own, and release the blob.

        A temporary blob is moved if it can be.

        Raises:
            BlobNotFoundError: it is not here.
            OSError: `path` cannot be written.
        """

    @abstractmethod
    def remember(self, key: str, digest: str) -> None:
        """Let `find` return this blob for `key`, as long as it is here; of two blobs for one key the later counts.

        For what would be made again otherwise: `key` says all that the blob depends on.
        """

    @abstractmethod
    def find(self, key: str) -> str | None:
        """Return the digest that was remembered for `key`, and bring that blob into use.

        None where nothing was remembered, or its blob is not here any more.
        """

    @abstractmethod
    def scratch(self) -> AbstractContextManager[Path]:
        """Give an empty directory from which `put` moves without copying; it ends with the block, or this view."""

    @abstractmethod
    def sweep(self) -> int:
        """Remove what dead processes left and what exceeds the limit; return how many bytes were removed.

        Done by itself now and then; nothing happens while another process does it.
        """

    followers: tuple[Callable[[str], object], ...] = ()
    """What hears of each blob that is released, as to drop its copies on another host."""

    def tell_followers(self, digest: str) -> None:
        """Called by `release`, and by `take`, when a blob was released."""
        for follower in self.followers:
            follower(digest)

    @property
    def place(self) -> BlobPlace | None:
        """How other processes of this host share this view; None where they cannot."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Release everything. The view is not used afterwards."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def check_digest(digest: str) -> str:
    """Return a digest that is well formed; others never become part of a path.

    Raises:
        BlobError: it is no SHA-256 in lower-case hexadecimal digits.
    """
    if not _DIGEST.fullmatch(digest):
        raise BlobError(f"{digest!r} names no blob; a name is a SHA-256 of 64 hexadecimal digits")
    return digest
