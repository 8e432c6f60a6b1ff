"""A user's kernel in processes of its own: what its author wrote runs there, and the clock is here."""

import os
import select
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from tunery import _sandbox
from tunery._errors import DialectError
from tunery._processor import keep_to_cores, wait_for_stop
from tunery.dialects.kernels import _child
from tunery.dialects.kernels.buffers import ArgumentSets, GuardedArray

ROUND_TRIP_S = 5e-5
"""What the way to the process and back may take: so much of what a call takes here is not counted."""
_ROOMS = [str(Path(module.__file__ or "").parent) for module in (_sandbox, _child)]
_START = (
    "import sys; sys.path += sys.argv[2:4]; import _sandbox, _child{}; del sys.path[-2:]; _child.main(sys.argv[1], {})"
)
LIBRARY = _START.format("", "_child.serve_library(_sandbox.enter)")
PROGRAM = _START.format(", _opencl_child", "_opencl_child.serve(_sandbox)")
"""What is started for kernels in C, and for those in OpenCL."""
_OPTIONS = {LIBRARY: ["-I", "-S"], PROGRAM: ["-I"]}
_KEPT = ("OMP_", "GOMP_", "GOTO_", "MALLOC_", "LD_LIBRARY_PATH", "OCL_ICD_", "OPENCL_", "POCL_")
_END_S = 5.0
_PINS = frozenset({"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY"})  # a confined process may not pin threads


class Starter:
    """A process that starts others, which have none of our variables, and descriptors of what they need alone."""

    def __init__(self, code: str, more: Mapping[str, str]) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        kept = {name: of for name, of in os.environ.items() if name.startswith(_KEPT) and name not in _PINS}
        with theirs:
            process = subprocess.Popen(
                [sys.executable, *_OPTIONS[code], "-c", code, str(theirs.fileno()), *_ROOMS], env={**kept, **more},
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )  # fmt: skip
        self._pid = process.pid
        weakref.finalize(self, _end, self._control, process)

    def start(self, threads: int, words: Sequence[object], files: Sequence[int]) -> tuple[socket.socket, int]:
        """Start a process on so many cores; return a connection to it, and a descriptor of it."""
        keep_to_cores(self._pid, threads)
        wire, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(self._control, ["\0".join(map(str, (threads, *words))).encode()], [theirs.fileno(), *files])
        message, processes, *_ = socket.recv_fds(wire, 1, 1)
        if not message:
            raise BrokenPipeError("what starts kernels has ended")
        return wire, processes[0]


def _end(control: socket.socket, process: "subprocess.Popen[bytes]") -> None:
    control.close()
    process.wait()


@cache
def _starter(code: str, more: tuple[tuple[str, str], ...], owner: int) -> Starter:  # noqa: ARG001 - whose it is
    return Starter(code, dict(more))


def start(
    code: str, threads: int, words: Sequence[object], files: Sequence[int], more: Mapping[str, str]
) -> tuple[socket.socket, int]:
    for is_last in (False, True):
        try:
            return _starter(code, tuple(more.items()), os.getpid()).start(threads, words, files)
        except OSError as error:
            _starter.cache_clear()
            if is_last:
                raise DialectError(f"the kernel's process cannot be started: {error}") from error
    raise AssertionError


