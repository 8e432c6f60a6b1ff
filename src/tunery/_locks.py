"""Files that processes lock, and whose a directory is: nothing is opened through a link that somebody else has left."""

import errno
import fcntl
import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import takewhile
from pathlib import Path

from tunery._errors import UsageError

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_lock(path: Path, *, create: bool = True) -> int:
    """Return the descriptor of a lock file, which only its user can open; closing it lets go of its locks."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags | os.O_CREAT * create, 0o600)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no plain file", str(path))
    return descriptor


def make_private(directory: Path) -> None:
    """Make a directory, with those above it that are missing, for this user alone, whatever the umask says."""
    missing = list(takewhile(lambda part: not part.exists(), (directory, *directory.parents)))
    for part in reversed(missing):
        part.mkdir(mode=0o700, exist_ok=True)
        part.chmod(0o700)


def own_directory(directory: Path) -> None:
    """Make a directory that only this user may enter; what is there must be ours, for what lies in it may be run. Root
    may use another user's: in a container that is how a directory of the host looks."""
    make_private(directory)
    found, me = directory.stat(), os.geteuid()
    if me not in {0, found.st_uid}:
        raise PermissionError(errno.EPERM, "it belongs to another user", str(directory))
    if found.st_mode & stat.S_IWOTH:
        raise PermissionError(errno.EPERM, "everybody can write there", str(directory))


def hold_directory(directory: Path) -> int:
    """Return a descriptor that holds a directory of ours until it is closed, or this process ends, however it does."""
    descriptor = os.open(directory, _DIRECTORY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def is_held(directory: Path) -> bool:
    """Return whether a process holds a directory, in this container or in another one; if in doubt, it does."""
    try:
        descriptor = os.open(directory, _DIRECTORY)
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def read_small(path: Path, most_bytes: int) -> bytes:
    # A pipe without a writer would hold up the opening itself.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        found = os.fstat(file.fileno())
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("it is no plain file")
        if found.st_size > most_bytes:
            raise ValueError(f"it is larger than {most_bytes} bytes")
        return file.read(most_bytes)


_POLL_S = 0.02


class DeviceLock:
    """A file lock that any number of measurements of this process hold together; the kernel lets go for a process that
    dies. Processes take turns: whoever wants in goes through a gate, a second file, and a process that waits for the
    others to end keeps it shut, so that nobody of theirs joins in its stead."""

    def __init__(self, path: Path) -> None:
        self._path, self._gate = path, path.with_suffix(".gate")
        self._holders = 0
        self._descriptor = -1

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        gate = await _locked(self._gate)
        try:
            if not self._holders:
                self._descriptor = await _locked(self._path)
            self._holders += 1
        finally:
            os.close(gate)
        try:
            yield
        finally:
            self._holders -= 1
            if not self._holders:
                os.close(self._descriptor)


async def _locked(path: Path) -> int:
    """Return the descriptor of a file that nobody else has locked; closing it lets go."""
    import asyncio  # not before: commands start without

    try:
        descriptor = open_lock(path)
    except OSError as error:
        raise UsageError(f"cannot lock {path} ({error.strerror}); remove what is there, or free some space") from error
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                await asyncio.sleep(_POLL_S)
            else:
                return descriptor
    except BaseException:
        os.close(descriptor)
        raise
