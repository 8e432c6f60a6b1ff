"""A user's own kernels, with tuning parameters and restrictions, in C with OpenMP; in OpenCL: the room `opencl`.

kernel_file    our TOML form, and all checks; kernel_tuner: Kernel Tuner's T1, caches and T4
specification  a kernel as read, in plain data; expressions, formulas: what a file may compute
configurations (beside this room)  the space, and the search of it
gcc            builds one in C; cross: for another host's processor
kernel         runs one between guard pages (buffers), but for CUDA in a process of its own (process, _child)
delivery       the best one as a file
opencl         the dialect of those in OpenCL
"""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from tunery._archive import Archive
from tunery._errors import DialectError, ModelError, TargetError
from tunery.devices import Device
from tunery.dialects import (
    Built,
    Codegen,
    Compiled,
    CompiledNetwork,
    CrossCompiler,
    Dialect,
    Kernel,
    NetworkCompiler,
    Observation,
    Proposer,
    RecordWriter,
    Space,
    Suggestions,
    TaskSource,
)
from tunery.dialects.configurations import candidate_of, configuration_of
from tunery.dialects.configurations.expressions import Value
from tunery.dialects.kernels.kernel_tuner import FORMATS
from tunery.dialects.kernels.specification import KernelSpecification, Program, read_specification
from tunery.dialects.kernels.user_files import DIALECTS
from tunery.domain import (
    Candidate,
    Check,
    CheckState,
    DeviceDescription,
    Network,
    Origin,
    Record,
    Target,
    Task,
    Workload,
    canonical_json,
    digest,
)
from tunery.domain.closed_target import read_target

if TYPE_CHECKING:
    from tunery.dialects.kernels.kernel import BuiltKernel

_BUILD = "4"
"""Counts changes of how a configuration becomes a kernel."""
_REFERENCE = canonical_json({"reference": True})
_PARAMETERS = "parameters"
"""The name of a configuration in a candidate's body."""
_FORMULA = b"tunery reference in NumPy"


