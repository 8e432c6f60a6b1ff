"""A tuned kernel in CUDA as a file, and as a function here."""

from collections.abc import Mapping
from pathlib import Path

from typing_extensions import override

from tunery.devices.cuda.device import CudaDevice
from tunery.devices.cuda.driver import find
from tunery.dialects.configurations.expressions import Value
from tunery.dialects.kernels.cuda.compilation import build
from tunery.dialects.kernels.cuda.kernel import CudaKernel
from tunery.dialects.kernels.kernel import BuiltKernel
from tunery.dialects.kernels.launched.delivery import LaunchedKernel, members, write_archive
from tunery.dialects.kernels.specification import KernelSpecification
from tunery.domain import Network, Target

MEMBERS = members("cu")


def write(
    output: Path, network: Network, kernel: KernelSpecification, configuration: Mapping[str, Value], target: Target
) -> None:
    """Check that a configuration builds, and write it with its texts."""
    launch = build(kernel, kernel.source, kernel.function, configuration, target.config["arch"]).launch
    write_archive(output, network, kernel, configuration, target, launch, "cu")


class Delivered(LaunchedKernel):
    """A tuned kernel in CUDA in this process."""

    dialect = "cuda"

    @override
    def _built(self, kernel: KernelSpecification, configuration: Mapping[str, Value]) -> BuiltKernel:
        compiled = build(kernel, kernel.source, kernel.function, configuration, find().arch)
        return CudaKernel(kernel, compiled, CudaDevice())