class KernelProcess:
    """A process that loads a kernel, and calls it on arrays that it shares with this one.

    It gets none of our variables, is confined, and runs on as many cores as the kernel has threads. `arrays` are the
    kernel's arguments, None where one is a number; `words` and `load` what else the `code` is told, `more` its
    variables; with `reads`, answers are in a device's memory first. `restart` begins again, with nothing that the
    kernel has kept.

    Raises:
        DialectError: the kernel cannot be loaded.
    """

    def __init__(  # noqa: PLR0917 - what a process is made of
        self, code: str, words: Sequence[object], threads: int, arrays: Sequence[GuardedArray | None],
        sets: ArgumentSets, clock: Callable[[], float] = time.perf_counter,
        more: Mapping[str, str] = {}, load: bytes = _child.LOAD, reads: bool = False,
    ) -> None:  # fmt: skip
        self._code, self._more, self._load, self._reads = code, more, load, reads
        self._threads, self._clock, self._call, self._is_stopped = threads, clock, -1, False
        self._memory = (arrays, sets)  # as long as this is there, their files are open
        shared = [one and one.shared for one in arrays]
        self._words = [";".join(",".join(map(str, one[1:] if one else ())) for one in shared),
                       ",".join(map(str, sets.shared[1:])), *words, *readable()]  # fmt: skip
        self._files = [*(one[0] for one in shared if one), int(sets.shared[0])]
        self.restart()

    @property
    def is_there(self) -> bool:
        return self._call >= 0

    def restart(self) -> None:
        """End the process that has called the kernel, and load it in another."""
        self.close()
        self._wire, self._call = start(self._code, self._threads, self._words, self._files, self._more)
        try:
            refused = self._ask(self._load)[0].rstrip(b"\0").decode(errors="replace")
        except DialectError:
            self.close()
            raise
        if refused:
            self.close()
            raise DialectError(f"the built kernel cannot be loaded: {refused[:200]}")

    def _ask(self, order: bytes) -> tuple[bytes, float]:
        """Return the answer and how long it took."""
        if self._is_stopped:
            self._signal(signal.SIGCONT)
            self._is_stopped = False
        start_s = self._clock()
        with suppress(OSError):  # where the process is gone, its end is the answer
            self._wire.send(order)
        try:
            answer = self._wire.recv(512)
        except OSError:
            answer = b""
        took_s = self._clock() - start_s
        if len(answer) == _child.CODE.size and has_ended(self._call):
            code = _child.CODE.unpack(answer)[0]
            self.close()
            reason = f" by {signal.Signals(-code).name}" if code < 0 else ""
            raise DialectError(f"the kernel has ended its process{reason}")
        if not answer:
            self.close()
            raise DialectError("the kernel's process was ended")
        return answer, took_s

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # where it is gone, its end is the next answer
            signal.pidfd_send_signal(self._call, number)

    def _stop(self) -> None:
        """Have none of its threads run until the next order."""
        self._signal(signal.SIGSTOP)
        self._is_stopped = True
        wait_for_stop(self._call)

    def run(
        self, calls: int = 1, first: int = _child.GUARDED, *, last: bool = False,
        show: Callable[[], None] = lambda: None,
    ) -> float:  # fmt: skip
        """Call the kernel so many times, on the sets of arguments from the `first` one on, and return the seconds.

        The time is that of the clock here, less the way, unless the process's own says that it was longer. `show` puts
        new numbers into the sets while nothing runs in the process: before, it had time that nobody has counted. After
        the `last` call it has no time for more work: what it has not computed is missing.
        """
        if self._reads:  # the code of a GPU's kernels is not in the process
            show()
        self._order(_child.PREPARE, calls, first)
        if not self._reads and first != _child.GUARDED:
            self._stop()
            show()
        told_s, took_s = self._order(_child.RUN, calls, first)
        if self._reads:
            self._order(_child.READ, calls, first)
        elif last:
            self.close()
        least_s = max(took_s - ROUND_TRIP_S, 0.0)
        return told_s if least_s < told_s <= took_s else least_s

    def _order(self, kind: int, calls: int, first: int) -> tuple[float, float]:
        answer = b""
        if not select.select([self._wire], [], [], 0)[0]:
            answer, took_s = self._ask(_child.ORDER.pack(kind, calls, first))
        if len(answer) != _child.TIME.size:
            raise DialectError("the kernel has written to a socket that is not its own")
        return _child.TIME.unpack(answer)[0], took_s

    def close(self) -> None:
        if self._call >= 0:
            end(self._wire, self._call)
            self._call, self._is_stopped = -1, False


def end(wire: socket.socket, process: int) -> None:
    wire.close()
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(process, signal.SIGKILL)
    has_ended(process, _END_S)  # what it has of the cores is free for the next
    os.close(process)


def has_ended(process: int, patience_s: float = 0.0) -> bool:
    return bool(select.select([process], [], [], patience_s)[0])


@cache
def readable() -> list[str]:
    """Return where libraries may be, beside the system's directories."""
    found = [sys.prefix, sys.base_prefix, *os.environ.get("LD_LIBRARY_PATH", "").split(":")]
    return [path for path in found if path]
