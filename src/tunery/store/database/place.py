"""From what a user writes (nothing, a path, a URL) to a place where a store can live."""

import errno
import os
import stat
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import psutil
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from tunery._errors import StoreError
from tunery._settings import store_place

VARIABLE = "TUNERY_STORE"

# SQLite's write-ahead log needs memory shared by all its processes and locks that hold: neither is given here
# (https://www.sqlite.org/wal.html, "all processes must be on the same host computer").
NETWORK_FILE_SYSTEMS = frozenset(
    {
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "fuse.ceph",
        "fuse.glusterfs",
        "fuse.sshfs",
        "gpfs",
        "lustre",
        "nfs",
        "nfs4",
        "smb3",
    }
)


def resolve(text: str) -> URL:
    """Return the URL of the store that `text` names; see `open_store` for what is accepted."""
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
    """Return what the store that `text` names is called in messages: its file, or its URL without the password."""
    return shown(resolve(text))


def file_of(text: str) -> Path | None:
    """Return the file of the store that `text` names, None where it is on a server."""
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


def prepare(path: Path, *, create: bool = True, keep: bool = True) -> None:
    """Create the folder of the store file `path` if `create`, and refuse places where a store cannot live."""
    check_plain(path)
    try:
        if create:
            path.parent.mkdir(parents=True, exist_ok=True)
        there = next(place for place in (path, *path.parents) if place.exists())
        if there != path and not there.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        writable = os.access(there, os.W_OK) or not keep
    except OSError as error:
        raise StoreError(
            f"{path} cannot be created ({error.strerror}); name another store with --store or {VARIABLE}"
        ) from error
    if not writable:
        raise StoreError(f"{path} cannot be written; change its permissions or name another store with {VARIABLE}")
    kind = file_system(path.parent)
    if kind in NETWORK_FILE_SYSTEMS:
        raise StoreError(
            f"{path} is on a network file system ({kind}), where SQLite loses data; "
            f"name a file on a local disk with --store or {VARIABLE}, or use a postgresql:// store"
        )


def check_plain(path: Path) -> None:
    """Refuse what is no file, before anything is read from it or written to it."""
    try:
        mode = path.stat().st_mode
    except OSError:  # it is not there yet, or opening it says why not
        return
    if stat.S_ISDIR(mode):
        raise StoreError(f"{path} is a directory; name a file, for example {path / 'tunery.db'}")
    if not stat.S_ISREG(mode):
        kind = "a pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"
        raise StoreError(f"{path} is {kind}, which cannot hold a store; name a file with --store or {VARIABLE}")


def file_system(directory: Path) -> str:
    """Return the type of the file system that holds `directory` (`ext4`, `nfs4`, ...), "" where it cannot be told."""
    directory = directory.resolve()
    mounts = {Path(part.mountpoint): part.fstype for part in psutil.disk_partitions(all=True)}
    for folder in (directory, *directory.parents):
        if folder in mounts:
            return str(mounts[folder])
    return ""
