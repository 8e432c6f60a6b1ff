"""Where a store lives: what a user writes, the file of an SQLite store, whether it is still the one that was opened."""

import ctypes
import errno
import fcntl
import logging
import os
import shutil
import sqlite3
import stat
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import psutil
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, OperationalError

from tunery._errors import StoreError
from tunery._locks import make_private, open_lock
from tunery._settings import cache_directory, store_place

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
_GET_GENERATION = 0x80087601  # FS_IOC_GETVERSION: a file that gets the number of a deleted one has another
_CLOSE_S = 1.0
_OUT_OF_ROOM = (OSError, sqlite3.OperationalError, OperationalError)
_log = logging.getLogger(__name__)


class MovedError(StoreError):
    """The file that is at a store's path is not the one that was opened."""


class _Inode:
    """A file of which this process has stores open, which it shares with all that have, by whatever name; who is
    `alone` has it to himself. One for all stores of a process: closing a descriptor lets go of SQLite's locks."""

    _all: ClassVar[dict[_Identity, "_Inode"]] = {}
    _guard = threading.Lock()

    def __init__(self, path: Path) -> None:
        self._descriptor, self._users = os.open(path, os.O_RDWR | os.O_CLOEXEC), 0
        found, self.generation = os.fstat(self._descriptor), 0
        self._key = found.st_dev, found.st_ino
        with suppress(OSError):
            self.generation = int.from_bytes(fcntl.ioctl(self._descriptor, _GET_GENERATION, bytes(8)), sys.byteorder)
        self._is_sole = self._lock(fcntl.F_WRLCK)
        if not self._is_sole:
            _wait_for(partial(self._lock, fcntl.F_RDLCK), path)

    @classmethod
    def of(cls, path: Path) -> "_Inode":
        with cls._guard:
            inode = cls._all.get(_identity(str(path))) or cls(path)
            cls._all[inode._key] = inode
            inode._users += 1
            return inode

    @property
    def alone(self) -> bool:
        return self._is_sole and self._users == 1

    def share(self) -> None:
        self._is_sole = not self._lock(fcntl.F_RDLCK)

    def leave(self) -> None:
        with self._guard:
            self._users -= 1
            if not self._users:
                del self._all[self._key]
                self._lock(fcntl.F_UNLCK)  # processes that were forked from this one have the descriptor as well
                os.close(self._descriptor)

    def _lock(self, kind: int) -> bool:
        far = 1 << 62  # from the bytes that SQLite locks
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, far, 1, 0))
        except BlockingIOError:
            return False
        return True


