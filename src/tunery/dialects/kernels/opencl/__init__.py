"""Kernels in OpenCL, on the first device of OpenCL here.

program    builds one, and calls it in processes of its own (`_opencl_child`)
"""

import importlib.util
import json
from collections.abc import Iterable
from pathlib import Path

from pydantic import TypeAdapter
from typing_extensions import override

from tunery._errors import DialectError, TargetError
from tunery.devices import Device
from tunery.devices.opencl.platform import MOST_THREADS, NO_PLATFORM, find, no_library
from tunery.dialects.kernels.kernel import BuiltKernel
from tunery.dialects.kernels.launched import Launched, LaunchedDialect, looked
from tunery.dialects.kernels.specification import KernelSpecification, Program
from tunery.domain import Check, CheckState, Environment, Target

_BUILD = "2"
"""Counts changes of how a configuration becomes a kernel."""


class OpenClDialect(LaunchedDialect):
    """Kernels with parameters, built by the device's own compiler."""

    name = "opencl"
    device = "opencl"
    _language = "opencl"
    _ending = "cl"

    @property
    @override
    def compiler(self) -> str:
        try:
            found = find().device.platform.version.strip()
        except DialectError:
            found = "OpenCL absent"
        return f"{found} build {_BUILD}"

    @override
    def environment(self) -> Environment:
        return Environment(thread_variables=(MOST_THREADS,))

    @override
    def doctor(self) -> Iterable[Check]:
        if importlib.util.find_spec("pyopencl") is None:
            return (Check("OpenCL", CheckState.ABSENT, "not there (needed for kernels in OpenCL)", no_library()),)
        done = looked("from tunery.devices.opencl.platform import find; print(find().name)")
        found = done.stdout.strip() if done and done.returncode == 0 else ""
        if not found:
            return (Check("OpenCL", CheckState.ABSENT, "no device (needed for kernels in OpenCL)", NO_PLATFORM),)
        return (Check("OpenCL", CheckState.OK, f"{found}, for kernels in OpenCL"),)

    @override
    def resolve_target(self, spec: str, threads: int) -> Target:
        if threads < 1:
            raise TargetError(f"target {spec!r:.60} with {threads} threads: at least one is needed")
        try:
            here = {"kind": "opencl", "device": find().name}
        except DialectError as error:
            raise TargetError(f"{error}; see `tunery doctor`") from error
        if spec != "native":
            try:
                known = json.loads(spec) == here
            except (ValueError, RecursionError):
                known = False
            if not known:
                raise TargetError(f"unknown target {spec!r:.60}; use native, which is {json.dumps(here)} here")
        return Target(self.name, here, threads)

    @override
    def _compiled(self, program: Program, target: Target) -> Launched:
        from tunery.dialects.kernels.opencl.program import build

        return build(program)

    @override
    def _load(self, kernel: KernelSpecification, path: Path, device: Device, threads: int) -> BuiltKernel:
        from tunery.dialects.kernels.opencl.program import OpenClKernel, OpenClProgram

        program = TypeAdapter(OpenClProgram).validate_json(path.read_bytes())
        return OpenClKernel(kernel, program, threads)

    @override
    def _rebuilt(self, program: Program, threads: int) -> BuiltKernel:
        from tunery.dialects.kernels.opencl.program import OpenClKernel, build

        return OpenClKernel(program.kernel, build(program), threads)
