"""Kernels in CUDA, on the first GPU here; where there is none they are compiled, and not measured.

compilation    builds one; arrays, kernel: runs it on the GPU's stream
"""

import importlib.util
from collections.abc import Iterable
from pathlib import Path

from pydantic import TypeAdapter
from typing_extensions import override

from tunery._errors import DialectError, TargetError
from tunery.devices import Device
from tunery.devices.cuda.driver import connect, find, no_library
from tunery.dialects import Built, Kernel
from tunery.dialects.kernels.kernel import BuiltKernel
from tunery.dialects.kernels.launched import Launched, LaunchedDialect, looked
from tunery.dialects.kernels.specification import KernelSpecification, Program
from tunery.domain import Check, CheckState, Target, Task
from tunery.domain.closed_target import read_target

_BUILD = "1"
"""Counts changes of how a configuration becomes a kernel."""
_EXAMPLE = '{"kind": "cuda", "arch": "sm_90"}'


class CudaDialect(LaunchedDialect):
    """Kernels with parameters, built by NVRTC for the GPU's own instructions."""

    name = "cuda"
    device = "cuda"
    _language = "cuda"
    _ending = "cu"

    @property
    @override
    def compiler(self) -> str:
        from tunery.dialects.kernels.cuda.compilation import version

        return f"nvrtc {version() or 'absent'} build {_BUILD}"

    @override
    def doctor(self) -> Iterable[Check]:
        if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.bindings") is None:
            return (Check("CUDA", CheckState.ABSENT, "not there (needed for kernels in CUDA)", no_library()),)
        look = (
            "from tunery.devices.cuda.driver import find; from tunery._errors import DialectError\n"
            "try: print(find().name, find().arch, 'driver', find().driver)\n"
            "except DialectError as error: raise SystemExit(str(error))"
        )
        done = looked(look)
        if done is None:
            return (Check("CUDA", CheckState.WARN, "no answer of the driver", "look at `nvidia-smi`"),)
        if done.returncode or not done.stdout.strip():
            why = done.stderr.strip().splitlines()[-1:] or ["the driver does not answer"]
            return (Check("CUDA", CheckState.ABSENT, "no GPU (needed to measure kernels in CUDA)", why[0]),)
        return (Check("CUDA", CheckState.OK, f"{done.stdout.strip()}, for kernels in CUDA"),)

    @override
    def resolve_target(self, spec: str, threads: int) -> Target:
        if threads < 1:
            raise TargetError(f"target {spec!r:.60} with {threads} threads: at least one is needed")
        if spec == "native":
            try:
                return Target(self.name, {"kind": "cuda", "arch": find().arch}, threads)
            except DialectError as error:
                raise TargetError(f"{error}; to compile without one, name its kind: --target '{_EXAMPLE}'") from error
        config = read_target(spec, "cuda", ["arch"], _EXAMPLE)
        return Target(self.name, config, threads)

    @override
    def _compiled(self, program: Program, target: Target) -> Launched:
        from tunery.dialects.kernels.cuda.compilation import build

        return build(program, target.config["arch"])

    @override
    def load(self, task: Task, built: Built, device: Device) -> Kernel:
        if device.kind == self.device:
            try:
                connect()
            except DialectError as error:  # nor is a reference in NumPy of use then
                arch = task.target.config["arch"]
                raise DialectError(f"it compiles for {arch}, and is not measured: {error}") from error
        return super().load(task, built, device)

    @override
    def _load(self, kernel: KernelSpecification, path: Path, device: Device, threads: int) -> BuiltKernel:
        from tunery.devices.cuda.device import CudaDevice
        from tunery.dialects.kernels.cuda.compilation import CudaBinary
        from tunery.dialects.kernels.cuda.kernel import CudaKernel

        compiled = TypeAdapter(CudaBinary).validate_json(path.read_bytes())
        assert isinstance(device, CudaDevice), "its kind was looked at"
        return CudaKernel(kernel, compiled, device)

    @override
    def _rebuilt(self, program: Program, threads: int) -> BuiltKernel:
        from tunery.devices.cuda.device import CudaDevice
        from tunery.dialects.kernels.cuda.compilation import build
        from tunery.dialects.kernels.cuda.kernel import CudaKernel

        return CudaKernel(program.kernel, build(program, find().arch), CudaDevice())
