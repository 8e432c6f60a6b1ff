"""Building candidates to shared objects, and running them.

A candidate that rewrites a weight's layout is split: packing turns weights into their packed form once, `main` is what
runs at each call. The artifact's JSON manifest says how the arguments connect, and how weights are packed.
"""

import json
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from tunery._errors import DialectError
from tunery._outputs import replacing
from tunery.devices import ConstantBuffers, Device
from tunery.dialects import Array, Built, Kernel
from tunery.dialects.metaschedule._tvm import tvm
from tunery.dialects.metaschedule.codegen import vector_math  # noqa: F401 - its rules for exp and erf
from tunery.dialects.metaschedule.codegen.splitting import PREPACK, split_prepack
from tunery.dialects.metaschedule.loading.packing import pack
from tunery.dialects.metaschedule.loading.transforms import transformed
from tunery.dialects.metaschedule.reasons import reason_of
from tunery.dialects.metaschedule.variants.program import REORDERED, expressions, scheduled_module, tvm_target
from tunery.dialects.metaschedule.variants.variant import read_body, read_left_out
from tunery.domain import Candidate, Origin, Task

_UNFIT = re.compile(r"\W")  # for a symbol
_INDEX_TYPES = frozenset({"int32", "int64", "uint32", "uint64", "bool"})
"""Constants that may be indices: other numbers in their place would read out of bounds."""
# The compiler's own elimination of common subexpressions repeats what LLVM does (10 % of a build), and the argument
# checks of a kernel that only we call are code to compile for nothing.
_BUILD_OPTIONS = {"tirx.disable_cse_tir": True, "tirx.disable_assert": True}
# Above this, three runs of unoptimised code cost more than what not optimising it spares (docs/decisions/010).
_UNOPTIMISED_FLOP = 1e7
_ROUNDING = re.compile(r'"\w+\.(round|floor|ceil|trunc|nearbyint)"')
"""Operators after which a difference in a sum's last bit may become one of a whole number."""


def build(task: Task, candidate: Candidate, directory: Path) -> Built:
    """Compile a candidate to `directory/<candidate key>-<target key>.so`.

    The reference of a small task is not optimised, for nobody times it: it lies apart, its name ends in `-plain`.

    Raises:
        DialectError: it does not replay, or code generation or linking fails.
    """
    path = _object_path(directory, candidate, task).with_suffix(".so")
    optimise = not _is_plain(task, candidate)
    if not optimise:
        path = path.with_stem(f"{path.stem}-plain")
    if not path.exists() or not path.with_suffix(".json").exists():
        _make(task, candidate, path, keep_object=False, optimise=optimise)
    return _built(candidate, path)


def build_part(task: Task, candidate: Candidate, directory: Path) -> Built:
    """Compile a candidate to an object file, from which `build` in the same directory goes on.

    Raises:
        DialectError: as `build`.
    """
    path = _object_path(directory, candidate, task)
    if not path.exists() or not path.with_suffix(".json").exists():
        _make(task, candidate, path, keep_object=True)
    return _built(candidate, path)


def _object_path(directory: Path, candidate: Candidate, task: Task) -> Path:
    """Return where a candidate's object file lies, if it was kept; the suffix of its manifest is `.json`."""
    return directory / f"{candidate.key}-{task.target.key}.o"


def _built(candidate: Candidate, path: Path) -> Built:
    return Built(candidate.key, path, path.with_suffix(".json").read_text())


def _is_plain(task: Task, candidate: Candidate) -> bool:
    """Whether a candidate only says what is right: as a baseline the same program is timed, and may be delivered."""
    workload = task.workload
    return (
        candidate.body == REORDERED
        and candidate.origin is not Origin.BASELINE
        and workload.flop <= _UNOPTIMISED_FLOP
        and all(spec.dtype.startswith("float") for spec in workload.output_specs)
        and not _ROUNDING.search(workload.program)
    )


def _make(task: Task, candidate: Candidate, path: Path, *, keep_object: bool, optimise: bool = True) -> None:
    """Write `path` and its manifest in one step each, and the object file on the way if it is to be kept."""
    kept, described = path.with_suffix(".o"), path.with_suffix(".json")
    with ExitStack() as stack:
        source = kept
        if not (kept.exists() and described.exists()):
            source = stack.enter_context(_object(kept, keep=keep_object))
            manifest = _generate(task, candidate, source, optimise=optimise)
            with replacing(described) as part:
                part.write_text(json.dumps(manifest))
        if not keep_object:
            link([source], stack.enter_context(replacing(path)))


@contextmanager
def _object(kept: Path, *, keep: bool) -> Iterator[Path]:
    """Yield where to write an object file that is `kept`, or gone with the block."""
    if keep:
        with replacing(kept) as part:
            yield part
    else:
        with tempfile.TemporaryDirectory(prefix=".", dir=kept.parent) as scratch:
            yield Path(scratch, kept.name)


