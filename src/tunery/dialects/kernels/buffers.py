"""Arrays between pages that nobody may touch, so that a kernel which leaves its arguments is caught."""

import ctypes
import fcntl
import math
import mmap
import os
import weakref
from collections.abc import Sequence

import numpy as np

from tunery._errors import DialectError
from tunery.dialects import Array

_ALIGNED = 64
_GUARD = 16 << 20  # bytes on each side, which take addresses and no memory
_KNOWN = 0xA5
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class GuardedArray:
    """An array whose end lies at pages that cannot be read or written, and that begins after other such pages.

    What is between the array and these pages holds known bytes: fewer than `aligned` behind it, fewer than a page
    before it, and `zone` bytes more on each side. All of that is `inside`, where the array begins at `offset`. `shared`
    is what another process needs to have the same memory: a file, how many bytes lie there between how many others, and
    where the array begins in them.
    """

    def __init__(self, name: str, shape: Sequence[int], dtype: str, *, aligned: int = _ALIGNED, zone: int = 0) -> None:
        kind = np.dtype(dtype)
        size = math.prod(shape) * kind.itemsize
        zone = -(-zone // aligned) * aligned
        back = -(-size // aligned) * aligned + zone
        inner = -(-(back + zone) // mmap.PAGESIZE) * mmap.PAGESIZE
        file = os.memfd_create(name, os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, file)
        os.truncate(file, inner + 2 * _GUARD)
        seal(file)
        self._memory = mmap.mmap(file, 0)
        whole = np.frombuffer(self._memory, np.uint8)
        for pages in (whole[:_GUARD], whole[-_GUARD:]):
            if _libc.mprotect(pages.ctypes.data, _GUARD, 0):
                raise DialectError("this system does not let memory be protected")
        start = _GUARD + inner - back
        self.inside, self.offset = whole[_GUARD:-_GUARD], inner - back
        self.shared = (file, inner, _GUARD, self.offset)
        self._name = name
        self._before, self._behind = whole[_GUARD:start], whole[start + size : -_GUARD]
        self._before[:], self._behind[:] = _KNOWN, _KNOWN
        self._array = whole[start : start + size].view(kind).reshape(shape)
        self.address = self._array.ctypes.data

    @property
    def array(self) -> Array:
        return self._array

    def put(self, values: Array | float) -> None:
        """Have it hold an array of its shape, or one number everywhere."""
        self._array[...] = values

    def check(self) -> None:
        """Check that nothing was written beside the array."""
        if (self._before != _KNOWN).any() or (self._behind != _KNOWN).any():
            raise DialectError(f"the kernel has written outside of its argument {self._name}")


def seal(file: int) -> None:
    """Keep a file in memory at its size, whoever has it open: who maps less than was promised is ended by a signal."""
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
