"""Arrays in a GPU's memory between addresses that nobody may touch, so that a kernel which leaves them is caught."""

import math
from collections.abc import Sequence

import numpy as np

from tunery._errors import DialectError
from tunery.devices.cuda.driver import CudaStream, done
from tunery.dialects import Array

_ALIGNED = 256
_GUARD = 16 << 20  # bytes on each side, which take addresses and no memory
_ZONE = 4096  # bytes on each side that the kernel reaches, and may not change
_KNOWN = 0xA5
_WIDEST_FILL = 4  # bytes of a number that the GPU itself writes everywhere


class GpuArray:
    """An array whose end lies, but for a zone of known bytes, at addresses without memory: what goes there is a fault.

    Raises:
        DialectError: the GPU has no room for it.
    """

    def __init__(self, name: str, shape: Sequence[int], dtype: str, to: CudaStream) -> None:
        self._name, self._to = name, to
        self._shape, self._kind = tuple(shape), np.dtype(dtype)
        self._size = math.prod(shape) * self._kind.itemsize
        behind = -(-self._size // _ALIGNED) * _ALIGNED + _ZONE
        start, inner = self._reserve(behind + _ZONE)
        self.address = start + inner - behind
        self._zones = ((self.address - _ZONE, _ZONE), (self.address + self._size, behind - self._size))
        cu = to.use()
        for place, size in self._zones:
            done(cu.cuMemsetD8Async(place, _KNOWN, size, to.stream))
        to.wait()

    def _reserve(self, least: int) -> tuple[int, int]:
        """Take memory in the middle of addresses, to be let go with this object; return where it is, and its size."""
        cu = self._to.use()
        kind = cu.CUmemAllocationProp()
        kind.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        kind.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        kind.location.id = int(self._to.gpu.ordinal)
        least_unit = cu.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        unit = int(done(cu.cuMemGetAllocationGranularity(kind, least_unit)))
        inner = -(-least // unit) * unit
        try:
            memory = done(cu.cuMemCreate(inner, kind, 0))
        except DialectError as error:
            raise DialectError(f"the GPU has no room for the argument {self._name}: {error}") from error
        whole = inner + 2 * _GUARD
        first = int(done(cu.cuMemAddressReserve(whole, 0, 0, 0)))
        start = first + _GUARD
        done(cu.cuMemMap(start, inner, 0, memory, 0))
        self._to.let_go_with(
            self, ("cuMemUnmap", start, inner), ("cuMemRelease", memory), ("cuMemAddressFree", first, whole)
        )
        access = cu.CUmemAccessDesc()
        access.location = kind.location
        access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        done(cu.cuMemSetAccess(start, inner, [access], 1))
        return start, inner

    @property
    def array(self) -> Array:
        return self._read(self.address, self._size).view(self._kind).reshape(self._shape)

    def put(self, values: Array | float) -> None:
        given = np.asarray(values, self._kind)
        width = given.itemsize
        if given.ndim == 0 and width <= _WIDEST_FILL:
            fill = getattr(self._to.use(), f"cuMemsetD{8 * width}Async")
            done(fill(self.address, int(given.view(f"u{width}")), self._size // width, self._to.stream))
        else:
            given = np.ascontiguousarray(np.broadcast_to(given, self._shape))
            done(self._to.use().cuMemcpyHtoDAsync(self.address, given.ctypes.data, self._size, self._to.stream))
        self._to.wait()

    def check(self) -> None:
        if any((self._read(place, size) != _KNOWN).any() for place, size in self._zones):
            raise DialectError(f"the kernel has written outside of its argument {self._name}")

    def _read(self, place: int, size: int) -> "np.ndarray[tuple[int], np.dtype[np.uint8]]":
        into = np.empty(size, np.uint8)
        done(self._to.use().cuMemcpyDtoHAsync(into.ctypes.data, place, size, self._to.stream))
        self._to.wait()
        return into
