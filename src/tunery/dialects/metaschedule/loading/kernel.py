"""A built candidate in this process: TVM's runtime is enough to run it."""

import json
import struct
import weakref
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from tunery._errors import DialectError
from tunery.devices import ConstantBuffers, Device
from tunery.dialects import Array, Built, Kernel
from tunery.dialects.metaschedule.loading import library
from tunery.dialects.metaschedule.loading.preparing import pack, transformed
from tunery.dialects.metaschedule.reasons import reason_of
from tunery.domain import Task

PREPACK = "tunery_prepack"
"""What packs, where that must be compiled."""
_INDEX_TYPES = frozenset({"int32", "int64", "uint32", "uint64", "bool"})
"""Constants that may be indices: other numbers in their place would read out of bounds."""
_ELF_HEAD = struct.Struct("<4s36xQ10xHH2x")  # of 64 bits: the magic; where the table of sections is, and how large

_LIBRARIES: list[Any] = []  # a library stays for as long as the process: what it has registered may be called
_USERS = Counter[tuple[int, int]]()  # of a library's file: kernels that are alive


def _load_library(path: Path) -> Any:
    """Load a shared object whose name does not say that it is one."""
    if path.exists() and not _is_whole(path):
        raise DialectError(f"{path} is no shared object, or its end is missing")
    try:
        loaded = library.load_unnamed(path)
    except Exception as error:
        raise DialectError(f"{path} cannot be loaded: {reason_of(error)}") from error
    _LIBRARIES.append(loaded)
    return loaded


def _use(kernel: Kernel, path: Path, loaded: Any, threads: int) -> None:
    """Give a library its threads, which end with the last kernel of it: a measuring process loads thousands."""
    facts = path.stat()
    file = (facts.st_dev, facts.st_ino)  # by which the system knows a library that is loaded

    def end() -> None:
        _USERS[file] -= 1
        if not _USERS[file]:
            del _USERS[file]
            library.set_threads(loaded, 1)

    _USERS[file] += 1
    library.set_threads(loaded, threads)
    weakref.finalize(kernel, end).atexit = False


def _is_whole(path: Path) -> bool:
    """Tell whether a shared object goes to its end, where a linker puts the table of sections. The system's loader
    takes a shorter one as it is, and the process dies at the first access to what is missing."""
    with path.open("rb") as file:
        head = file.read(_ELF_HEAD.size)
    if len(head) < _ELF_HEAD.size:
        return False
    magic, start, size, count = _ELF_HEAD.unpack(head)
    return bool(magic == b"\x7fELF") and start + size * count <= path.stat().st_size


class TvmKernel(Kernel):
    """A built candidate in this process, with TVM arrays on the CPU."""

    def __init__(self, task: Task, built: Built, device: Device) -> None:
        if device.kind != "cpu":
            raise DialectError(f"{built.path} is code for a CPU: it does not run on a device of kind {device.kind}")
        self._now = device.clock
        manifest = json.loads(built.manifest)
        self._library = _load_library(built.path)
        _use(self, built.path, self._library, task.target.threads)
        self._entry = self._library[manifest["entry"]]
        self._prepack = self._library[PREPACK] if manifest["packed"] and not manifest["packing"] else None
        self._manifest = manifest
        self.slack = float(manifest["slack"])
        self.traits = dict(manifest["traits"])
        self._outputs = [library.empty(spec.shape, spec.dtype) for spec in task.workload.output_specs]
        self._call: list[Any] = []
        self._weights: list[tuple[int, tuple[int, ...], str]] = []
        self._buffers: ConstantBuffers | None = None

    @override
    def bind(self, inputs: Sequence[Array]) -> None:
        inputs = transformed(inputs, dict(self._manifest["transforms"]))
        taken = {*self._manifest["call"], *(self._manifest["prepack_inputs"] if self._prepack is not None else ())}
        arrays = [library.tensor(array) if i in taken else None for i, array in enumerate(inputs)] + self._outputs
        packed = [
            library.tensor(pack(inputs[source], tuple(shape), indices))
            for (shape, _), (source, indices) in zip(self._manifest["packed"], self._manifest["packing"], strict=False)
        ]
        if self._prepack is not None:
            packed = [library.empty(tuple(shape), dtype) for shape, dtype in self._manifest["packed"]]
            self._prepack(*(arrays[i] for i in self._manifest["prepack_inputs"]), *packed)
        self._call = [arrays[i] if i >= 0 else packed[-1 - i] for i in self._manifest["call"]]
        weights = [(i, self._call[i]) for i in self._manifest["weights"]]
        self._weights = [(i, tuple(w.shape), str(w.dtype)) for i, w in weights if str(w.dtype) not in _INDEX_TYPES]

    @override
    def poison(self) -> None:
        for output in self._outputs:
            library.write(output, _poison(library.read(output)))

    @override
    def run(self) -> None:
        self._entry(*self._call)

    @override
    def use_cold_constants(self, buffers: ConstantBuffers) -> None:
        self._buffers = buffers

    @override
    def time(self, calls: int) -> float:
        entry, now, turns = self._entry, self._now, [self._arguments() for _ in range(calls)]
        start = now()
        for arguments in turns:
            entry(*arguments)
        return now() - start

    def _arguments(self) -> list[Any]:
        """Return what the next timed call takes: weights at another place each time, if they are to be cold."""
        if self._buffers is None:
            return self._call
        arguments = list(self._call)
        for i, shape, dtype in self._weights:
            arguments[i] = library.foreign(self._buffers.take(shape, dtype))
        return arguments

    @override
    def outputs(self) -> list[Array]:
        return [library.read(output) for output in self._outputs]


def _poison(array: Array) -> Array:
    if array.dtype.kind in "iu":
        return np.full_like(array, np.iinfo(array.dtype.name).min)
    if array.dtype.kind == "b":
        return np.logical_not(array)
    return np.full_like(array, np.nan)
