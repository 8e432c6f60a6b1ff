"""Arrays between pages that nobody may touch."""

import ctypes
import mmap
from collections.abc import Callable

import numpy as np

PAGE = mmap.PAGESIZE
_NONE = 0  # PROT_NONE


def guarded(values: np.ndarray, *, begins: bool = False) -> np.ndarray:
    """Return a copy whose last byte lies before such a page, or whose first lies behind one if it `begins` there."""
    inside = -(-max(values.nbytes, 1) // PAGE) * PAGE
    memory = mmap.mmap(-1, inside + 2 * PAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for page in (address, address + PAGE + inside):
        if ctypes.CDLL(None, use_errno=True).mprotect(ctypes.c_void_p(page), ctypes.c_size_t(PAGE), _NONE):
            raise OSError(ctypes.get_errno(), "mprotect")
    start = PAGE if begins else PAGE + inside - values.nbytes
    array = np.frombuffer(memory, values.dtype, values.size, start).reshape(values.shape)
    array[...] = values
    return array


def dies(call: Callable[[], object]) -> bool:
    """Return whether a call ends its process, which is a fork of this one."""
    import os

    if not (child := os.fork()):
        try:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 2)  # the fault handler's report
            call()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])