class StoreFile:
    """An open store's file. SQLite finds a log by its name, and would take that of a file that was moved away for that
    of the file that is there now: a note in `STORE-lock`, which whoever opens or closes the store holds meanwhile, says
    whose the log is. What is written once the file was deleted or replaced would be in no file, so a transaction asks
    `moved` before and after it. What the file held is still there for who has it open: `rescue` copies that."""

    def __init__(self, path: Path) -> None:
        prepare(path)
        self.path = path.resolve()
        self.rescued: Path | None = None
        self._moved = ""  # once what it held was rescued
        self._lock = threading.Lock()
        with self._alone() as note:
            self._identity: tuple[_Identity, ...] = (_identity(str(self.path)),)
            self._inode = _Inode.of(self.path)
            try:
                self._take_log(note)
                self._keeper = self._open()
            except BaseException:
                self._inode.leave()
                raise
            self._identity += tuple(_identity(f"{self.path}{suffix}") for suffix in _LOG)
            os.ftruncate(note, 0)
            os.pwrite(note, self._owner(note).encode(), 0)
            self._inode.share()

    def _owner(self, note: int) -> str:
        """Return whose the log is that is there now, and which; the note itself may be a copy."""
        log = _identity(f"{self.path}-wal")
        return f"{self._identity[0]} {self._inode.generation}; {log} {os.fstat(note).st_ino}" if log else ""

    def _take_log(self, note: int) -> None:
        """Set the log of another file aside; one that the note does not know may have been copied with its file."""
        noted, now = os.pread(note, 200, 0).decode(errors="replace"), self._owner(note)
        if now and noted == now:
            return
        if not self._inode.alone:
            raise StoreError(
                f"{self.path} is in use under another name, or its log was deleted: end the commands that use it first"
            )
        if now and noted.partition(";")[2] == now.partition(";")[2]:
            aside = self._aside(_identity(f"{self.path}-wal"))
            Path(f"{self.path}-wal").rename(aside)
            Path(f"{self.path}-shm").unlink(missing_ok=True)
            _log.warning("the log of another file was beside the store %s, and is %s now: it completes that file, "
                         "beside it and with its name and -wal", self.path, aside)  # fmt: skip

    def _aside(self, log: _Identity) -> Path:
        return self.path.with_name(f"{self.path.name}.rescued-{log[1] if log else 0}-wal")

    @contextmanager
    def _alone(self, patience_s: float = BUSY_S) -> Iterator[int]:
        """Let nobody else open or close the store in the block, which gets the descriptor of the note."""
        path = Path(f"{self.path}-lock")
        while True:
            note = open_lock(path)
            try:
                _wait_for(partial(_locked, note), self.path, patience_s)
                found = os.fstat(note)
                if _identity(str(path)) == (found.st_dev, found.st_ino):
                    yield note
                    return
            finally:
                os.close(note)

    def connect(self) -> sqlite3.Connection:
        """Return a new connection with a write-ahead log; it makes no file."""
        with self._alone():
            return self._open()

    def _open(self) -> sqlite3.Connection:
        if why := self.moved():
            raise MovedError(why)
        uri = f"{self.path.as_uri()}?mode=rw"
        connection = sqlite3.connect(uri, uri=True, timeout=BUSY_S, check_same_thread=False)
        try:
            _use_wal(connection)
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()  # which opens the log
            why = self.moved()
        except BaseException:
            connection.close()
            raise
        if why:
            connection.close()
            raise MovedError(why)
        return connection

    def moved(self) -> str:
        """Return what has become of the file since it was opened, "" where nothing has; takes three microseconds."""
        for suffix, before in () if self._moved else zip(("", *_LOG), self._identity, strict=False):
            try:
                now = _identity(f"{self.path}{suffix}")
            except OSError:  # nobody may look, and so nobody can have changed it
                continue
            if now != before:
                done = "deleted" if now is None else "replaced"
                return f"the store {self.path}{suffix} was {done} while it was in use"
        return self._moved

    def rescue(self, write: Callable[[Path], None]) -> Path:
        """Have `write` add to a file with all that the store held, and return it: made once, beside the store, or else
        where there is room; the store's log is no other file's."""
        with self._lock:
            if self.rescued is not None:
                write(self.rescued)
                return self.rescued
            self._moved = self.moved()
            # Never closed: the last connection that is closed deletes the log by its name, and that is another's.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._keeper))
            folders = [self.path.parent, Path(tempfile.gettempdir()), Path("/dev/shm"), cache_directory()]  # noqa: S108
            for folder in folders:
                with suppress(*(_OUT_OF_ROOM if folder is not folders[-1] else ())):
                    self._rescue_to(folder, write)
                    break
            assert self.rescued is not None
            with suppress(OSError, StoreError), self._alone(_CLOSE_S):  # whoever opens the file that is there now would
                self._aside(self._identity[1]).unlink(missing_ok=True)  # have to set our log aside
                for suffix, ours in zip(_LOG, self._identity[1:], strict=True):
                    if _identity(f"{self.path}{suffix}") == ours:
                        Path(f"{self.path}{suffix}").unlink()
            return self.rescued

    def _rescue_to(self, folder: Path, write: Callable[[Path], None]) -> None:
        handle, name = tempfile.mkstemp(prefix=f"{self.path.name}.rescued-", dir=folder)
        os.close(handle)
        try:
            with closing(sqlite3.connect(name)) as copy:
                self._keeper.backup(copy)
                copy.execute("PRAGMA journal_mode=DELETE")
            self.rescued = Path(name)
            write(self.rescued)
        except _OUT_OF_ROOM:
            self.rescued = None
            for suffix in ("", "-journal"):
                Path(f"{name}{suffix}").unlink(missing_ok=True)
            raise

    def close(self, dispose: Callable[[], None]) -> None:
        """Close the file's last connection, after `dispose` has closed the others."""
        with ExitStack() as stack:
            with suppress(OSError, StoreError):
                stack.enter_context(self._alone(_CLOSE_S))
            dispose()
            if self.rescued is None:
                self._keeper.close()
                self._inode.leave()
            if _identity(f"{self.path}-wal") is None:
                with suppress(OSError):
                    Path(f"{self.path}-lock").unlink()


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
        mounts = _mounts()
        if path.resolve() in mounts:
            raise StoreError(f"{path} is mounted alone, without the log that lies beside it; mount its folder instead")
        kind = _file_system(path.parent, mounts)
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


def _mounts() -> dict[Path, str]:
    return {Path(part.mountpoint): part.fstype for part in psutil.disk_partitions(all=True)}


def _file_system(directory: Path, mounts: Mapping[Path, str]) -> str:
    directory = directory.resolve()
    return next((mounts[folder] for folder in (directory, *directory.parents) if folder in mounts), "")


def _identity(path: str) -> _Identity:
    try:
        found = os.stat(path)  # noqa: PTH116 - three for each transaction
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait_for(done: Callable[[], bool], path: Path, patience_s: float = BUSY_S) -> None:
    deadline = time.monotonic() + patience_s
    while not done():
        if time.monotonic() > deadline:
            raise StoreError(f"another process keeps {path} locked; wait for it or end it, then try again")
        time.sleep(0.01)


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
