"""Where a store lives: what a user writes, the file of an SQLite store, whether it is still the one that was opened."""

import ctypes
import errno
import os
import shutil
import sqlite3
import stat
import tempfile
import threading
import time
from contextlib import closing, suppress
from importlib.util import find_spec
from pathlib import Path

import psutil
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from tunery._errors import StoreError
from tunery._locks import make_private
from tunery._settings import store_place

VARIABLE = "TUNERY_STORE"


def resolve(text: str) -> URL:
    text = text or store_place()
    if "://" not in text:
        return _file(text)
    try:
        url = make_url(text)
    except ArgumentError:
        raise StoreError(f"store {text!r} is no URL; write a file path or postgresql://user@host/name") from None
    if url.get_backend_name() == "sqlite":
        if not url.database or url.database == ":memory:":
            raise StoreError(f"store {text!r} names no file; write for example sqlite:///tunery.db")
        return _file(url.database)
    if url.get_backend_name() in {"postgresql", "postgres"}:
        if find_spec("psycopg") is None:
            raise StoreError("a PostgreSQL store needs psycopg; install it with: pip install 'psycopg[binary]'")
        return url.set(drivername="postgresql+psycopg")
    raise StoreError(f"store {text!r} is of an unknown kind; write a file path or postgresql://user@host/name")


def place_of(text: str) -> str:
    return shown(resolve(text))


def file_of(text: str) -> Path | None:
    url = resolve(text)
    return Path(url.database or "") if url.get_backend_name() == "sqlite" else None


def shown(url: URL) -> str:
    is_file = url.get_backend_name() == "sqlite"
    return (url.database or "") if is_file else url.render_as_string(hide_password=True)


def _file(text: str) -> URL:
    try:
        path = Path(text).expanduser().absolute()
    except RuntimeError:
        raise StoreError(f"store {text!r} names an unknown home directory; write the whole path") from None
    try:
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError):  # said where it is opened
            path.stat()
    except (OSError, ValueError) as error:  # a name that is too long, or no name at all
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise StoreError(f"store {text[:60]!r} cannot be looked at ({reason}); choose another path") from None
    return URL.create("sqlite", database=str(path))


BUSY_S = 30.0
# SQLite's write-ahead log needs memory shared by all its processes and locks that hold: neither is given here
# (https://www.sqlite.org/wal.html, "all processes must be on the same host computer").
_NETWORK_FILE_SYSTEMS = frozenset({
    "afs", "beegfs", "ceph", "cifs", "fuse.ceph", "fuse.glusterfs", "fuse.sshfs", "gpfs", "lustre", "nfs", "nfs4",
    "smb3",
})  # fmt: skip
_LOG = ("-wal", "-shm")
_ATTEMPTS, _PAUSE_S = 20, 0.1

_Identity = tuple[int, int] | None


class MovedError(StoreError):
    """The file that is at a store's path is not the one that was opened."""


class StoreFile:
    """An open store's file. What is written once it was deleted or replaced would be in no file, so a transaction asks
    `moved` before and after it. What the file held is still there for who has it open: `rescue` copies that."""

    def __init__(self, path: Path) -> None:
        prepare(path)
        self.path = path.resolve()
        self._identity: tuple[_Identity, ...] = (_identity(str(self.path)),)
        self._keeper: sqlite3.Connection | None = None
        self._rescued: Path | None = None
        self._lock = threading.Lock()

    def connect(self) -> sqlite3.Connection:
        """Return a new connection with a write-ahead log; it makes no file."""
        uri = f"{self.path.as_uri()}?mode=rw"
        connection = sqlite3.connect(uri, uri=True, timeout=BUSY_S, check_same_thread=False)
        if why := self.moved():
            connection.close()
            raise MovedError(why)
        _use_wal(connection)
        return connection

    def hold(self) -> None:
        self._keeper = self.connect()
        self._keeper.execute("SELECT count(*) FROM sqlite_master").fetchone()  # which opens the log
        self._identity += tuple(_identity(f"{self.path}{suffix}") for suffix in _LOG)

    def moved(self) -> str:
        """Return what has become of the file since it was opened, "" where nothing has; takes three microseconds."""
        for suffix, before in zip(("", *_LOG), self._identity, strict=False):
            try:
                now = _identity(f"{self.path}{suffix}")
            except OSError:  # nobody may look, and so nobody can have changed it
                continue
            if now != before:
                done = "deleted" if now is None else "replaced"
                return f"the store {self.path}{suffix} was {done} while it was in use"
        return ""

    def rescue(self) -> Path:
        """Return a file beside the store with all that it held, made once; the store's log is no other file's."""
        with self._lock:
            if self._rescued is None:
                assert self._keeper is not None
                folder = self.path.parent if self.path.parent.is_dir() else None
                handle, name = tempfile.mkstemp(prefix=f"{self.path.name}.rescued-", dir=folder)
                os.close(handle)
                with closing(sqlite3.connect(name)) as copy:
                    self._keeper.backup(copy)
                    copy.execute("PRAGMA journal_mode=DELETE")
                self._rescued = Path(name)
                for suffix, mine in zip(_LOG, self._identity[1:], strict=True):
                    with suppress(OSError):  # whoever opens the file that is there now would replay our log into it
                        if _identity(f"{self.path}{suffix}") == mine:
                            Path(f"{self.path}{suffix}").unlink()
                # Never closed: the last connection that is closed deletes the log by its name, and that is another's.
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._keeper))
            return self._rescued

    def close(self) -> None:
        if self._keeper is not None and self._rescued is None:
            self._keeper.close()


