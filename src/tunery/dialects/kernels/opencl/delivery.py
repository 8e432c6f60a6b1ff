"""A tuned kernel in OpenCL as a file: its source under its parameters, and a header for programs that launch it."""

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from typing_extensions import override

from tunery._archive import ArchiveError, new_archive, open_archive
from tunery._errors import DialectError, UsageError
from tunery._outputs import replacing
from tunery.devices.opencl.platform import MOST_THREADS, connect
from tunery.dialects import Array, CompiledNetwork
from tunery.dialects.kernels.delivery import MADE_BY, shapes_text
from tunery.dialects.kernels.expressions import Value
from tunery.dialects.kernels.gcc import macros
from tunery.dialects.kernels.opencl.program import OpenClKernel, Sizes, build
from tunery.dialects.kernels.specification import KernelSpecification, read_specification
from tunery.domain import Network, Target, TensorSpec

_FORMAT = "opencl-1"
MEMBERS = ("kernel.cl", "kernel.h", "kernel.json")


def write(
    output: Path, network: Network, kernel: KernelSpecification, configuration: Mapping[str, Value], target: Target
) -> None:
    """Check that a configuration builds, and write it with its texts.

    Raises:
        DialectError: it does not build; nothing is left.
    """
    launch = build(connect(), kernel, kernel.source, kernel.function, configuration).launch
    told = {
        "made by": "tunery", "function": kernel.function, "parameters": dict(configuration),
        "problem": dict(kernel.problem), "flags": list(kernel.flags), "device": target.config["device"],
        "global size": list(launch.whole), "local size": list(launch.group or ()),
    }  # fmt: skip
    source = f"/* {kernel.function}, tuned; {MADE_BY} */\n{macros(kernel.problem, configuration)}\n{kernel.source}"
    texts = (source, _header(kernel, launch), json.dumps(told, indent=2) + "\n")
    with replacing(output) as part, new_archive(part) as archive:
        for name, text in zip(MEMBERS, texts, strict=True):
            with archive.member(name) as member:
                member.write(text.encode())
        archive.finish({
            "dialect": "opencl", "format": _FORMAT, "network": network.name, "threads": target.threads,
            "kernel": kernel.text, "parameters": dict(configuration),
        })  # fmt: skip


def _header(kernel: KernelSpecification, launch: Sizes) -> str:
    name = kernel.function.upper()
    shape = {f"{name}_GLOBAL_SIZE": launch.whole, f"{name}_LOCAL_SIZE": launch.group or ()}
    lines = "".join(f"#define {key} {{{', '.join(map(str, of))}}}\n" for key, of in shape.items() if of)
    return (
        f"/* {kernel.function}, tuned; {MADE_BY}\n{shapes_text(kernel)} */\n#ifndef TUNERY_{name}_H\n"
        f'#define TUNERY_{name}_H\n#define {name}_NAME "{kernel.function}"\n'
        f"#define {name}_DIMENSIONS {len(launch.whole)}\n{lines}#endif\n"
    )


class Delivered(CompiledNetwork):
    """A tuned kernel in this process: a function of its input arrays, built anew for the device that is here."""

    def __init__(self, path: Path, threads: int | None, digest: str) -> None:
        from tunery.dialects._loaded import thread_count

        try:
            with open_archive(path, digest) as archive:
                if archive.manifest["format"] != _FORMAT:
                    raise ArchiveError("it is of another version")  # noqa: TRY301 - one message for all faults
                kernel = read_specification(str(archive.manifest["kernel"]))
                configuration = dict(archive.manifest["parameters"])
                self.threads = thread_count(threads, archive.manifest["threads"])
        except (ArchiveError, DialectError, KeyError, ValueError, TypeError) as error:
            again = f"write it again with `tunery compile KERNEL.toml -o {shlex.quote(str(path))}`"
            raise UsageError(f"{path} is damaged: {error}; {again}") from error
        os.environ.setdefault(MOST_THREADS, str(self.threads))  # of the first kernel that a process loads
        try:
            program = build(connect(), kernel, kernel.source, kernel.function, configuration)
            self._loaded = OpenClKernel(kernel, program, connect())
        except DialectError as error:
            raise UsageError(f"{path} cannot be run here: {error}") from error
        self._names = [one.name for one in kernel.inputs]
        self.inputs: tuple[TensorSpec, ...] = tuple(one.spec for one in kernel.inputs)
        self.outputs: tuple[TensorSpec, ...] = tuple(one.spec for one in kernel.outputs)

    @override
    def _run(self, arrays: Sequence[Array]) -> list[Array]:
        self._loaded.give(dict(zip(self._names, arrays, strict=True)))
        self._loaded.call()
        return self._loaded.outputs()

    @override
    def time(self, arrays: Sequence[Array], calls: int) -> float:
        self._loaded.give(dict(zip(self._names, self.checked(arrays), strict=True)))
        return self._loaded.call(calls)
