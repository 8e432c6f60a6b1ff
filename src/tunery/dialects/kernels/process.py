"""A kernel in C in processes of its own: what its author wrote runs there, and the clock is here."""

import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from tunery import _sandbox
from tunery._errors import DialectError
from tunery._processor import keep_to_cores
from tunery.dialects.kernels import _child
from tunery.dialects.kernels.buffers import ArgumentSets, GuardedArray

ROUND_TRIP_S = 5e-5
"""What the way to the process and back may take: so much of what a call takes here is not counted."""
_START = (
    "import sys; sys.path += sys.argv[1:3]; import _child, _sandbox; del sys.path[-2:]; "
    "_child.main(_sandbox.enter, *sys.argv[3:])"
)
_KEPT = ("OMP_", "GOMP_", "GOTO_", "MALLOC_", "LD_LIBRARY_PATH")
_PINS = frozenset({"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY"})  # a confined process may not pin threads


class KernelProcess:
    """A process that loads a kernel's library, and calls it on arrays that it shares with this one.

    It gets none of our variables, is confined, and runs on as many cores as the kernel has threads. `arrays` are the
    kernel's arguments, None where one is a number. `restart` begins again, with nothing that the kernel has kept.

    Raises:
        DialectError: the library cannot be loaded.
    """

    def __init__(
        self, library: Path, threads: int, arrays: Sequence[GuardedArray | None], sets: ArgumentSets,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:  # fmt: skip
        self._clock, self._threads, self._call = clock, threads, -1
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._wire = self._control
        with theirs:
            shared = [one and one.shared for one in arrays]
            modules = [Path(_sandbox.__file__).parent, Path(_child.__file__).parent]
            told = [library, theirs.fileno(), threads, ";".join(",".join(map(str, one or ())) for one in shared),
                    ",".join(map(str, sets.shared))]  # fmt: skip
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", _START, *map(str, (*modules, *told)), *_readable()],
                    env={name: value for name, value in os.environ.items()
                         if name.startswith(_KEPT) and name not in _PINS},
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno(), int(sets.shared[0]), *(one[0] for one in shared if one)],
                )  # fmt: skip
            except OSError as error:
                self._control.close()
                raise DialectError(f"the kernel's process cannot be started: {error}") from error
        self.restart()

    def restart(self) -> None:
        """End the process that has called the kernel, and load it in another."""
        self._end_call()
        self._wire, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                keep_to_cores(self._process.pid, self._threads)
                socket.send_fds(self._control, [b"\0"], [theirs.fileno()])
                self._call = os.pidfd_open(*struct.unpack("i", self._control.recv(4)))
            except (OSError, struct.error) as error:
                self.close()
                raise DialectError(f"the kernel's process cannot be started: {error}") from error
        try:
            refused = self._ask(_child.LOAD)[0].rstrip(b"\0").decode(errors="replace")
        except DialectError:
            self.close()
            raise
        if refused:
            self.close()
            raise DialectError(f"the built kernel cannot be loaded: {refused[:200]}")

    def _ask(self, order: bytes) -> tuple[bytes, float]:
        """Return the answer and how long it took."""
        start = self._clock()
        with suppress(OSError):  # where the process is gone, there is no answer
            self._wire.send(order)
        try:
            answer = self._wire.recv(512)
        except OSError:
            answer = b""
        took_s = self._clock() - start
        if not answer:
            raise DialectError(f"the kernel has ended its process{_reason(self._end_call(patience_s=1.0))}")
        return answer, took_s

    def run(self, calls: int = 1, first: int = _child.GUARDED) -> float:
        """Call the kernel so many times, on the sets of arguments from the `first` one on, and return the seconds.

        The time is that of the clock here, less the way, unless the process's own says that it was longer.
        """
        answer, took_s = self._ask(_child.ORDER.pack(calls, first))
        if len(answer) != _child.TIME.size:
            raise DialectError("the kernel has written to a socket that is not its own")
        told_s, least_s = _child.TIME.unpack(answer)[0], max(took_s - ROUND_TRIP_S, 0.0)
        return told_s if least_s < told_s <= took_s else least_s

    def touch(self, sets: int) -> None:
        """Have the memory of so many sets at hand, so that no call waits for it."""
        self._ask(_child.ORDER.pack(0, sets))

    def _end_call(self, patience_s: float = 0.0) -> int:
        """End the process that calls the kernel, where it does not end by itself; return how it ended."""
        if self._call < 0:
            return 0
        self._wire.close()
        if not select.select([self._call], [], [], patience_s)[0]:
            with suppress(ProcessLookupError):  # it has just ended, as nobody will say more
                signal.pidfd_send_signal(self._call, signal.SIGKILL)
        os.close(self._call)
        self._call = -1
        code = self._control.recv(4)
        return int(struct.unpack("i", code)[0]) if code else 0

    def close(self) -> None:
        if self._call >= 0:
            os.close(self._call)
            self._call = -1
        self._process.kill()
        self._process.wait()
        self._wire.close()
        self._control.close()


@cache
def _readable() -> list[str]:
    """Return where libraries may be, beside the system's directories."""
    found = [sys.prefix, sys.base_prefix, *os.environ.get("LD_LIBRARY_PATH", "").split(":")]
    return [path for path in found if path]


def _reason(code: int) -> str:
    return f" by {signal.Signals(-code).name}" if code < 0 else ""
