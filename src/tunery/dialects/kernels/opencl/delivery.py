"""A tuned kernel in OpenCL as a file, and as a function here."""

import os
from collections.abc import Mapping
from pathlib import Path

from typing_extensions import override

from tunery.devices.opencl.platform import MOST_THREADS, connect
from tunery.dialects.configurations.expressions import Value
from tunery.dialects.kernels.kernel import BuiltKernel
from tunery.dialects.kernels.launched.delivery import LaunchedKernel, members, write_archive
from tunery.dialects.kernels.opencl.program import OpenClKernel, build
from tunery.dialects.kernels.specification import KernelSpecification
from tunery.domain import Network, Target

MEMBERS = members("cl")


def write(
    output: Path, network: Network, kernel: KernelSpecification, configuration: Mapping[str, Value], target: Target
) -> None:
    """Check that a configuration builds, and write it with its texts."""
    launch = build(connect(), kernel, kernel.source, kernel.function, configuration).launch
    write_archive(output, network, kernel, configuration, target, launch, "cl")


class Delivered(LaunchedKernel):
    """A tuned kernel in OpenCL in this process."""

    dialect = "opencl"

    @override
    def _built(self, kernel: KernelSpecification, configuration: Mapping[str, Value]) -> BuiltKernel:
        os.environ.setdefault(MOST_THREADS, str(self.threads))  # of the first kernel that a process loads
        return OpenClKernel(kernel, build(connect(), kernel, kernel.source, kernel.function, configuration), connect())
