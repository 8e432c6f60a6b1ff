"""Starts processes that call one user's kernel, with few rights and none of our code beside this and `_sandbox`.

It is started for every kernel, so it imports little. It never loads the kernel itself: for each message that brings a
socket it forks a process which does, tells that one's number, and then how it ended. So nothing of what a kernel has
kept in memory reaches the next process. That one answers each message on its own socket: `LOAD` with what is wrong, or
nothing; each `ORDER` with the seconds that its calls took by its clock, which the kernel may have changed.
"""

import _socket  # what `socket` wraps, which is slow to import
import ctypes
import mmap
import os
import struct
import time

TYPE_CHECKING = False  # what `typing` has
if TYPE_CHECKING:
    from collections.abc import Callable

ORDER = struct.Struct("<qq")
"""How many calls, on further and further sets of arguments from this one on; 0 calls: have their memory at hand."""
TIME = struct.Struct("<d")
LOAD = b"load"
GUARDED = -1
"""The set of arguments between guard pages, which each call gets as it is."""
_END_WITH_PARENT = 1  # of prctl
_FIXED, _FAILED = 0x10, ctypes.c_void_p(-1).value  # of mmap
_POPULATE_WRITE = 23  # of madvise


class LoadedFunction:
    """What is known of the kernel before it is loaded: where its arguments are, in this process and all its children.

    `arrays` say of each argument what `GuardedArray.shared` says, or nothing of a number. `sets` is the file of the
    further sets of arguments, the bytes of one and of all, and of each argument where it is in a set, or nothing where
    all calls get the guarded one.
    """

    def __init__(self, library: str, threads: str, arrays: str, sets: str) -> None:
        self.library, self.threads = library, int(threads)
        self._libc, self._openmp = ctypes.CDLL(None, use_errno=True), load_openmp()
        self._libc.prctl(_END_WITH_PARENT, 9, 0, 0, 0)
        self._guarded = [_mapped(self._libc, *map(int, one.split(","))) if one else 0 for one in arrays.split(";")]
        file, stride, size, *places = sets.split(",")
        self._sets, self._stride = mmap.mmap(int(file), int(size)), int(stride)
        os.close(int(file))
        self._first = ctypes.addressof(ctypes.c_char.from_buffer(self._sets))
        self._places = [int(place) if place else None for place in places]
        strides = [0 if place is None else self._stride for place in self._places]
        self._strides = (ctypes.c_long * len(strides))(*strides)

    def serve(self, enter: "Callable[[tuple[str, ...]], None]", readable: tuple[str, ...], wire: int) -> None:
        """Give up rights, load the kernel, and call it as often as is said, until nobody says more."""
        self._libc.prctl(_END_WITH_PARENT, 9, 0, 0, 0)
        enter((self.library, *readable))
        os.read(wire, len(LOAD))
        try:
            run = ctypes.CDLL(self.library).tunery_run
        except (OSError, AttributeError) as error:
            os.write(wire, str(error).encode(errors="replace")[:500])
            return
        if self._openmp is not None:
            self._openmp.omp_set_num_threads(self.threads)
            nothing = ctypes.cast(self._libc.getpid, ctypes.c_void_p)
            self._openmp.GOMP_parallel(nothing, None, self.threads, 0)  # for its threads to be there
        os.write(wire, b"\0")
        pointer = ctypes.c_void_p
        run.argtypes, run.restype = (pointer, pointer, ctypes.c_long, ctypes.c_long), None
        clock = time.perf_counter
        while order := os.read(wire, ORDER.size):
            calls, first = ORDER.unpack(order)
            pointers = (pointer * len(self._guarded))(*self._guarded)
            strides, count = None, 0
            if first != GUARDED:
                strides, count = self._strides, len(self._places)
                for number, place in enumerate(self._places):
                    if place is not None:
                        pointers[number] = self._first + first * self._stride + place
            start = clock()
            if calls:
                run(pointers, strides, count, calls)
            else:
                self._libc.madvise(pointer(self._first), ctypes.c_size_t(first * self._stride), _POPULATE_WRITE)
            os.write(wire, TIME.pack(clock() - start))


def main(  # noqa: PLR0917 - from a command line
    enter: "Callable[[tuple[str, ...]], None]",
    library: str,
    control: str,
    threads: str,
    arrays: str,
    sets: str,
    *readable: str,
) -> None:
    """Start a process at each message, one after the other. `enter` gives up its rights."""
    wire = _socket.socket(fileno=int(control))
    kernel = LoadedFunction(library, threads, arrays, sets)
    while True:
        message, rights, *_ = wire.recvmsg(1, _socket.CMSG_SPACE(4))
        if not message:
            return
        [channel] = struct.unpack("i", rights[0][2])
        if pid := os.fork():
            os.close(channel)
            wire.send(struct.pack("i", pid))
            wire.send(struct.pack("i", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
        else:
            wire.close()
            try:
                kernel.serve(enter, readable, channel)
            finally:
                os._exit(0)


def _mapped(libc: ctypes.CDLL, file: int, size: int, guard: int, start: int) -> int:
    """Map a file between pages that nobody may touch, and return the address of what begins at `start` in it."""
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    around = libc.mmap(None, size + 2 * guard, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    flags = mmap.MAP_SHARED | mmap.MAP_POPULATE | _FIXED
    if around in {None, _FAILED} or (
        libc.mmap(around + guard, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, file, guard) == _FAILED
    ):
        raise MemoryError("no room for the kernel's arguments")
    os.close(file)
    return int(around + guard + start)


def load_openmp() -> ctypes.CDLL | None:
    """Load OpenMP's runtime for good, where it is there: its threads outlive the libraries that started them."""
    try:
        return ctypes.CDLL("libgomp.so.1")
    except OSError:  # then the kernel's own loading says what is missing
        return None
