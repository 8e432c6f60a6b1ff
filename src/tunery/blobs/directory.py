"""Blobs in a directory, shared by any number of processes of one host.

    objects/ab/abcdef…       a kept blob; its modification time says when it was last used
    names/<hash of a key>    the digest that was remembered for the key
    leases/NAME/lock         locked as long as the lease's owner lives
    leases/NAME/objects/…    a hard link to each blob in use, and temporary blobs
    leases/NAME/names/…      names of temporary blobs
    leases/NAME/scratch/…    what is being written

A blob in use has a link in a lease, so no lock is needed between those who read and those who remove: making the link
either finds the blob or does not, and afterwards the bytes stay whatever becomes of the kept file.
"""

import errno
import fcntl
import hashlib
import io
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from typing_extensions import override

from tunery._errors import BlobError, BlobNotFoundError
from tunery._locks import open_lock
from tunery.blobs._base import BlobPlace, Blobs, check_digest

LIMIT_BYTES = 16 << 30
_CHUNK = 1 << 20
_FRESH_S = 3600.0  # how exactly it is known when a blob was last used
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_SWEEP_SHARE = 8  # a process that has put this share of the limit looks at the whole


class DirectoryBlobs(Blobs):
    """A lease on the blobs in `directory`, which may hold about `limit_bytes`. Without `lease` a new one begins, which
    ends with `close` or with this process. With the name of another process's lease (`place`) this is a second view of
    that one. Everything lies on one file system."""

    def __init__(self, directory: Path, limit_bytes: int = LIMIT_BYTES, lease: str | None = None) -> None:
        self.directory = Path(os.path.abspath(directory))  # noqa: PTH100 - links in the path are left alone
        self.limit_bytes = limit_bytes
        self._put_bytes = 0
        self._lock, self._owner = -1, os.getpid()
        with self._written():
            self._lease = self.directory / "leases" / lease if lease else self._begin()

    @property
    @override
    def place(self) -> BlobPlace:
        return BlobPlace(str(self.directory), self._lease.name, self.limit_bytes)

    @override
    def put(
        self, source: bytes | Path, *, temporary: bool = False, move: bool = False, sync: bool = True, known: str = ""
    ) -> str:
        if isinstance(source, bytes):
            digest = hashlib.sha256(source).hexdigest()
            if self._known(digest, temporary=temporary):
                return digest
            with self._written():
                made, _ = self._copied(io.BytesIO(source))
        else:
            made, digest = self._taken(source, known, move=move)
        try:
            if not self._known(digest, temporary=temporary):
                with self._written():
                    self._keep(made, digest, temporary=temporary, sync=sync)
        finally:
            made.unlink(missing_ok=True)
        return digest

    @override
    def get(self, digest: str, *, verify: bool = False) -> Path:
        path = self._used(check_digest(digest))
        try:
            if path.stat().st_mtime + _FRESH_S < time.time():
                with suppress(PermissionError):  # of a process that is confined
                    os.utime(path)  # it is of its kept file as well
        except FileNotFoundError:
            self._link(digest, path)
        if verify and _digest_of(path) != digest:
            for damaged in (path, self._object(digest)):
                damaged.unlink(missing_ok=True)
            raise BlobNotFoundError(f"blob {digest} was damaged and is removed; it has to be made again", digest)
        return path

    @override
    def has(self, digest: str) -> bool:
        return self._used(check_digest(digest)).exists() or self._object(digest).exists()

    @override
    def release(self, digest: str) -> None:
        with suppress(OSError):
            self._used(check_digest(digest)).unlink()
        self.tell_followers(digest)

    @override
    def take(self, digest: str, path: Path) -> None:
        used = self.get(digest)
        path.touch(exist_ok=False)
        mode = path.stat().st_mode
        if self._object(digest).exists() or used.stat().st_nlink > 1 or not _moved(used, path):
            shutil.copyfile(used, path)
        path.chmod(mode)
        self.release(digest)

    @override
    def remember(self, key: str, digest: str) -> None:
        kept = self._object(check_digest(digest)).exists()
        names = (self.directory if kept else self._lease) / "names"
        with self._written():
            handle, partial = tempfile.mkstemp(dir=self._lease / "scratch")
            with os.fdopen(handle, "w") as file:
                file.write(digest)
            Path(partial).replace(names / _name(key))

    @override
    def find(self, key: str) -> str | None:
        for names in (self._lease / "names", self.directory / "names"):
            digest = _read_name(names / _name(key))
            if digest is not None:
                with suppress(BlobNotFoundError):
                    self.get(digest)
                    return digest
        return None

    @contextmanager
    @override
    def scratch(self) -> Iterator[Path]:
        with self._written():
            path = Path(tempfile.mkdtemp(dir=self._lease / "scratch"))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    @override
    def sweep(self) -> int:
        with self._alone(wait=False) as alone:
            if not alone:
                return 0
            freed = sum(_remove_dead(lease) for lease in self._leases() if lease != self._lease)
            return freed + self._shrink()

    @override
    def close(self) -> None:
        if self._lock < 0 or self._owner != os.getpid():
            return
        shutil.rmtree(self._lease, ignore_errors=True)
        os.close(self._lock)
        self._lock = -1
        with suppress(BlobError, OSError):
            self.sweep()

    def _begin(self) -> Path:
        """Make a lease that is this process's; nobody sees one without its lock."""
        for part in ("objects", "names", "leases"):
            (self.directory / part).mkdir(parents=True, exist_ok=True)
        with self._alone(wait=True):
            for lease in self._leases():
                _remove_dead(lease)
            lease = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=self.directory / "leases"))
            for part in ("objects", "names", "scratch"):
                (lease / part).mkdir()
            self._lock = open_lock(lease / "lock")
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        return lease

    def _leases(self) -> list[Path]:
        return _files(self.directory / "leases")

    def _object(self, digest: str) -> Path:
        return self.directory / "objects" / digest[:2] / digest

    def _used(self, digest: str) -> Path:
        return self._lease / "objects" / digest

    def _known(self, digest: str, *, temporary: bool) -> bool:
        """Bring a blob that is here into use and return True; one that is only temporary is not known as a kept one."""
        if temporary and self._used(digest).exists():
            return True
        if not self._object(digest).exists():
            return False
        try:
            self.get(digest)
        except BlobNotFoundError:  # it was removed meanwhile
            return False
        return True

    def _link(self, digest: str, path: Path) -> None:
        kept = self._object(digest)
        try:
            _link(kept, path)
        except FileNotFoundError:
            if kept.exists():
                raise BlobError(f"{self._lease} is gone while it is in use; give the same command again") from None
            raise BlobNotFoundError(f"blob {digest} is not on this host", digest) from None
        os.utime(path)

    def _taken(self, source: Path, known: str, *, move: bool) -> tuple[Path, str]:
        if move:
            with self._written():
                handle, name = tempfile.mkstemp(dir=self._lease / "scratch")
                os.close(handle)
            with suppress(OSError):  # it is on another file system
                source.replace(name)
                return Path(name), known or _digest_of(Path(name))
            Path(name).unlink(missing_ok=True)
        with source.open("rb") as file, self._written():
            made, digest = self._copied(file)
        if move:
            source.unlink(missing_ok=True)
        return made, digest

    def _copied(self, source: IO[bytes]) -> tuple[Path, str]:
        handle, name = tempfile.mkstemp(dir=self._lease / "scratch")
        hashed = hashlib.sha256()
        try:
            with os.fdopen(handle, "wb") as file:
                while chunk := source.read(_CHUNK):
                    hashed.update(chunk)
                    file.write(chunk)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        return Path(name), hashed.hexdigest()

    def _keep(self, made: Path, digest: str, *, temporary: bool, sync: bool) -> None:
        made.chmod(0o400)
        path, kept = self._used(digest), self._object(digest)
        if temporary:
            made.replace(path)
            return
        kept.parent.mkdir(exist_ok=True)
        if sync:
            _sync(made)
        self._put_bytes += made.stat().st_size
        path.unlink(missing_ok=True)  # a temporary one may be there
        _link(made, path)
        made.replace(kept)
        if sync:
            _sync(kept.parent)
        if self._put_bytes * _SWEEP_SHARE > self.limit_bytes:
            self._put_bytes = 0
            self.sweep()

    def _shrink(self) -> int:
        in_use = {path.name for lease in self._leases() for path in _files(lease / "objects")}
        found = []
        for folder in _files(self.directory / "objects"):
            for path in _files(folder):
                with suppress(FileNotFoundError):
                    found.append((path.stat(), path))
        freed, total = 0, sum(stat.st_size for stat, _ in found)
        for stat, path in sorted(found, key=lambda each: each[0].st_mtime):
            if total - freed <= self.limit_bytes:
                break
            if path.name not in in_use:
                path.unlink(missing_ok=True)
                freed += stat.st_size
        if freed:
            for name in _files(self.directory / "names"):
                digest = _read_name(name)
                if digest is None or not self._object(digest).exists():
                    name.unlink(missing_ok=True)
        return freed

    @contextmanager
    def _alone(self, *, wait: bool) -> Iterator[bool]:
        """Hold the directory's lock, or give False where another has it and there is no `wait`."""
        lock = open_lock(self.directory / "lock")
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
                return
            yield True
        finally:
            os.close(lock)

    @contextmanager
    def _written(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise BlobError(
                f"cannot write {self.directory}: {error.strerror}; free some space there, or set TUNERY_CACHE to "
                "another directory, and give the same command again"
            ) from error


def open_blobs(place: BlobPlace) -> DirectoryBlobs:
    return DirectoryBlobs(Path(place.directory), place.limit_bytes, place.lease)


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _name(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _read_name(path: Path) -> str | None:
    """Return the digest in a file; None where there is none, or a power cut has left something else."""
    try:
        return check_digest(path.read_text())
    except (OSError, UnicodeDecodeError, BlobError):
        return None


def _files(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _link(source: Path, path: Path) -> None:
    try:
        os.link(source, path)
    except FileExistsError:
        return
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        copy = path.with_name(f".{path.name}.{os.getpid()}")
        shutil.copyfile(source, copy)
        copy.chmod(0o400)
        copy.replace(path)


def _moved(source: Path, path: Path) -> bool:
    try:
        source.replace(path)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return False
    return True


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove_dead(lease: Path) -> int:
    try:
        lock = open_lock(lease / "lock", create=False)
    except PermissionError:
        return 0  # another user's
    except OSError:
        lock = -1  # its owner died while it made or removed it, or somebody has put something else there
    try:
        if lock >= 0:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        freed = 0
        for path in lease.rglob("*"):
            with suppress(OSError):
                stat = path.lstat()
                freed += stat.st_size if stat.st_nlink == 1 else 0
        shutil.rmtree(lease, ignore_errors=True)
    except BlockingIOError:
        return 0
    finally:
        if lock >= 0:
            os.close(lock)
    return freed
