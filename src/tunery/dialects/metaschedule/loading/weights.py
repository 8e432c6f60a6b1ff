"""A network's weights, kept beside its code: the file holds them as kernels take them, and loading maps them. As
constants of the program they were packed, serialised, linked, hashed and read again with it, and those of Winograd's
convolutions are up to four times as large as the model's."""

import hashlib
import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from tunery._archive import MemberWriter
from tunery.dialects import Array
from tunery.dialects.metaschedule.loading import library
from tunery.dialects.metaschedule.loading.preparing import (
    TILES,
    Index,
    from_tiles,
    keeps_values,
    prepare,
    transformed_shape,
    unpack,
)

WEIGHTS = "weights.bin"
_LEAST = 4096
_MOST_GROWTH = 256  # of one weight by packing: a row of one channel is padded to a few vectors
_MOST_MORE = 0.05
"""By what part the weights may be larger in the file than in the model. What would exceed that, of those that grow
most, is written as the model has it, and prepared on loading: Winograd's large tiles make four of one, which takes as
long to read as to make."""
_WIDENED = (np.dtype("float16"), np.dtype("float32"))
_PLAIN = tuple(np.dtype(code) for code in "?bhilqBHILQefd")


@dataclass(frozen=True, eq=False)
class Weight:
    """One argument of a kernel: the model's array, how a variant transforms it ("": not), and how it is packed.
    `packing` is the packed array's shape and its index expressions, None where the kernel reads it as it is."""

    array: Array
    transform: str = ""
    packing: tuple[tuple[int, ...], list[Index]] | None = None

    @property
    def apart(self) -> bool:
        return self.array.size >= _LEAST and self.array.dtype in _PLAIN

    @cached_property
    def form(self) -> str:
        """How a kernel takes it, "" as the model has it."""
        return json.dumps([self.transform, self.packing]) if self.transform or self.packing else ""

    @cached_property
    def prepared_bytes(self) -> int:
        shape = self.packing[0] if self.packing else transformed_shape(self.array.shape, self.transform)
        size = math.prod(shape) * self.array.itemsize
        return size // 2 if self.halves and keeps_values(self.transform) else size

    @cached_property
    def halves(self) -> bool:
        return _halves(self.array) is not None

    @property
    def original_bytes(self) -> int:
        return self.array.nbytes // (1 + self.halves)

    def prepared(self, empty: Callable[..., Array] = np.empty) -> Array:
        return prepare(self.array, self.transform, self.packing, empty)


def _halves(array: Array) -> Array | None:
    """Return an array of floats in half precision, None where that is not exact."""
    if array.dtype != np.float32 or _halves_of(array.reshape(-1)[:_LEAST]) is None:
        return None
    return _halves_of(array)


def _halves_of(array: Array) -> Array | None:
    with np.errstate(over="ignore"):
        half = array.astype(np.float16)
    return half if np.array_equal(half.astype(np.float32).view(np.uint32), array.view(np.uint32)) else None


class _Room:
    """Memory for one array at a time: new memory for each would have to come from the system."""

    def __init__(self) -> None:
        self._bytes = np.empty(0, np.uint8)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        size = math.prod(shape) * dtype.itemsize
        if size > self._bytes.size:
            self._bytes = np.empty(size, np.uint8)
        array: Array = self._bytes[:size].view(dtype).reshape(shape)
        return array


def write_weights(file: MemberWriter, weights: Sequence[Weight], kept: Collection[int] | None = None) -> dict[str, Any]:
    """Write the arrays as kernels take them, one that several share once; return what the manifest says of them. Those
    that become much larger for their kernels may be written as the model has them, and prepared on loading: all but
    those whose identities are in `kept`, where that is given."""
    kept = _worth_preparing(weights) if kept is None else kept
    room = _Room()
    places: dict[tuple[int, str], int] = {}  # by the array's identity: the weights keep all of them
    entries = []
    for weight in weights:
        whole = id(weight) in kept
        transform, packing = ("", None) if whole else (weight.transform, weight.packing)
        array = np.ascontiguousarray(weight.prepared(room.empty) if whole else weight.array)
        stored = _halves(array) if weight.halves else None
        stored = array if stored is None else stored
        key = (id(weight.array), weight.form if whole else "")
        if key not in places:
            file.write(bytes(-file.size % library.ALIGNMENT))
            places[key] = file.size
            file.write(stored.reshape(-1).view(np.uint8).data)
        entries.append(
            {
                "offset": places[key],
                "shape": list(array.shape),
                "dtype": str(array.dtype),
                "stored": str(stored.dtype),
                "transform": transform,
                "packing": list(packing) if packing else None,
                "made": _told_of(weight) if whole else None,
            }
        )
    return {"arrays": entries}


