"""A tuned kernel for a device as a file: its source under its parameters, and a header for programs that launch it."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from typing_extensions import override

from tunery._archive import Archive, ArchiveError, new_archive
from tunery._errors import DeviceLostError, DialectError, UsageError
from tunery._outputs import replacing
from tunery.dialects import Array, CompiledNetwork
from tunery.dialects.kernels.delivery import MADE_BY, members, shapes_text
from tunery.dialects.kernels.kernel import BuiltKernel
from tunery.dialects.kernels.launched import headers
from tunery.dialects.kernels.launched.sizes import Sizes
from tunery.dialects.kernels.specification import KernelSpecification, Program, read_specification
from tunery.domain import Network, Target, TensorSpec


def write_archive(  # noqa: PLR0917 - what a file is made of
    output: Path, network: Network, program: Program, target: Target, launch: Sizes, ending: str
) -> None:
    """Write a configuration with its texts; it is known to build."""
    kernel, configuration = program.kernel, program.configuration
    told = {
        "made by": "tunery", "function": kernel.function, "parameters": dict(configuration),
        "problem": dict(kernel.problem), "flags": list(kernel.flags),
        **{name: value for name, value in target.config.items() if name != "kind"},
        "global size": list(launch.whole), "local size": list(launch.group or ()),
        **({"shared bytes": launch.shared} if launch.shared else {}),
    }  # fmt: skip
    parameters = f"{headers(kernel.source)}{program.macros}"
    source = f"/* {kernel.function}, tuned; {MADE_BY} */\n{parameters}\n{kernel.source}"
    texts = (source, _header(kernel, launch), json.dumps(told, indent=2) + "\n")
    with replacing(output) as part, new_archive(part) as archive:
        for name, text in zip(members(ending), texts, strict=True):
            with archive.member(name) as member:
                member.write(text.encode())
        archive.finish({
            "dialect": target.dialect, "format": f"{target.dialect}-1", "network": network.name,
            "threads": target.threads, "kernel": kernel.text, "parameters": dict(configuration),
            "default": dict(kernel.default),
        })  # fmt: skip


def _header(kernel: KernelSpecification, launch: Sizes) -> str:
    name = kernel.function.upper()
    shape = {f"{name}_GLOBAL_SIZE": launch.whole, f"{name}_LOCAL_SIZE": launch.group or ()}
    lines = "".join(f"#define {key} {{{', '.join(map(str, of))}}}\n" for key, of in shape.items() if of)
    lines += f"#define {name}_SHARED_BYTES {launch.shared}\n" * (launch.shared > 0)
    return (
        f"/* {kernel.function}, tuned; {MADE_BY}\n{shapes_text(kernel)} */\n#ifndef TUNERY_{name}_H\n"
        f'#define TUNERY_{name}_H\n#define {name}_NAME "{kernel.function}"\n'
        f"#define {name}_DIMENSIONS {len(launch.whole)}\n{lines}#endif\n"
    )


class LaunchedNetwork(CompiledNetwork):
    """A tuned kernel in this process: a function of its input arrays, built anew for the device that is here. `build`
    does so, of a configuration, with a number of threads where the device is this machine's processor."""

    def __init__(
        self, archive: Archive, threads: int | None,
        build: Callable[[Program, int], BuiltKernel],
    ) -> None:  # fmt: skip
        from tunery.dialects._loaded import thread_count

        manifest = archive.manifest
        if manifest["format"] != f"{manifest['dialect']}-1":
            raise ArchiveError("it is of another version")
        kernel = read_specification(str(manifest["kernel"]))
        configuration = dict(manifest["parameters"])
        self.threads = thread_count(threads, manifest["threads"])
        try:
            self._loaded = build(Program.of(kernel, configuration), self.threads)
        except DialectError as error:
            raise UsageError(f"{archive.path} cannot be run here: {error}") from error
        self._names = [one.name for one in kernel.inputs]
        self.inputs: tuple[TensorSpec, ...] = tuple(one.spec for one in kernel.inputs)
        self.outputs: tuple[TensorSpec, ...] = tuple(one.spec for one in kernel.outputs)

    @override
    def _run(self, arrays: Sequence[Array]) -> list[Array]:
        self._call(arrays)
        return self._loaded.outputs()

    @override
    def time(self, arrays: Sequence[Array], calls: int) -> float:
        return self._call(self.checked(arrays), calls)

    def _call(self, arrays: Sequence[Array], calls: int = 1) -> float:
        try:
            self._loaded.give(dict(zip(self._names, arrays, strict=True)))
            return self._loaded.call(calls)
        except DeviceLostError as error:  # it may be a user's process, which goes on
            raise DialectError(f"{error}; start this process again") from error