def _generate(task: Task, candidate: Candidate, destination: Path, *, optimise: bool) -> dict[str, Any]:
    """Write a candidate's object file and return its manifest."""
    entry = f"{_UNFIT.sub('_', task.workload.name)}_{candidate.key}"
    split = split_prepack(scheduled_module(task, candidate), task, entry)
    target = task.target if optimise else replace(task.target, config={**task.target.config, "opt-level": 0})
    try:
        with tvm.transform.PassContext(opt_level=3, config=_BUILD_OPTIONS):
            library = tvm.tirx.build(split.module, target=tvm_target(target))
        library.write_to_file(str(destination), "o")
    except Exception as error:
        raise DialectError(f"code generation failed: {reason_of(error)}") from error
    return {
        "workload": task.workload.key,
        "entry": entry,
        "prepack_inputs": split.prepack_inputs,
        "packed": split.packed,
        "call": split.call,
        "outputs": task.workload.outputs,
        "packing": split.packing,
        "weights": split.weights,
        **_expression(task, candidate),
    }


def _expression(task: Task, candidate: Candidate) -> dict[str, Any]:
    known = expressions(task)
    left_out = {**known.left_out, **read_left_out(candidate.body)}
    expression = known.found[read_body(candidate.body)[0]]
    return {
        "transforms": list(expression.transforms.items()),
        "slack": expression.slack,
        "traits": {"expression": expression.name, "left_out": left_out},
    }


def link(sources: list[Path], destination: Path) -> None:
    """Link object files to a shared object; calling the linker directly costs a fifth of the compiler driver.

    Raises:
        DialectError: no linker is installed, or it failed.
    """
    linker = shutil.which("ld") or shutil.which("ld.lld")
    command = [linker] if linker else [shutil.which("cc") or ""]
    if not command[0]:
        raise DialectError("no linker found; install binutils (for example: apt-get install binutils)")
    done = subprocess.run(
        [*command, "-shared", "-o", destination, *sources], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise DialectError(f"linking failed: {done.stderr.strip()[-200:]}")


_ELF_HEAD = struct.Struct("<4s36xQ10xHH2x")  # of 64 bits: the magic; where the table of sections is, and how large

_LIBRARIES: list[Any] = []  # a library stays for as long as the process: what it has registered may be called


def _load_library(path: Path) -> Any:
    """Load a shared object whose name does not say that it is one.

    Raises:
        DialectError: it is none, or damaged.
    """
    if path.exists() and not _is_whole(path):
        raise DialectError(f"{path} is no shared object, or its end is missing")
    try:
        library = tvm.get_global_func("ffi.Module.load_from_file.so")(str(path), "so")
    except Exception as error:
        raise DialectError(f"{path} cannot be loaded: {reason_of(error)}") from error
    _LIBRARIES.append(library)
    return library


def _is_whole(path: Path) -> bool:
    """Tell whether a shared object goes to its end, where a linker puts the table of sections.

    The system's loader takes a shorter one as it is, and the process dies at the first access to what is missing.
    """
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
        self._entry = self._library[manifest["entry"]]
        self._prepack = self._library[PREPACK] if manifest["packed"] and not manifest["packing"] else None
        self._manifest = manifest
        self.slack = float(manifest["slack"])
        self.traits = dict(manifest["traits"])
        self._outputs = [_empty(spec.shape, spec.dtype) for spec in task.workload.output_specs]
        self._call: list[Any] = []
        self._weights: list[tuple[int, tuple[int, ...], str]] = []
        self._buffers: ConstantBuffers | None = None

    @override
    def bind(self, inputs: Sequence[Array]) -> None:
        inputs = transformed(inputs, dict(self._manifest["transforms"]))
        taken = {*self._manifest["call"], *(self._manifest["prepack_inputs"] if self._prepack is not None else ())}
        arrays = [
            tvm.runtime.tensor(np.array(array, order="C")) if i in taken else None for i, array in enumerate(inputs)
        ] + self._outputs
        packed = [
            tvm.runtime.tensor(pack(inputs[source], tuple(shape), indices))
            for (shape, _), (source, indices) in zip(self._manifest["packed"], self._manifest["packing"], strict=False)
        ]
        if self._prepack is not None:
            packed = [_empty(tuple(shape), dtype) for shape, dtype in self._manifest["packed"]]
            self._prepack(*(arrays[i] for i in self._manifest["prepack_inputs"]), *packed)
        self._call = [arrays[i] if i >= 0 else packed[-1 - i] for i in self._manifest["call"]]
        weights = [(i, self._call[i]) for i in self._manifest["weights"]]
        self._weights = [(i, tuple(w.shape), str(w.dtype)) for i, w in weights if str(w.dtype) not in _INDEX_TYPES]

    @override
    def poison(self) -> None:
        for output in self._outputs:
            output.copyfrom(_poison(output.numpy()))

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
            arguments[i] = tvm.runtime.from_dlpack(self._buffers.take(shape, dtype))
        return arguments

    @override
    def outputs(self) -> list[Array]:
        return [output.numpy().copy() for output in self._outputs]


def _empty(shape: Sequence[int], dtype: str) -> Any:
    return tvm.runtime.empty(tuple(shape), dtype)


def _poison(array: Array) -> Array:
    if array.dtype.kind in "iu":
        return np.full_like(array, np.iinfo(array.dtype.name).min)
    if array.dtype.kind == "b":
        return np.logical_not(array)
    return np.full_like(array, np.nan)
