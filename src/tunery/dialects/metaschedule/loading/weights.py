"""A network's weights, kept beside its code: the file holds them as the model does, and loading packs them.

As constants of the program they were packed, serialised, linked, hashed and read again with it, and those of Winograd's
convolutions are up to four times as large as the model's.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from tunery._archive import MemberWriter
from tunery.dialects import Array
from tunery.dialects.metaschedule.loading import library
from tunery.dialects.metaschedule.loading.packing import Index, pack
from tunery.dialects.metaschedule.loading.transforms import transformed

WEIGHTS = "weights.bin"
_LEAST = 4096
_MOST_GROWTH = 256  # of one weight by packing: a row of one channel is padded to a few vectors
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


def write_weights(file: MemberWriter, weights: Sequence[Weight]) -> dict[str, Any]:
    """Write the arrays, one that several weights share once; return what the manifest says of them."""
    places: dict[int, int] = {}  # by the array's identity: the weights keep all of them
    told = []
    for weight in weights:
        array = np.ascontiguousarray(weight.array)
        if id(weight.array) not in places:
            places[id(weight.array)] = file.size
            file.write(array.reshape(-1).view(np.uint8).data)
        told.append(
            {
                "offset": places[id(weight.array)],
                "shape": list(weight.array.shape),
                "dtype": str(array.dtype),
                "transform": weight.transform,
                "packing": list(weight.packing) if weight.packing else None,
            }
        )
    return {"arrays": told}


def read_weights(file: IO[bytes], told: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return the weights in a file, prepared, as TVM's tensors; beside them one array at a time is held.

    Raises:
        ValueError: they are not where the manifest says.
    """
    users: dict[int, list[int]] = {}
    for number, each in enumerate(told):
        users.setdefault(int(each["offset"]), []).append(number)
    found: list[Any] = [None] * len(told)
    for offset, numbers in sorted(users.items()):
        shape, dtype = tuple(told[numbers[0]]["shape"]), np.dtype(told[numbers[0]]["dtype"])
        data = file.read(math.prod(shape) * dtype.itemsize)
        if file.tell() != offset + len(data):
            raise ValueError("its weights do not lie where its manifest says")
        array = np.frombuffer(data, dtype).reshape(shape)
        for number in numbers:
            each = told[number]
            packing = (tuple(each["packing"][0]), each["packing"][1]) if each["packing"] else None
            if packing and math.prod(packing[0]) > _MOST_GROWTH * max(array.size, _LEAST):
                raise ValueError("its weights would be packed to many times their size")
            found[number] = library.tensor(Weight(array, each["transform"], packing).prepared())
    if file.read(1):
        raise ValueError("it has more weights than its manifest says")
    return found
