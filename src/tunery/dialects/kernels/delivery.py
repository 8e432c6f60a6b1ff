"""A tuned kernel as a file: an archive with its source, its parameters, a header for C, and the built library."""

import ctypes
import json
import math
import platform
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from typing_extensions import override

from tunery._archive import Archive, ArchiveError, new_archive
from tunery._errors import DialectError, UsageError
from tunery._outputs import replacing
from tunery.dialects import Array, CompiledNetwork
from tunery.dialects.kernels._child import load_openmp
from tunery.dialects.kernels.gcc import build, flags, processor_of
from tunery.dialects.kernels.specification import C_TYPES, KernelSpecification, Program, read_specification
from tunery.domain import Network, Target, TensorSpec

_FORMAT = "kernels-1"
MADE_BY = "made by tunery"


def write(output: Path, network: Network, program: Program, target: Target) -> None:
    kernel, configuration = program.kernel, program.configuration
    processor = processor_of(target.config)
    parts = {
        "kernel.c": source_text(program),
        "kernel.h": header_text(kernel),
        "kernel.json": json.dumps(
            {"made by": "tunery", "function": kernel.function, "parameters": dict(configuration),
             "problem": dict(kernel.problem), "compiler": processor.gcc,
             "flags": flags(kernel, processor), "threads": target.threads},
            indent=2,
        ) + "\n",
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="tunery-kernel-") as scratch:
        library = Path(scratch) / "kernel.so"
        build(program, processor, library)
        with replacing(output) as part, new_archive(part) as archive:
            for name, text in parts.items():
                with archive.member(name) as member:
                    member.write(text.encode())
            archive.add("kernel.so", library)
            archive.finish({
                "dialect": "kernels", "format": _FORMAT, "network": network.name, "threads": target.threads,
                "machine": processor.machine or platform.machine(), "kernel": kernel.text,
                "parameters": dict(configuration), "default": dict(kernel.default),
            })  # fmt: skip


def source_text(program: Program) -> str:
    return f"/* {program.function}, tuned; {MADE_BY} */\n#include <stdint.h>\n{program.macros}\n{program.source}"


def header_text(kernel: KernelSpecification) -> str:
    guard = f"TUNERY_{kernel.function.upper()}_H"
    arguments = [
        f"{C_TYPES[one.dtype]} {one.name}" if one.scalar
        else f"{'' if one.output else 'const '}{C_TYPES[one.dtype]} *{one.name}"
        for one in kernel.arguments
    ]  # fmt: skip
    return (
        f"/* {kernel.function}, tuned; {MADE_BY}\n{shapes_text(kernel)} */\n"
        f"#ifndef {guard}\n#define {guard}\n#include <stdint.h>\n"
        f'#ifdef __cplusplus\nextern "C" {{\n#endif\nvoid {kernel.function}({", ".join(arguments)});\n'
        f"#ifdef __cplusplus\n}}\n#endif\n#endif\n"
    )


def shapes_text(kernel: KernelSpecification) -> str:
    return "".join(
        f" *   {one.name}: {one.dtype}{list(one.shape)}, {'written' if one.output else 'read'}\n" if not one.scalar
        else f" *   {one.name}: {one.value!r} is what it was tuned for\n"
        for one in kernel.arguments
    )  # fmt: skip


def members(ending: str) -> tuple[str, ...]:
    return (f"kernel.{ending}", "kernel.h", "kernel.json")


def texts(path: Path, members: Sequence[str]) -> dict[str, str]:
    """Return what of a written file is for people and their compilers, by the ending of a file's name."""
    try:
        with Archive(path) as archive:
            return {Path(name).suffix: archive.read(name).decode() for name in members}
    except (ArchiveError, OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is no tuned kernel, or a damaged one: {error}") from error


_openmp = cache(load_openmp)


class _Library:
    """A kernel's shared library in this process."""

    def __init__(self, path: Path, threads: int) -> None:
        self._openmp, self._threads = _openmp(), threads
        try:
            self._run = ctypes.CDLL(str(path)).tunery_run
        except (OSError, AttributeError) as error:
            raise DialectError(f"the built kernel cannot be loaded: {str(error)[:200]}") from error
        self._run.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long, ctypes.c_long)
        self._run.restype = None

    def run(self, pointers: ctypes.Array[ctypes.c_void_p], calls: int = 1) -> None:
        """Call the kernel so many times, with its number of threads, which is not for its code to set."""
        first = ctypes.cast(pointers, ctypes.c_void_p)
        if self._openmp is None:
            self._run(first, None, 0, calls)
            return
        before = self._openmp.omp_get_max_threads()
        self._openmp.omp_set_num_threads(self._threads)
        try:
            self._run(first, None, 0, calls)
        finally:
            self._openmp.omp_set_num_threads(before)


class CNetwork(CompiledNetwork):
    """A tuned kernel in this process: a function of its input arrays."""

    def __init__(self, archive: Archive, threads: int | None) -> None:
        from tunery.dialects._loaded import thread_count

        manifest = archive.manifest
        if manifest["format"] != _FORMAT:
            raise ArchiveError("it is of another version")
        if (machine := manifest.get("machine", platform.machine())) != platform.machine():
            raise UsageError(f"{archive.path} was compiled for {machine!r:.20}; load it on such a machine")
        kernel = read_specification(str(manifest["kernel"]))
        self.threads = thread_count(threads, manifest["threads"])
        with tempfile.TemporaryDirectory(prefix="tunery-kernel-") as scratch:
            archive.extract("kernel.so", Path(scratch) / "kernel.so")
            self._library = _Library(Path(scratch) / "kernel.so", self.threads)
        self._kernel = kernel
        self.inputs: tuple[TensorSpec, ...] = tuple(one.spec for one in kernel.inputs)
        self.outputs: tuple[TensorSpec, ...] = tuple(one.spec for one in kernel.outputs)
        self._pointers = (ctypes.c_void_p * len(kernel.arguments))()

    @override
    def _run(self, arrays: Sequence[Array]) -> list[Array]:
        _, outputs = self._bound(arrays)
        self._library.run(self._pointers)
        return outputs

    @override
    def time(self, arrays: Sequence[Array], calls: int) -> float:
        kept = self._bound(self.checked(arrays))
        start = time.perf_counter()
        self._library.run(self._pointers, calls)
        del kept
        return time.perf_counter() - start

    def _bound(self, arrays: Sequence[Array]) -> tuple[list[Array], list[Array]]:
        import numpy as np

        inputs = [np.ascontiguousarray(array) for array in arrays]
        outputs: list[Array] = [np.zeros(math.prod(one.shape), one.dtype).reshape(one.shape) for one in self.outputs]
        given, made = iter(inputs), iter(outputs)
        for place, one in enumerate(self._kernel.arguments):
            self._pointers[place] = 0 if one.scalar else (next(made) if one.output else next(given)).ctypes.data
        return inputs, outputs
