"""A network's weights, kept beside its code: the file holds them as the model does, and loading packs them.

As constants of the program they were packed, serialised, linked, hashed and read again with it, and those of Winograd's
convolutions are up to four times as large as the model's.
"""

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tunery.dialects._base import Array
from tunery.dialects.metaschedule._tvm import tvm
from tunery.dialects.metaschedule.expressions import transformed
from tunery.dialects.metaschedule.packing import Index, pack

WEIGHTS = "weights.bin"
_LEAST = 4096


@dataclass(frozen=True, eq=False)
class Weight:
    """One argument of a kernel: the model's array, how an expression transforms it ("": not), and how it is packed.

    `packing` is the packed array's shape and its index expressions, None where the kernel reads it as it is.
    """

    array: Array
    transform: str = ""
    packing: tuple[tuple[int, ...], list[Index]] | None = None

    @property
    def apart(self) -> bool:
        """Whether it is worth a place beside the code, and NumPy alone can read it."""
        return self.array.size >= _LEAST and self.array.dtype.kind in "biuf"

    def prepared(self) -> Array:
        """Return what the kernel takes."""
        array = transformed([self.array], {0: self.transform})[0] if self.transform else self.array
        return pack(array, *self.packing) if self.packing else array


def write_weights(archive: zipfile.ZipFile, weights: Sequence[Weight]) -> list[dict[str, Any]]:
    """Write the arrays to an archive, one that several weights share once; return what its manifest says of them."""
    if not weights:
        return []
    places: dict[tuple[int, int], int] = {}  # by where the array is in memory, and its size
    told, end = [], 0
    with archive.open(WEIGHTS, "w", force_zip64=True) as file:
        for weight in weights:
            array = np.ascontiguousarray(weight.array)
            place = (weight.array.__array_interface__["data"][0], array.nbytes)
            if place not in places:
                places[place] = end
                end += file.write(array.reshape(-1).view(np.uint8).data)
            told.append(
                {
                    "offset": places[place],
                    "shape": list(array.shape),
                    "dtype": str(array.dtype),
                    "transform": weight.transform,
                    "packing": list(weight.packing) if weight.packing else None,
                }
            )
    return told


def read_weights(archive: zipfile.ZipFile, told: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return the weights that an archive holds, prepared, as TVM's tensors.

    Raises:
        zipfile.BadZipFile: they are not what was written.
    """
    if not told:
        return []
    with archive.open(WEIGHTS) as file:  # the archive's checksum is compared at the end
        data = file.read()
    return [tvm.runtime.tensor(_weight(data, each).prepared()) for each in told]


def _weight(data: bytes, told: Mapping[str, Any]) -> Weight:
    shape, dtype, packing = tuple(told["shape"]), np.dtype(told["dtype"]), told["packing"]
    array = np.frombuffer(data, dtype, int(np.prod(shape, dtype=np.int64)), told["offset"]).reshape(shape)
    return Weight(array, told["transform"], (tuple(packing[0]), packing[1]) if packing else None)
