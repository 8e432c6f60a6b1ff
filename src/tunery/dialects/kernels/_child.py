"""Calls one user's kernel in a process that has few rights and none of our code beside this and `_sandbox`.

It is started for every kernel, so it imports little. It answers each message on its socket with one: empty ones until
the kernel is loaded, then what is wrong with it, or nothing; then each `ORDER` with the seconds that its calls took by
the clock of this process, which the kernel may have changed.
"""

import ctypes
import mmap
import os
import struct
import time

TYPE_CHECKING = False  # what `typing` has
if TYPE_CHECKING:
    from collections.abc import Callable

ORDER = struct.Struct("<qqqq")  # calls, the changed array's number, or -1, how many places, bytes of a value
TIME = struct.Struct("<d")
LOAD = b"load"
_END_WITH_PARENT = 1  # of prctl
_FIXED, _FAILED = 0x10, ctypes.c_void_p(-1).value  # of mmap


def main(  # noqa: PLR0917 - from a command line
    enter: "Callable[[tuple[str, ...], tuple[str, ...]], None]",
    library: str,
    control: str,
    changes: str,
    count: str,
    arrays: str,
    *readable: str,
) -> None:
    """Give up rights, load the kernel, and call it as often as is said, until nobody says more.

    `enter` gives up the rights, `control` and `changes` are files, `count` is that of threads, and `arrays` say of each
    array what `GuardedArray.shared` says, or nothing of a number.
    """
    wire = int(control)
    libc = ctypes.CDLL(None, use_errno=True)
    addresses = [_mapped(libc, *map(int, one.split(","))) if one else 0 for one in arrays.split(";")]
    shared = mmap.mmap(int(changes), 0)
    os.close(int(changes))
    libc.prctl(_END_WITH_PARENT, 9, 0, 0, 0)
    written = ctypes.addressof(ctypes.c_char.from_buffer(shared))
    openmp, threads = load_openmp(), int(count)
    enter((library, *readable), ())
    while os.read(wire, len(LOAD)) != LOAD:
        os.write(wire, b"\0")
    try:
        run = ctypes.CDLL(library).tunery_run
    except (OSError, AttributeError) as error:
        os.write(wire, str(error).encode(errors="replace")[:500])
        return
    if openmp is not None:
        openmp.omp_set_num_threads(threads)
    os.write(wire, b"\0")
    long, pointer = ctypes.c_long, ctypes.c_void_p
    run.argtypes, run.restype = (pointer, long, ctypes.c_int, pointer, pointer, pointer, long, long), None
    pointers = (pointer * len(addresses))(*addresses)
    first, clock = ctypes.cast(pointers, pointer), time.perf_counter
    while order := os.read(wire, ORDER.size):
        calls, array, places, width = ORDER.unpack(order)
        values = (addresses[array], written, written + 8 * places) if places else (0, 0, 0)
        start = clock()
        run(first, calls, threads, *values, width, places)
        os.write(wire, TIME.pack(clock() - start))


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
