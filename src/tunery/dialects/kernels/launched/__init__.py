"""What kernels that are launched on a device have in common, in OpenCL and in CUDA.

sizes      how many work items there are; headers: what a source includes; delivery: the best kernel as a file
"""

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path

from typing_extensions import override

from tunery._archive import Archive
from tunery.dialects import CompiledNetwork
from tunery.dialects.configurations.expressions import Value
from tunery.dialects.kernels import UsersKernels
from tunery.dialects.kernels.kernel import BuiltKernel
from tunery.dialects.kernels.launched.sizes import Sizes
from tunery.dialects.kernels.specification import KernelSpecification
from tunery.domain import Network, Target


class LaunchedDialect(UsersKernels):
    """Kernels whose files have their source: they are built where they are loaded."""

    @abstractmethod
    def _launch(self, kernel: KernelSpecification, configuration: Mapping[str, Value], target: Target) -> Sizes:
        """Build a configuration for a target, and return how it is launched."""

    @abstractmethod
    def _rebuilt(self, kernel: KernelSpecification, configuration: Mapping[str, Value], threads: int) -> BuiltKernel:
        """Build a configuration for the device that is here."""

    @override
    def _write(
        self,
        output: Path,
        network: Network,
        kernel: KernelSpecification,
        configuration: Mapping[str, Value],
        target: Target,
    ) -> None:
        from tunery.dialects.kernels.launched.delivery import write_archive

        launch = self._launch(kernel, configuration, target)
        write_archive(output, network, kernel, configuration, target, launch, self._ending)

    @override
    def load_network(self, archive: Archive, threads: int | None = None) -> CompiledNetwork:
        from tunery.dialects.kernels.launched.delivery import LaunchedNetwork

        return LaunchedNetwork(archive, threads, self._rebuilt)
