"""A network's weights, kept beside its code: the file holds them as the model does, and loading packs them.

As constants of the program they were packed, serialised, linked, hashed and read again with it, and those of Winograd's
convolutions are up to four times as large as the model's.
"""

import math
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tunery.dialects import Array
from tunery.dialects.metaschedule._tvm import tvm
from tunery.dialects.metaschedule.codegen.packing import Index, pack
from tunery.dialects.metaschedule.variants.variant import transformed

WEIGHTS = "weights.bin"
_LEAST = 4096
_PLAIN = tuple(np.dtype(code) for code in "?bhilqBHILQefd")


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
        return self.array.size >= _LEAST and self.array.dtype in _PLAIN

    def prepared(self) -> Array:
        """Return what the kernel takes."""
        array = transformed([self.array], {0: self.transform})[0] if self.transform else self.array
        return pack(array, *self.packing) if self.packing else array


def write_weights(archive: zipfile.ZipFile, weights: Sequence[Weight]) -> dict[str, Any]:
    """Write the arrays to an archive, one that several weights share once; return what its manifest says of them."""
    places: dict[int, int] = {}  # by the array's identity: the weights keep all of them
    told, end = [], 0
    with archive.open(WEIGHTS, "w", force_zip64=True) as file:
        for weight in weights:
            array = np.ascontiguousarray(weight.array)
            if id(weight.array) not in places:
                places[id(weight.array)] = end
                end += file.write(array.reshape(-1).view(np.uint8).data)
            told.append(
                {
                    "offset": places[id(weight.array)],
                    "shape": list(weight.array.shape),
                    "dtype": str(array.dtype),
                    "transform": weight.transform,
                    "packing": list(weight.packing) if weight.packing else None,
                }
            )
    return {"arrays": told, "crc": archive.getinfo(WEIGHTS).CRC}


def read_weights(archive: zipfile.ZipFile, told: Mapping[str, Any]) -> list[Any]:
    """Return the weights that an archive holds, prepared, as TVM's tensors; beside them one array at a time is held.

    Raises:
        ValueError: they are those of another network.
        zipfile.BadZipFile: they are not what was written.
    """
    if told["crc"] != archive.getinfo(WEIGHTS).CRC:
        raise ValueError("its weights are those of another network")
    users: dict[int, list[int]] = {}
    for number, each in enumerate(told["arrays"]):
        users.setdefault(int(each["offset"]), []).append(number)
    found: list[Any] = [None] * len(told["arrays"])
    with archive.open(WEIGHTS) as file:  # read from end to end, at which the archive's checksum is compared
        for offset, numbers in sorted(users.items()):
            shape, dtype = tuple(told["arrays"][numbers[0]]["shape"]), np.dtype(told["arrays"][numbers[0]]["dtype"])
            data = file.read(math.prod(shape) * dtype.itemsize)
            if file.tell() != offset + len(data):
                raise ValueError("its weights do not lie where its manifest says")
            array = np.frombuffer(data, dtype).reshape(shape)
            for number in numbers:
                each = told["arrays"][number]
                packing = (tuple(each["packing"][0]), each["packing"][1]) if each["packing"] else None
                found[number] = tvm.runtime.tensor(Weight(array, each["transform"], packing).prepared())
        if file.read(1):
            raise ValueError("it has more weights than its manifest says")
    return found