class UsersKernels(Dialect, TaskSource, Space, Codegen, NetworkCompiler, RecordWriter):
    """Kernels with parameters, in one language."""

    formats = FORMATS
    runs_users_code = True
    _language: ClassVar[str]
    _ending: ClassVar[str]
    """How a source's name ends."""

    @override
    def own_network(self, source: str) -> Network:
        from tunery.dialects.kernels.kernel_file import read_kernel

        path = Path(source)
        if source.startswith(f"{self.name}:"):
            raise ModelError(f"{source!r:.80} is no kernel; name its file, such as mykernel.toml")
        kernel = read_kernel(path)
        inputs, outputs = (tuple(one.spec for one in of) for of in (kernel.inputs, kernel.outputs))
        return Network(path.stem, source, digest(kernel.text), "", inputs, outputs, 0, program=kernel.text)

    @override
    def extract(self, network: Network, target: Target) -> list[Task]:
        kernel = _specification(network.program)
        if kernel.language != self._language:
            dialect = DIALECTS[kernel.language]
            raise ModelError(f"{network.source!r} is for the dialect {dialect}; give --dialect {dialect}")
        self._check_builds(kernel, target, network.source)
        arguments = [one.spec for one in kernel.inputs if one.fill.varies] + [one.spec for one in kernel.outputs]
        workload = Workload(
            kernel.key, kernel.function, "kernel", kernel.text, tuple(arguments), len(kernel.outputs), kernel.work,
            kernel.operator,
        )  # fmt: skip
        return [Task(workload, target, 1, kernel.space.size != 1)]

    def _check_builds(self, kernel: KernelSpecification, target: Target, source: str) -> None:
        import tempfile

        with tempfile.TemporaryDirectory(prefix="tunery-kernel-") as scratch:
            try:
                for program in _programs(kernel):
                    self._build(program, target, Path(scratch) / "kernel")
            except DialectError as error:
                raise ModelError(f"{source!r}: {error}; mend the source") from error

    @abstractmethod
    def _build(self, program: Program, target: Target, path: Path) -> None:
        """Write what `_load` takes of a configuration.

        Raises:
            DialectError: it does not build.
        """

    @abstractmethod
    def _load(self, kernel: KernelSpecification, path: Path, device: Device, threads: int) -> "BuiltKernel":
        """Load what `_build` wrote.

        Raises:
            DialectError: it does not load.
        """

    @abstractmethod
    def _write(self, output: Path, network: Network, program: Program, target: Target) -> None:
        """Write a configuration that builds as a file with texts, which `load_network` takes."""

    @override
    def open(
        self,
        task: Task,
        history: Sequence[Observation],
        cost_model: str | None,
        seed: int,
        *,
        warm_start: bool = False,
        generic_only_reason: str | None = None,
    ) -> Proposer:
        from tunery.dialects.configurations.search import ConfigurationProposer, ConfigurationSearch

        kernel = _specification(task.workload.program)
        space = kernel.space

        hints = [choices for hint in kernel.hints if (choices := space.choices(hint)) is not None]
        search = ConfigurationSearch(space, seed, hints)
        default = space.choices(kernel.default)
        assert default is not None, "the default was checked as the file was read"
        search.skip(default)
        proposer = ConfigurationProposer(search, space, task, _PARAMETERS)
        proposer.observe(history)
        return proposer

    @override
    def identify(self, task: Task, body: str) -> Candidate:
        configuration = _allowed(_specification(task.workload.program), body)
        return candidate_of(task, canonical_json({_PARAMETERS: configuration}), Origin.SEARCH)

    @override
    def parameters(self, task: Task, candidate: Candidate) -> Mapping[str, Value]:
        if candidate.body == _REFERENCE:
            return {}
        return _allowed(_specification(task.workload.program), candidate.body)

    @override
    def count(self, task: Task) -> int | None:
        return _specification(task.workload.program).space.size

    @override
    def suggest(
        self,
        task: Task,
        n: int,
        cost_model: str,
        seed: int,
        transfer_states: Sequence[str] = (),
        *,
        several_fallbacks: bool = False,
    ) -> Suggestions:
        return Suggestions(())  # what nobody has timed is no better than the author's default

    @override
    def build(self, task: Task, candidate: Candidate, directory: Path) -> Built:
        kernel = _specification(task.workload.program)
        path = directory / candidate.key
        if candidate.body == _REFERENCE and kernel.reference.numpy:
            path.write_bytes(_FORMULA)
            return Built(candidate.key, path, "formula")
        is_reference = candidate.body == _REFERENCE
        program = _programs(kernel)[-1] if is_reference else Program.of(kernel, _allowed(kernel, candidate.body))
        self._build(program, task.target, path)
        return Built(candidate.key, path, f"library {digest(path.read_bytes())}")

    @override
    def load(self, task: Task, built: Built, device: Device) -> Kernel:
        from tunery.dialects.kernels.kernel import FormulaKernel, reproduces

        kernel = _specification(task.workload.program)
        if device.kind != self.device:
            raise DialectError(f"a kernel of the dialect {self.name} does not run on a device of kind {device.kind!r}")
        try:
            content = built.path.read_bytes()
        except OSError as error:
            raise DialectError(f"the built kernel cannot be read: {error.strerror}") from error
        if built.manifest == "formula" and content == _FORMULA:
            return FormulaKernel(kernel, device)
        if built.manifest != f"library {digest(content)}":
            raise DialectError("the built kernel is damaged, or none")
        loaded = self._load(kernel, built.path, device, task.target.threads)
        if (
            kernel.reference.outputs
            and built.candidate_key == self.reference(task).key
            and not reproduces(loaded, kernel)
        ):
            raise DialectError("the kernel with its default parameters does not give the recorded outputs")
        return loaded

    @override
    def reference(self, task: Task) -> Candidate:
        kernel = _specification(task.workload.program)
        if kernel.reference.numpy or kernel.reference.source:
            return candidate_of(task, _REFERENCE, Origin.PLANTED)
        return candidate_of(task, canonical_json({_PARAMETERS: dict(kernel.default)}), Origin.PLANTED)

    @override
    def baseline(self, task: Task) -> Candidate:
        kernel = _specification(task.workload.program)
        return candidate_of(task, canonical_json({_PARAMETERS: dict(kernel.default)}), Origin.BASELINE)

    @override
    def compile(
        self,
        network: Network,
        target: Target,
        chosen: Mapping[str, Candidate],
        output: Path,
        parts: Mapping[str, Built] = MappingProxyType({}),
    ) -> Compiled:
        kernel = _specification(network.program)
        candidate = chosen.get(kernel.key)
        configuration = _allowed(kernel, candidate.body) if candidate else kernel.default
        self._write(output, network, Program.of(kernel, configuration), target)
        return Compiled(str(output), {kernel.key: candidate.key if candidate else None})

    @override
    def texts(self, path: Path) -> Mapping[str, str]:
        from tunery.dialects.kernels.delivery import members, texts

        return texts(path, members(self._ending))

    @override
    def write_records(self, task: Task, records: Sequence[Record], device: str, format_name: str) -> str:
        from tunery.dialects.kernels.kernel_tuner import written

        return written(_specification(task.workload.program), records, device, format_name)


