"""One tunery at a time measures on a machine; the slots of one process share the right to."""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tunery._errors import UsageError
from tunery._locks import open_lock

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
