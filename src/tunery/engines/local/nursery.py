"""The parent's handle on one zygote: start it, have it fork, hear what it reaps, end it; and those started ahead."""

import atexit
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

from tunery.domain import Environment

_LAUNCH = "{path}from tunery.engines.local._zygote import main; main({fd}, {parent}, {preload!r}, {forbidden!r})"
_SAME_PATH = "import sys; sys.path[:] = {path!r}; "

Message = tuple[dict[str, Any], int | None]
"""What a zygote said, and the pidfd that came with it."""


class Nursery:
    """One zygote process. The kernel ends it with the thread that makes it, which must live as long as the workers."""

    def __init__(self, environment: Environment, log: Path | IO[bytes]) -> None:
        self._file = None if isinstance(log, Path) else log  # without a name, and gone with this process
        self.log = log if isinstance(log, Path) else Path("/proc/self/fd", str(log.fileno()))
        self.up = False
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control = ours
        try:
            self._process = self._start(environment, theirs)
        except OSError:
            ours.close()
            raise
        ours.setblocking(False)

    def _start(self, environment: Environment, theirs: socket.socket) -> subprocess.Popen[bytes]:
        path = "" if environment.python else _SAME_PATH.format(path=sys.path)
        code = _LAUNCH.format(
            path=path, fd=theirs.fileno(), parent=os.getpid(), preload=environment.preload,
            forbidden=environment.forbidden,
        )  # fmt: skip
        # Threads do not survive a fork, so the zygote must have none; a worker's own settings come later.
        variables = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"} | dict(environment.variables)
        with theirs, self.log.open("wb") as output:
            return subprocess.Popen(
                [environment.python or sys.executable, "-P", "-c", code],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # a Ctrl-C at the terminal is the parent's to handle
                env=variables,
            )

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid

    def fork(self, worker: str, channel: socket.socket) -> None:
        socket.send_fds(self.control, [json.dumps({"fork": worker}).encode()], [channel.fileno()])

    def read(self) -> tuple[list[Message], bool]:
        messages: list[Message] = []
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(self.control, 4096, 1)
            except BlockingIOError:
                return messages, True
            except OSError:
                data, fds = b"", []
            if not data:
                return messages, False
            message = json.loads(data)
            self.up = self.up or message["event"] == "up"
            messages.append((message, fds[0] if fds else None))

    def end(self) -> None:
        """Ask the zygote to end all workers and itself; one that is still importing has none and is killed."""
        if not self.up:
            self._process.kill()
        self.control.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        self.control.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._file is not None:
            self._file.close()


_waiting: dict[str, Nursery] = {}
"""Zygotes that are started before there is an engine: they import for seconds what the caller does not need."""


def start(environment: Environment) -> None:
    """Start the zygote that the next engine of this process will fork its workers in this environment from.

    The calling thread must live as long as the engine. What is not taken over ends with the process.
    """
    if environment.key in _waiting:
        return
    if not _waiting:
        atexit.register(end)
    _waiting[environment.key] = Nursery(environment, os.fdopen(os.memfd_create("tunery-zygote"), "w+b"))


def take(environment: Environment) -> Nursery | None:
    """Return the zygote that was started for an environment and hand it over; None if there is none that lives."""
    nursery = _waiting.pop(environment.key, None)
    if nursery is None or nursery.alive:
        return nursery
    nursery.close()
    return None


def end() -> None:
    """End those that no engine has taken over."""
    while _waiting:
        nursery = _waiting.popitem()[1]
        nursery.kill()
        nursery.close()