class KernelsDialect(UsersKernels, CrossCompiler):
    """Kernels in C with OpenMP, built by gcc."""

    name = "kernels"
    _language = "c"
    _ending = "c"

    @property
    @override
    def compiler(self) -> str:
        from tunery.dialects.kernels.gcc import version

        return f"gcc {version() or 'absent'} build {_BUILD}"

    @override
    def doctor(self) -> Iterable[Check]:
        from tunery.dialects.kernels.gcc import version

        found = version()
        if found:
            return (Check("gcc", CheckState.OK, f"{found}, for kernels in C"),)
        return (Check("gcc", CheckState.ABSENT, "not there (needed for kernels in C)", "install gcc"),)

    @override
    def resolve_target(self, spec: str, threads: int) -> Target:
        from tunery.dialects.kernels.gcc import Processor, defined, native_processor

        if threads < 1:
            raise TargetError(f"target {spec!r:.60} with {threads} threads: at least one is needed")
        if spec == "native":
            return Target(self.name, {"kind": "c", "mcpu": native_processor()}, threads)
        config = read_target(spec, "c", ["mcpu"], '{"kind": "c", "mcpu": "..."}')
        defined(Processor(str(config["mcpu"])))
        return Target(self.name, config, threads)

    @override
    def resolve_target_of(self, spec: str, threads: int, device: DeviceDescription) -> Target:
        from tunery.dialects.kernels.cross import config_for

        if threads < 1:
            raise TargetError(f"target {spec!r:.60} with {threads} threads: at least one is needed")
        return Target(self.name, config_for(spec, device), threads)

    @override
    def _build(self, program: Program, target: Target, path: Path) -> None:
        from tunery.dialects.kernels.gcc import build, processor_of

        build(program, processor_of(target.config), path)

    @override
    def _load(self, kernel: KernelSpecification, path: Path, device: Device, threads: int) -> "BuiltKernel":
        from tunery.dialects.kernels.kernel import CKernel

        return CKernel(kernel, path, device, threads)

    @override
    def _write(self, output: Path, network: Network, program: Program, target: Target) -> None:
        from tunery.dialects.kernels.delivery import write

        write(output, network, program, target)

    @override
    def load_network(self, archive: Archive, threads: int | None = None) -> CompiledNetwork:
        from tunery.dialects.kernels.delivery import CNetwork

        return CNetwork(archive, threads)


@lru_cache(maxsize=64)
def _specification(program: str) -> KernelSpecification:
    return read_specification(program)


def _programs(kernel: KernelSpecification) -> list[Program]:
    """Return what is built of a kernel: itself under its default, and its reference in C, if it has one."""
    reference, programs = kernel.reference, [Program.of(kernel, kernel.default)]
    if reference.source:
        programs.append(replace(programs[0], source=reference.source, function=reference.function or kernel.function))
    return programs


def _allowed(kernel: KernelSpecification, body: str) -> dict[str, Value]:
    choices = kernel.space.choices(configuration_of(body, _PARAMETERS))
    if choices is None:
        raise DialectError(f"{body[:80]!r} is no configuration of {kernel.function}")
    return kernel.space.configuration(choices)