def _told_of(weight: Weight) -> dict[str, Any]:
    packing = list(weight.packing) if weight.packing else None
    return {"shape": list(weight.array.shape), "transform": weight.transform, "packing": packing}


def write_shared(file: MemberWriter, targets: Sequence[tuple[memoryview, Sequence[Mapping[str, Any]]]]) -> list[Any]:
    """Write the weights of one network for several targets, each array once; return what to say of them, by target. An
    array that all take in the same form is written so, others as the model has them, and prepared on loading. What
    Winograd's transform made cannot be undone to the last bit: that is written for each of its sizes."""
    arrays: dict[tuple[Any, ...], Array] = {}
    forms: dict[int, set[str]] = {}
    weights = []
    for memory, entries in targets:
        for entry in entries:
            weight, prepared = _original(memory, entry)
            digest = hashlib.sha256(weight.array.reshape(-1).view(np.uint8).data).digest()
            weight = replace(
                weight, array=arrays.setdefault((weight.array.dtype, weight.array.shape, digest), weight.array)
            )
            forms.setdefault(id(weight.array), set()).add(weight.form if prepared else "")
            weights.append(weight)
    alike = {identity for identity, ways in forms.items() if len(ways) == 1 and "" not in ways}
    whole = write_weights(file, weights, {id(weight) for weight in weights if id(weight.array) in alike})["arrays"]
    return [{"arrays": [whole.pop(0) for _ in entries]} for _, entries in targets]


def _original(memory: memoryview, entry: Mapping[str, Any]) -> tuple[Weight, bool]:
    """Return a weight of a file as the model has it, where that can be told, and whether the file has it prepared."""
    array, original = _mapped(memory, entry), entry.get("made")
    if not original:
        packing = _packing_of(entry)
        return Weight(array, entry["transform"], packing), not (entry["transform"] or packing)
    transform, shape = str(original["transform"]), tuple(original["shape"])
    packing = _packing_of(original)
    if packing:
        array = unpack(array, transformed_shape(shape, transform), packing[1])
    if transform.startswith(TILES):
        array = from_tiles(array, shape, transform)
    elif transform:
        transform = ""
    return Weight(array, transform, packing), True


def _worth_preparing(weights: Sequence[Weight]) -> set[int]:
    room = _MOST_MORE * sum({id(weight.array): weight.original_bytes for weight in weights}.values())
    kept, forms = set[int](), dict[int, set[str]]()
    for weight in sorted(weights, key=lambda one: (bool(one.form), one.prepared_bytes / one.original_bytes)):
        written = forms.setdefault(id(weight.array), set())
        more = 0 if weight.form in written else weight.prepared_bytes - (0 if written else weight.original_bytes)
        if more <= max(room, 0):
            room -= more
            kept.add(id(weight))
        written.add(weight.form if id(weight) in kept else "")
    return kept


def map_weights(memory: memoryview, entries: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return the weights in a mapped file as TVM's tensors in that memory; what is to be prepared is in new memory."""
    return [library.shared(_prepared(_mapped(memory, entry), entry)) for entry in entries]


def _packing_of(entry: Mapping[str, Any]) -> tuple[tuple[int, ...], list[Index]] | None:
    return (tuple(entry["packing"][0]), entry["packing"][1]) if entry["packing"] else None


def _mapped(memory: memoryview, entry: Mapping[str, Any]) -> Array:
    stored, dtype = np.dtype(entry["stored"]), np.dtype(entry["dtype"])
    if stored != dtype and (stored, dtype) != _WIDENED:
        raise ValueError(f"its weights are stored as {stored} and not as {dtype}")
    array = np.frombuffer(memory, stored, math.prod(entry["shape"]), int(entry["offset"])).reshape(entry["shape"])
    if stored == dtype:
        return array
    wide = _aligned(array.shape, dtype)
    np.copyto(wide, array)
    return wide


def _prepared(array: Array, entry: Mapping[str, Any]) -> Array:
    packing = _packing_of(entry)
    if packing and math.prod(packing[0]) > _MOST_GROWTH * max(array.size, _LEAST):
        raise ValueError("its weights would be packed to many times their size")
    return prepare(array, entry["transform"], packing, _aligned)


def _aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    size = math.prod(shape) * dtype.itemsize
    whole = np.empty(size + library.ALIGNMENT, np.uint8)
    start = -whole.ctypes.data % library.ALIGNMENT
    array: Array = whole[start : start + size].view(dtype).reshape(shape)
    return array
