"""The parent's handle on one zygote: start it, have it fork, hear what it reaps, end it; and those that wait for the
next engine of this process: started ahead of it, or left by one that was closed."""

import atexit
import json
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from tunery.domain import Environment
from tunery.engines.local._process import bare_cpu_s

_LAUNCH = "{path}from tunery.engines.local._zygote import main; main({fd}, {parent}, {preload!r}, {forbidden!r})"
_SAME_PATH = "import sys; sys.path[:] = {path!r}; "

R = TypeVar("R")
Message = tuple[dict[str, Any], int | None]
"""What a zygote said, and the pidfd that came with it."""


class Nursery:
    """One zygote process. The kernel ends it with the thread that makes it, which lives as long as this process."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._began = sys.path[:], self._inherited()
        self._output = os.fdopen(os.memfd_create("tunery-zygote"), "w+b")  # no file that would outlive this process
        self.log = Path("/proc/self/fd", str(self._output.fileno()))
        self.up = False
        self._left_cpu_s = 0.0
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control = ours
        try:
            self._process = _on_lasting_thread(lambda: self._start(environment, theirs))
        except OSError:
            ours.close()
            raise
        ours.setblocking(False)

    def _inherited(self) -> Mapping[str, str]:
        # Threads do not survive a fork, so the zygote must have none; a worker's own settings come later.
        threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        return os.environ | threads | dict(self._environment.variables)

    @property
    def fits(self) -> bool:
        """Whether modules are still looked for where they were when it was started."""
        return self._began[0] == sys.path

    def changed(self) -> dict[str, str | None]:
        """Return the variables that were set, or unset, in this process since the zygote was started."""
        before, now = self._began[1], self._inherited()
        return {name: now.get(name) for name in before.keys() | now.keys() if before.get(name) != now.get(name)}

    @property
    def cpu_s(self) -> float:
        """CPU seconds of the zygote alone, for its present engine."""
        return max(0.0, bare_cpu_s(self.pid) - self._left_cpu_s)

    def _start(self, environment: Environment, theirs: socket.socket) -> subprocess.Popen[bytes]:
        path = "" if environment.python else _SAME_PATH.format(path=sys.path)
        code = _LAUNCH.format(
            path=path, fd=theirs.fileno(), parent=os.getpid(), preload=environment.preload,
            forbidden=environment.forbidden,
        )  # fmt: skip
        with theirs:
            return subprocess.Popen(
                [environment.python or sys.executable, "-P", "-c", code],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # a Ctrl-C at the terminal is the parent's to handle
                env=self._began[1],
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

    def rest(self) -> None:
        """Ask the zygote to end all workers, and to say when they are gone; one that is still importing has none and is
        killed."""
        if not self.up:
            self._process.kill()
            return
        self.control.send(b'{"rest": true}')

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        self.control.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.close()


_waiting: dict[str, Nursery] = {}
"""Zygotes without an engine: they import for seconds what the next one's workers need."""
_WAIT_S = 60.0
_actions: dict[int, queue.SimpleQueue[Callable[[], object]]] = {}
"""What the lasting thread of a process, by its id, is to do."""


def start(environment: Environment) -> None:
    """Start the zygote that the next engine of this process will fork its workers in this environment from. What is not
    taken over within a minute, or when the process ends, is ended."""
    if environment.key not in _waiting:
        leave(environment.key, Nursery(environment))


def leave(key: str, nursery: Nursery) -> None:
    """Leave a zygote that has no workers to the next engine of this process."""
    nursery._left_cpu_s = bare_cpu_s(nursery.pid) if nursery.up else 0.0
    atexit.unregister(end)
    atexit.register(end)
    if _waiting.setdefault(key, nursery) is not nursery:
        nursery.kill()
        nursery.close()
    _on_lasting_thread(lambda: None)  # which counts the time from now


def take(environment: Environment) -> Nursery | None:
    """Return the zygote that waits for an environment's next engine and hand it over; None if none lives."""
    nursery = _waiting.pop(environment.key, None)
    if nursery is None or (nursery.alive and nursery.fits):
        return nursery
    nursery.kill()
    nursery.close()
    return None


def end() -> None:
    """End those that no engine has taken over."""
    while _waiting:
        try:
            _, nursery = _waiting.popitem()
        except KeyError:  # taken in this moment
            return
        nursery.kill()
        nursery.close()


def _on_lasting_thread(action: Callable[[], R]) -> R:
    actions = _actions.get(os.getpid())
    if actions is None:
        _actions.clear()  # of the process that this one was forked from
        actions = _actions.setdefault(os.getpid(), queue.SimpleQueue())
        threading.Thread(target=_do, args=(actions,), name="tunery-zygotes", daemon=True).start()
    future = Future[R]()

    def act() -> None:
        try:
            future.set_result(action())
        except BaseException as error:  # noqa: BLE001 - it is the caller's
            future.set_exception(error)

    actions.put(act)
    return future.result()


def _do(actions: queue.SimpleQueue[Callable[[], object]]) -> None:
    while True:
        try:
            actions.get(timeout=_WAIT_S if _waiting else None)()
        except queue.Empty:
            end()
