"""Starts processes that call users' kernels, with few rights and none of our code beside this room and `_sandbox`.
There is one of these for each measuring process and language. It never loads a kernel: for each message, which brings a
socket and the files of the arguments, it forks a process that does, sends a descriptor of that process by the socket,
and at last how it ended. So nothing of what a kernel has kept in memory reaches the next process. That one answers each
message on its own socket: `LOAD` with what is wrong, or nothing; each `ORDER` with the seconds that it took by its
clock, which the kernel may have changed."""

import _socket  # what `socket` wraps, which is slow to import
import ctypes
import mmap
import os
import select
import struct
import time
from contextlib import suppress

TYPE_CHECKING = False  # what `typing` has
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Serve = Callable[[Sequence[str], Sequence[int], int], None]

ORDER = struct.Struct("<qqq")
"""One of the three below; how many calls; on further and further sets of arguments from this one on."""
PREPARE, RUN, READ = range(3)
"""Make all ready for calls; call, on what the last order prepared; have the host's memory hold the answers."""
TIME, CODE = struct.Struct("<d"), struct.Struct("i")
LOAD = b"load"
GUARDED = -1
"""The set of arguments between guard pages, which each call gets as it is."""
_MOST_WORDS, _MOST_FILES = 1 << 16, 128  # of a message
_END_WITH_PARENT = 1  # of prctl
_FIXED, _FAILED = 0x10, ctypes.c_void_p(-1).value  # of mmap
_POPULATE_WRITE = 23  # of madvise
libc = ctypes.CDLL(None, use_errno=True)


def main(control: str, serve: "Serve") -> None:
    """Start a process at each message, until nobody can send one; then all of them end, with what they started."""
    order = _socket.socket(fileno=int(control))
    poll, ends = select.poll(), dict[int, tuple[int, _socket.socket]]()
    poll.register(order, select.POLLIN)
    while True:
        for file, _ in poll.poll():
            if file in ends:
                poll.unregister(file)
                pid, channel = ends.pop(file)
                _kill_group(pid)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                _tell(channel, CODE.pack(code))
                channel.close()
                os.close(file)
                continue
            message, rights, *_ = order.recvmsg(_MOST_WORDS, _socket.CMSG_SPACE(4 * _MOST_FILES))
            if not message:
                for pid, _channel in ends.values():
                    _kill_group(pid)
                return
            channel_file, *files = struct.unpack(f"{len(rights[0][2]) // 4}i", rights[0][2])
            if pid := os.fork():
                _close(files)
                process, channel = os.pidfd_open(pid), _socket.socket(fileno=channel_file)
                ends[process] = pid, channel
                poll.register(process, select.POLLIN)
                _tell(channel, b"\0", CODE.pack(process))
            else:
                try:
                    os.setpgid(0, 0)
                    libc.prctl(_END_WITH_PARENT, 9, 0, 0, 0)
                    order.close()
                    _close([*ends, *(one.detach() for _, one in ends.values())])
                    serve(message.decode().split("\0"), files, channel_file)
                finally:
                    os._exit(0)


def _tell(channel: "_socket.socket", message: bytes, files: bytes = b"") -> None:
    with suppress(OSError):  # or nobody asks any more
        channel.sendmsg([message], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)] if files else [])


def _kill_group(leader: int) -> None:
    with suppress(OSError):  # or it is not one yet, or has ended
        os.killpg(leader, 9)


def _close(files: "Sequence[int]") -> None:
    for file in files:
        os.close(file)


class Arguments:
    """A kernel's arguments in memory that the measuring process has too. `arrays` say of each argument what
    `GuardedArray.shared` says without its file, or nothing of a number. `sets` are the bytes of one and of all further
    sets of arguments, and of each argument where it is in a set, or nothing where all calls get the guarded one.
    `files` are those of the arrays, and the last that of the sets."""

    def __init__(self, arrays: str, sets: str, files: "Sequence[int]") -> None:
        left = iter(files)
        self.guarded = [_Guarded(next(left), *map(int, one.split(","))) if one else None for one in arrays.split(";")]
        stride, size, *places = sets.split(",")
        self.sets, self.stride = mmap.mmap(file := next(left), int(size)), int(stride)
        os.close(file)
        self.places = [int(place) if place else None for place in places]
        self._first = ctypes.addressof(ctypes.c_char.from_buffer(self.sets))

    def address(self, number: int, first: int) -> int:
        array, place = self.guarded[number], self.places[number] if self.places else None
        if first != GUARDED and place is not None:
            return self._first + first * self.stride + place
        return array.address + array.start if array else 0

    def have_at_hand(self, sets: int) -> None:
        """Have the memory of the first sets at hand, so that no call waits for it."""
        libc.madvise(ctypes.c_void_p(self._first), ctypes.c_size_t(sets * self.stride), _POPULATE_WRITE)


class _Guarded:
    """A file mapped between pages that nobody may touch; an array begins at `start` in it."""

    def __init__(self, file: int, size: int, guard: int, start: int) -> None:
        self.size, self.start = size, start
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
        around = libc.mmap(None, size + 2 * guard, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE | _FIXED
        if around in {None, _FAILED} or (
            libc.mmap(around + guard, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, file, guard) == _FAILED
        ):
            raise MemoryError("no room for the kernel's arguments")
        os.close(file)
        self.address = int(around + guard)


def answer(channel: int, orders: "Callable[[int, int, int], float]") -> None:
    os.write(channel, b"\0")
    while order := os.read(channel, ORDER.size):
        os.write(channel, TIME.pack(orders(*ORDER.unpack(order))))


def serve_library(enter: "Callable[[tuple[str, ...]], None]") -> "Serve":
    """Return what calls a kernel in C: a shared library."""
    openmp = load_openmp()

    def serve(words: "Sequence[str]", files: "Sequence[int]", channel: int) -> None:
        threads, arrays, sets, library, *readable = words
        arguments = Arguments(arrays, sets, files)
        enter((library, *readable))
        os.read(channel, len(LOAD))
        try:
            run = ctypes.CDLL(library).tunery_run
        except (OSError, AttributeError) as error:
            os.write(channel, str(error).encode(errors="replace")[:500])
            return
        if openmp is not None:
            openmp.omp_set_num_threads(int(threads))
            openmp.GOMP_parallel(
                ctypes.cast(libc.getpid, ctypes.c_void_p), None, int(threads), 0
            )  # its threads are there
        pointer, clock = ctypes.c_void_p, time.perf_counter
        run.argtypes, run.restype = (pointer, pointer, ctypes.c_long, ctypes.c_long), None
        count = len(arguments.guarded)
        strides = (ctypes.c_long * count)(*(arguments.stride if one is not None else 0 for one in arguments.places))

        def order(kind: int, calls: int, first: int) -> float:
            if kind == PREPARE and first != GUARDED:
                arguments.have_at_hand(first + calls)
            if kind != RUN:
                return 0.0
            pointers = (pointer * count)(*(arguments.address(number, first) for number in range(count)))
            start = clock()
            run(pointers, None if first == GUARDED else strides, 0 if first == GUARDED else count, calls)
            return clock() - start

        answer(channel, order)

    return serve


def load_openmp() -> ctypes.CDLL | None:
    """Load OpenMP's runtime for good, where it is there: its threads outlive the libraries that started them."""
    try:
        return ctypes.CDLL("libgomp.so.1")
    except OSError:  # then the kernel's own loading says what is missing
        return None
