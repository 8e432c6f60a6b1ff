"""Blobs in memory, for tests: files appear where somebody asks for a path."""

import hashlib
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path

from typing_extensions import override

from tunery._errors import BlobNotFoundError
from tunery.blobs._base import Blobs, check_digest


class FakeBlobs(Blobs):
    """One process's blobs; the least recently used are removed where all that is kept exceeds `limit_bytes`."""

    def __init__(self, limit_bytes: int = 1 << 30) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.RLock()  # an engine's services may live on threads
        self._kept: dict[str, bytes] = {}  # the least recently used first
        self._temporary: dict[str, bytes] = {}
        self._in_use: set[str] = set()
        self._names: dict[str, str] = {}
        self._stack = ExitStack()
        self._end = weakref.finalize(self, self._stack.close)

    @cached_property
    def _files(self) -> Path:
        """The directory of what was asked for as a file, made when it is needed first."""
        made = Path(tempfile.mkdtemp(prefix="tunery-"))
        self._stack.callback(shutil.rmtree, made, ignore_errors=True)
        return made

    @override
    def put(
        self, source: bytes | Path, *, temporary: bool = False, move: bool = False, sync: bool = True, known: str = ""
    ) -> str:
        with self._lock:
            data = source if isinstance(source, bytes) else source.read_bytes()
            if move and isinstance(source, Path):
                source.unlink()
            digest = known or hashlib.sha256(data).hexdigest()
            if not temporary or digest not in self._kept:
                (self._temporary if temporary else self._kept)[digest] = data
            self._use(digest)
            return digest

    @override
    def get(self, digest: str, *, verify: bool = False) -> Path:
        with self._lock:
            if not self.has(digest):
                raise BlobNotFoundError(f"blob {digest} is not on this host", digest)
            self._use(digest)
            path = self._files / digest
            if not path.exists():
                path.write_bytes(self._kept[digest] if digest in self._kept else self._temporary[digest])
            if verify and hashlib.sha256(path.read_bytes()).hexdigest() != digest:
                path.unlink()
                for blobs in (self._kept, self._temporary):
                    blobs.pop(digest, None)
                raise BlobNotFoundError(f"blob {digest} was damaged and is removed; it has to be made again", digest)
            return path

    @override
    def has(self, digest: str) -> bool:
        return check_digest(digest) in self._kept or digest in self._temporary

    @override
    def release(self, digest: str) -> None:
        with self._lock:
            self._in_use.discard(check_digest(digest))
            self._temporary.pop(digest, None)
            if "_files" in vars(self):
                (self._files / digest).unlink(missing_ok=True)
        self.tell_followers(digest)

    @override
    def take(self, digest: str, path: Path) -> None:
        with self._lock:
            with path.open("xb") as file:
                file.write(self.get(digest).read_bytes())
            self.release(digest)

    @override
    def remember(self, key: str, digest: str) -> None:
        with self._lock:
            self._names[key] = digest

    @override
    def find(self, key: str) -> str | None:
        with self._lock:
            digest = self._names.get(key)
            if digest is None or not self.has(digest):
                return None
            self._use(digest)
            return digest

    @contextmanager
    @override
    def scratch(self) -> Iterator[Path]:
        with self._lock:
            path = Path(tempfile.mkdtemp(dir=self._files))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    @override
    def sweep(self) -> int:
        with self._lock:
            freed, total = 0, sum(map(len, self._kept.values()))
            for digest in [digest for digest in self._kept if digest not in self._in_use]:
                if total - freed <= self._limit_bytes:
                    break
                freed += len(self._kept.pop(digest))
            return freed

    @override
    def close(self) -> None:
        self._end()

    def _use(self, digest: str) -> None:
        self._in_use.add(digest)
        if digest in self._kept:
            self._kept[digest] = self._kept.pop(digest)