def read_into_memory(path: Path) -> sqlite3.Connection:
    """SQLite reads a write-ahead log only with a second file beside it that it may write: a store that cannot be
    written is read from memory."""
    memory = sqlite3.connect(":memory:", check_same_thread=False)
    if not path.exists():
        return memory
    try:
        _backup(f"{path.as_uri()}?mode=ro", memory)
    except sqlite3.OperationalError as error:
        if not error.sqlite_errorname.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY")):
            raise
        with tempfile.TemporaryDirectory(prefix="tunery-store-") as directory:  # nobody has it open
            _backup(_copied(path, Path(directory, "store.db")).as_uri(), memory)
    return memory


def _backup(uri: str, memory: sqlite3.Connection) -> None:
    with closing(sqlite3.connect(uri, uri=True)) as source:
        source.backup(memory)


def _copied(path: Path, to: Path) -> Path:
    """Copy a database and the log that a killed process may have left; again if somebody has written meanwhile."""

    def state() -> list[tuple[int, int]]:
        found = [Path(f"{path}{suffix}") for suffix in ("", "-wal")]
        return [(one.stat().st_size, one.stat().st_mtime_ns) for one in found if one.exists()]

    for _ in range(_ATTEMPTS):
        before = state()
        try:
            for suffix in ("", "-wal"):
                with suppress(FileNotFoundError):
                    shutil.copyfile(f"{path}{suffix}", f"{to}{suffix}")
        except OSError as error:
            raise StoreError(
                f"{path} is read-only, and cannot be copied to {to.parent} ({error.strerror}); make room there, or set "
                "TMPDIR to another directory"
            ) from error
        if before == state():
            return to
        time.sleep(_PAUSE_S)
    raise StoreError(f"{path} is read-only here, and others write it all the time; try again, or copy it yourself")


def is_read_only(path: Path) -> bool:
    """Return whether a store at `path` cannot be written or made; its log needs the directory as well."""
    path = path.resolve()
    places = (path, path.parent) if path.exists() else (next(parent for parent in path.parents if parent.exists()),)
    return not all(os.access(place, os.W_OK) for place in places)


def prepare(path: Path, *, create: bool = True, keep: bool = True) -> None:
    """Create the store file and its folder for its user alone, and refuse places where a store cannot live: a directory
    or a device, a network file system, or, where what is written is to be kept, an unwritable place."""
    check_plain(path)
    try:
        if create:
            make_private(path.parent)
        there = next(place for place in (path, *path.parents) if place.exists())
        if there != path and not there.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(there, os.W_OK) and keep:
            raise StoreError(f"{path} cannot be written; change its permissions or name another store with {VARIABLE}")
        kind = file_system(path.parent)
        if kind in _NETWORK_FILE_SYSTEMS:
            raise StoreError(
                f"{path} is on a network file system ({kind}), where SQLite loses data; "
                f"name a file on a local disk with --store or {VARIABLE}, or use a postgresql:// store"
            )
        if create and there != path:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.fchmod(handle, 0o600)
            os.close(handle)
    except OSError as error:
        raise StoreError(
            f"{path} cannot be created ({error.strerror}); name another store with --store or {VARIABLE}"
        ) from error


def check_plain(path: Path) -> None:
    """Refuse what is no file, or has several names, before anything is read from it or written to it."""
    try:
        found = path.stat()
    except OSError:  # it is not there yet, or opening it says why not
        return
    mode = found.st_mode
    if stat.S_ISDIR(mode):
        raise StoreError(f"{path} is a directory; name a file, for example {path / 'tunery.db'}")
    if not stat.S_ISREG(mode):
        kind = "a pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"
        raise StoreError(f"{path} is {kind}, which cannot hold a store; name a file with --store or {VARIABLE}")
    if found.st_nlink > 1:
        raise StoreError(
            f"{path} has {found.st_nlink} names (hard links), and SQLite loses what is written by one of them; remove "
            f"the others, or make it a file of its own: cp {path} NEW"
        )


def file_system(directory: Path) -> str:
    directory = directory.resolve()
    mounts = {Path(part.mountpoint): part.fstype for part in psutil.disk_partitions(all=True)}
    return next((str(mounts[folder]) for folder in (directory, *directory.parents) if folder in mounts), "")


def _identity(path: str) -> _Identity:
    try:
        found = os.stat(path)  # noqa: PTH116 - three for each transaction
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch to the write-ahead log; SQLite answers "busy" without waiting when two processes do so at once."""
    deadline = time.monotonic() + BUSY_S
    while connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname != "SQLITE_BUSY" or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
