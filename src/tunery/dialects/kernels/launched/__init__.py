"""What kernels that are launched on a device have in common, in OpenCL and in CUDA.

sizes      how many work items there are; delivery: the best kernel as a file
"""

import json
import re
import subprocess
import sys
from abc import abstractmethod
from dataclasses import asdict, dataclass
from pathlib import Path

from typing_extensions import override

from tunery._archive import Archive
from tunery.dialects import CompiledNetwork
from tunery.dialects.kernels import UsersKernels
from tunery.dialects.kernels.kernel import BuiltKernel
from tunery.dialects.kernels.launched.sizes import Sizes
from tunery.dialects.kernels.specification import Program
from tunery.domain import Network, Target

_LOOK_S = 60.0
_INCLUDED = re.compile(r"^[ \t]*#[ \t]*include[ \t]*(<[^<>\n]+>)", re.MULTILINE)


@dataclass(frozen=True)
class Launched:
    """A kernel that compiles, and how it is launched."""

    launch: Sizes


def headers(source: str) -> str:
    """Return what includes, before a source's parameters, the system's headers that it includes and that are there: to
    them, a macro such as N is any name."""
    names = dict.fromkeys(_INCLUDED.findall(source))
    return "".join(f"#if __has_include({name})\n#include {name}\n#endif\n" for name in names)


def looked(code: str) -> "subprocess.CompletedProcess[str] | None":
    """Run code that looks for a device, in a process of its own; None where it does not end."""
    command = [sys.executable, "-P", "-c", code]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_LOOK_S, check=False)
    except subprocess.TimeoutExpired:
        return None


class LaunchedDialect(UsersKernels):
    """Kernels whose files have their source: they are built where they are loaded."""

    @abstractmethod
    def _compiled(self, program: Program, target: Target) -> Launched:
        """Compile a program for a target."""

    @override
    def _build(self, program: Program, target: Target, path: Path) -> None:
        path.write_text(json.dumps(asdict(self._compiled(program, target))))

    @abstractmethod
    def _rebuilt(self, program: Program, threads: int) -> BuiltKernel:
        """Build a configuration for the device that is here."""

    @override
    def _write(self, output: Path, network: Network, program: Program, target: Target) -> None:
        from tunery.dialects.kernels.launched.delivery import write_archive

        write_archive(output, network, program, target, self._compiled(program, target).launch, self._ending)

    @override
    def load_network(self, archive: Archive, threads: int | None = None) -> CompiledNetwork:
        from tunery.dialects.kernels.launched.delivery import LaunchedNetwork

        return LaunchedNetwork(archive, threads, self._rebuilt)
