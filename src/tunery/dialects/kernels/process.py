"""A kernel in C in a process of its own: what its author wrote runs there, and the clock is here."""

import mmap
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from tunery import _sandbox
from tunery._errors import DialectError
from tunery.dialects import Array
from tunery.dialects.kernels import _child
from tunery.dialects.kernels.buffers import GuardedArray, seal

ROUND_TRIP_S = 5e-5
"""What the way to the process and back may take: so much of what a call takes here is not counted."""
_PINGS = 16
_START = (
    "import sys; sys.path += sys.argv[1:3]; import _child, _sandbox; del sys.path[-2:]; "
    "_child.main(_sandbox.enter, *sys.argv[3:])"
)
_KEPT = ("OMP_", "GOMP_", "GOTO_", "MALLOC_", "LD_LIBRARY_PATH")
_PINS = frozenset({"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY"})  # a confined process may not pin threads


class KernelProcess:
    """A process that has loaded a kernel's library, and calls it on arrays that it shares with this one.

    It gets none of our variables, and, where Linux has Landlock, no file but the system's, no network and no other
    process. `arrays` are the kernel's arguments, None where one is a number; `most` is how many places may be changed
    at a time. `trip_s` is the least time to the process and back, from before the kernel was loaded.

    Raises:
        DialectError: the library cannot be loaded.
    """

    def __init__(
        self, library: Path, threads: int, arrays: Sequence[GuardedArray | None], most: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:  # fmt: skip
        self._clock = clock
        changes = os.memfd_create("changes", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                os.truncate(changes, 3 * 8 * most)
                seal(changes)
                self._changes = mmap.mmap(changes, 0)
                self._process = self._start(library, threads, arrays, theirs.fileno(), changes)
            except OSError as error:
                raise DialectError(f"the kernel's process cannot be started: {error}") from error
            finally:
                os.close(changes)
            theirs.close()
            self._cpu_clock = (~self._process.pid << 3) | 2  # Linux: all CPU time of that process
            try:
                self.trip_s = min(self._ask(b"ping")[1] for _ in range(_PINGS))
                refused = self._ask(_child.LOAD)[0].rstrip(b"\0").decode(errors="replace")
            except DialectError:
                self.close()
                raise
        if refused:
            self.close()
            raise DialectError(f"the built kernel cannot be loaded: {refused[:200]}")

    def _start(
        self, library: Path, threads: int, arrays: Sequence[GuardedArray | None], control: int, changes: int
    ) -> subprocess.Popen[bytes]:
        shared = [one and one.shared for one in arrays]
        modules = [Path(_sandbox.__file__).parent, Path(_child.__file__).parent]
        told = [library, control, changes, threads, ";".join(",".join(map(str, one or ())) for one in shared)]
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _START, *map(str, (*modules, *told)), *_readable()],
            env={name: value for name, value in os.environ.items() if name.startswith(_KEPT) and name not in _PINS},
            stdin=subprocess.DEVNULL,
            pass_fds=[control, changes, *(one[0] for one in shared if one)],
        )

    def _ask(self, order: bytes) -> tuple[bytes, float]:
        """Return the answer and how long it took."""
        start = self._clock()
        with suppress(OSError):  # where the process is gone, there is no answer
            self._control.send(order)
        try:
            answer = self._control.recv(512)
        except ConnectionError:
            answer = b""
        took_s = self._clock() - start
        if not answer:
            with suppress(subprocess.TimeoutExpired):  # it may have closed its socket only
                self._process.wait(1)
            raise DialectError(f"the kernel has ended its process{_reason(self._process.returncode)}")
        return answer, took_s

    def run(self, calls: int, array: int = -1, places: Array | None = None, values: Array | None = None) -> float:
        """Call the kernel so many times, and return the seconds.

        Before each call a place of the argument of number `array` is written, as `Change` says. The time is that of the
        clock here, less the way, unless the process's own says that it was longer.
        """
        count = width = 0
        if places is not None and values is not None:
            count, width = places.size, values.itemsize
            self._changes[: 8 * count] = places.tobytes()
            self._changes[8 * count : 8 * count + values.nbytes] = values.tobytes()
        told_s, took_s = self._run(_child.ORDER.pack(calls, array, count, width))
        least_s = max(took_s - ROUND_TRIP_S, 0.0)
        return told_s if least_s < told_s <= took_s else least_s

    def run_alone_s(self) -> float:
        """Call the kernel once, and return the seconds by the clock here, less the least time of the way."""
        return self._run(_child.ORDER.pack(1, -1, 0, 0))[1] - self.trip_s

    def _run(self, order: bytes) -> tuple[float, float]:
        answer, took_s = self._ask(order)
        if len(answer) != _child.TIME.size:
            raise DialectError("the kernel has written to a socket that is not its own")
        return _child.TIME.unpack(answer)[0], took_s

    def worked_s(self) -> float:
        try:
            return time.clock_gettime(self._cpu_clock)
        except OSError as error:
            raise DialectError("the kernel has ended its process") from error

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._control.close()


@cache
def _readable() -> list[str]:
    """Return where libraries may be, beside the system's directories."""
    found = [sys.prefix, sys.base_prefix, *os.environ.get("LD_LIBRARY_PATH", "").split(":")]
    return [path for path in found if path]


def _reason(code: int | None) -> str:
    if code is None or code >= 0:
        return ""
    return f" by {signal.Signals(-code).name}"
