"""What the parent knows of one worker and its process."""

import contextlib
import enum
import math
import signal
import socket
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tunery._errors import TuneryError, tells_of_memory
from tunery.engines._loop import Channel
from tunery.engines._table import Worker
from tunery.engines.local._process import move
from tunery.engines.local.nursery import Nursery

_TAIL_BYTES = 4096
_TAIL_LINES = 12
_SEARCHED_BYTES = 1 << 20  # what is decided by a log is decided by more of it than people are shown


class WorkerState(enum.Enum):
    """Where a worker stands: DOWN → STARTING → IDLE ⇄ BUSY, and from each of those ENDING → DOWN."""

    DOWN = "down"
    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"
    ENDING = "ending"


@dataclass(slots=True, eq=False)
class Process:
    """One process a worker has: `key` names it to the zygote, process id and pidfd are known once it is forked.
    `asked_up` says that the zygote was up when it was asked for the process."""

    key: str
    connection: socket.socket
    nursery: Nursery
    pid: int | None = None
    pidfd: int | None = None
    doomed: bool = False
    reported_cpu_s: float = 0.0
    asked_up: bool = False
    channel: Channel = field(init=False)

    def kill(self) -> None:
        """Send SIGKILL, now or as soon as the process is known; a pidfd never hits a stranger with a reused id."""
        self.doomed = True
        if self.pidfd is not None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and was reaped, by itself
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)


@dataclass(slots=True, eq=False)
class LocalWorker(Worker):
    """A worker on this machine: `limit` is when what it does now is overdue, `reason` why it is being ended."""

    cores: tuple[int, ...] = ()
    log: Path = Path()
    state: WorkerState = WorkerState.DOWN
    process: Process | None = None
    reason: TuneryError | None = None
    limit: float = math.inf

    def begin(self, blobs: dict[str, Any] | None, variables: dict[str, str | None]) -> dict[str, Any]:
        environment = self.spec.environment
        return {
            "do": "begin", "service": self.spec.service, "settings": list(self.setting_names),
            "cores": list(self.cores),
            "threads": self.spec.threads, "nice": self.spec.nice, "memory_bytes": self.spec.memory_bytes,
            "confined": self.spec.confined,
            "thread_variables": list(environment.thread_variables), "log": str(self.log), "blobs": blobs,
            "path": None if environment.python else sys.path, "variables": variables, "directory": str(Path.cwd()),
        }  # fmt: skip

    def keep_place(self) -> None:
        """Pin the process, if there is one, to the cores that the worker has now; it was begun with earlier ones."""
        process = self.process
        if process is not None and process.pid is not None and not process.doomed:
            move(process.pid, self.cores)


def quote_log(path: Path) -> str:
    """Return the last lines of a log as the end of an error message, empty where nothing was printed."""
    kept = [line[:300] for line in _tail(path, _TAIL_BYTES).splitlines() if line.strip()][-_TAIL_LINES:]
    return "; its log ends with:\n" + "\n".join(kept) if kept else ""


def _tail(path: Path, size: int) -> str:
    try:
        with path.open("rb") as log:
            log.seek(max(0, log.seek(0, 2) - size))
            return log.read().decode(errors="replace")
    except OSError:
        return ""


def ran_out(worker: LocalWorker, code: int | None, peak_bytes: int, log: Path) -> bool:
    """Tell whether a process that has ended did so because it may take no more memory. It said so before it aborted, or
    the kernel ended it with more than half of its limit in use."""
    limit = worker.spec.memory_bytes
    if limit is None:
        return False
    return (code == -signal.SIGKILL and 2 * peak_bytes > limit) or tells_of_memory(_tail(log, _SEARCHED_BYTES))


def describe_exit(code: int | None) -> str:
    if code is None:
        return "ended with its zygote"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was ended by {name}" + (" (the kernel does that when memory runs out)" if name == "SIGKILL" else "")
