"""IREE as a dialect: ONNX networks through its importer, for its CPU backend.

tools           its programs, in the environment of this dialect, and sets of their flags
dispatches      a network's dispatches as modules of their own: the tasks
operators       what operators these are, for other compilers to be compared with
configurations  what may be chosen for a product of tensors, and IREE's tuning spec of what was chosen
convolution     those that are several dispatches, each a task: a small network of its own
network         one file of a whole network; kernel: IREE's runtime in this process
"""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from typing_extensions import override

from tunery._archive import Archive
from tunery._environments import environment_fault, environment_python
from tunery._errors import DialectError, TargetError, UsageError
from tunery._processor import ARM_NAMES
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
    Space,
    Suggestions,
    TaskSource,
)
from tunery.dialects import _arm as arm
from tunery.dialects.configurations import candidate_of, configuration_of
from tunery.dialects.configurations.space import ConfigurationSpace
from tunery.dialects.iree import tools
from tunery.dialects.iree.convolution import DEFAULT, SPACE, WAY, convolution_keys, is_convolution, workload_of
from tunery.dialects.iree.convolution import build as build_convolution
from tunery.dialects.iree.dispatches import DEVICE, Contraction, DispatchedOperator, contraction, dispatches
from tunery.dialects.iree.operators import convolutions
from tunery.dialects.iree.tools import TUNED
from tunery.domain import (
    Candidate,
    Check,
    CheckState,
    DeviceDescription,
    Environment,
    Network,
    Origin,
    Target,
    Task,
    TensorSpec,
    Workload,
    canonical_json,
    digest,
    merged_tasks,
)
from tunery.domain.closed_target import read_target

_BUILD = "3"
"""Counts changes of how networks become tasks, or configurations become code."""
_KIND = "llvm-cpu"
_EXAMPLE = f'{{"kind": "{_KIND}", "mcpu": "znver4"}}'
_DEFAULT = canonical_json({"default": True})
_REFERENCE = canonical_json({"reference": True})
_TILES, _COMPILED = "tiles", "compiled"
"""The names of configurations in candidates' bodies: of products, and of convolutions."""


class IreeDialect(Dialect, TaskSource, Space, Codegen, CrossCompiler, NetworkCompiler):
    """IREE's compiler and runtime, in an environment of their own."""

    name = tools.NAME
    requirements = tools.REQUIREMENTS

    @property
    @override
    def compiler(self) -> str:
        return f"iree {tools.VERSION} build {_BUILD}"

    @override
    def environment(self) -> Environment:
        # What leads this process to other packages leads workers of another environment astray.
        # What measures on another host is in that host's Python, where its runtime is installed.
        python = str(environment_python(self.name))
        return Environment(python=python, measuring_preload=(), variables={"PYTHONPATH": ""})

    @override
    def doctor(self) -> Iterable[Check]:
        if fault := environment_fault(self.name, self.requirements):
            found, _, advice = fault.partition("; ")
            if environment_python(self.name).parents[1].exists():
                return (Check(self.name, CheckState.WARN, found, advice),)
            return (Check(self.name, CheckState.ABSENT, f"not there (needed for the dialect {self.name})", advice),)
        return (Check(self.name, CheckState.OK, f"{tools.VERSION}, in an environment of its own"),)

    @override
    def resolve_target(self, spec: str, threads: int) -> Target:
        _check_threads(spec, threads)
        if spec == "native":
            return Target(self.name, {"kind": _KIND, "mcpu": tools.native_processor()}, threads)
        config = read_target(spec, _KIND, ["mcpu"], _EXAMPLE)
        tools.device_line(config)
        return Target(self.name, config, threads)

    @override
    def resolve_target_of(self, spec: str, threads: int, device: DeviceDescription) -> Target:
        _check_threads(spec, threads)
        arm.check_device(device)
        if spec == "native":
            config = {"kind": _KIND, **arm.native(device.facts, tools.instructions)}
        else:
            config = {"mtriple": arm.TRIPLE, **read_target(spec, _KIND, ["mcpu", "mtriple", "mattr"], _EXAMPLE)}
            if config["mtriple"] != arm.TRIPLE or config["mcpu"] not in ARM_NAMES:
                known = ", ".join(sorted(ARM_NAMES))
                raise TargetError(f"{spec!r:.60} is no ARM processor that is known here; use native, or one of {known}")
            missing = tools.instructions(config) - arm.instructions_of(device.facts)
            if missing:
                lacking = ", ".join(sorted(missing))
                raise TargetError(f"target {spec!r:.60} is not for {device.name}, which lacks {lacking}; use native")
        return Target(self.name, config, threads)

    @override
    def extract(self, network: Network, target: Target) -> list[Task]:
        with tempfile.TemporaryDirectory(prefix="tunery-iree-") as scratch:
            source = Path(scratch) / "network.mlir"
            tools.import_onnx(Path(network.path), source)
            flags = [*tools.cpu_flags(target.config), *TUNED, "--compile-to=flow",
                     "--mlir-elide-elementsattrs-if-larger=16", "--mlir-print-debuginfo"]  # fmt: skip
            flow = tools.compile_module(source, flags)
            nodes = convolutions(source)
        keys = convolution_keys(Path(network.path))
        tasks = [Task(workload_of(key), target, calls) for key, calls in keys.items()]
        tasks += (
            Task(_workload(dispatch), target, dispatch.calls, tunable=dispatch.contraction is not None)
            for dispatch in dispatches(flow, nodes, keys)
        )
        return list(merged_tasks(tasks))

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
        from tunery.dialects.iree.configurations import starts

        space, name = _space(task)
        if is_convolution(task.workload.program):
            first = [space.at(number) for number in range(space.size or 0)]
        else:
            first = [choices for one in starts(_product(task)) if (choices := space.choices(one)) is not None]
        proposer = ConfigurationProposer(ConfigurationSearch(space, seed, first), space, task, name)
        proposer.observe(history)
        return proposer

    @override
    def identify(self, task: Task, body: str) -> Candidate:
        _, name = _space(task)
        return candidate_of(task, canonical_json({name: _allowed(task, body)}), Origin.SEARCH)

    @override
    def parameters(self, task: Task, candidate: Candidate) -> Mapping[str, str | float]:
        return {} if candidate.body in {_DEFAULT, _REFERENCE} else _allowed(task, candidate.body)

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
        return Suggestions(())  # what nobody has timed is no better than IREE's default

    @override
    def build(self, task: Task, candidate: Candidate, directory: Path) -> Built:
        from tunery.dialects.iree.configurations import tuning_spec

        path, program, config = directory / candidate.key, task.workload.program, task.target.config
        is_plain = candidate.body in {_DEFAULT, _REFERENCE}
        try:
            if is_convolution(program):
                way = DEFAULT if is_plain else str(_allowed(task, candidate.body)[WAY])
                build_convolution(program, way, config, path)
            else:
                spec = "" if is_plain else tuning_spec([(_product(task), _tiles(task, candidate.body))])
                _build_dispatch(program.replace(DEVICE, tools.device_line(config)), spec, path)
        except DialectError:
            path.unlink(missing_ok=True)
            raise
        return Built(candidate.key, path, f"{task.key} {digest(path.read_bytes())}")

    @override
    def load(self, task: Task, built: Built, device: Device) -> Kernel:
        from tunery.dialects.iree.kernel import IreeKernel, Module, check_device

        check_device(device)
        try:
            binary = built.path.read_bytes()
        except OSError as error:
            raise DialectError(f"the built dispatch cannot be read: {error.strerror}") from error
        if built.manifest != f"{task.key} {digest(binary)}":
            raise DialectError("the built dispatch is damaged, or another task's")
        module = Module(binary, "main", task.target.threads)
        return IreeKernel(module, task.workload.input_specs, task.workload.output_specs)

    @override
    def reference(self, task: Task) -> Candidate:
        return candidate_of(task, _REFERENCE, Origin.PLANTED)

    @override
    def baseline(self, task: Task) -> Candidate:
        return candidate_of(task, _DEFAULT, Origin.BASELINE)

    @override
    def compile(
        self,
        network: Network,
        target: Target,
        chosen: Mapping[str, Candidate],
        output: Path,
        parts: Mapping[str, Built] = MappingProxyType({}),
    ) -> Compiled:
        from tunery.dialects.iree.configurations import tuning_spec
        from tunery.dialects.iree.network import TUNED_NAME, fastest, write

        output.unlink(missing_ok=True)
        tasks = self.extract(network, target)
        products: dict[str, tuple[Contraction, dict[str, int]]] = {}
        coverage: dict[str, str | None] = dict.fromkeys((task.workload.key for task in tasks), None)
        ways: dict[str, str] = {}
        for task in tasks:  # the heaviest first: a spec has one configuration for equal products
            key = task.workload.key
            candidate = chosen.get(key)
            if candidate is None:
                continue
            if candidate.body in {_DEFAULT, _REFERENCE}:
                coverage[key] = candidate.key
            elif is_convolution(task.workload.program):
                ways[key] = str(_allowed(task, candidate.body)[WAY])
            else:
                product, configuration = _product(task), _tiles(task, candidate.body)
                if products.setdefault(product.text, (product, configuration))[1] == configuration:
                    coverage[key] = candidate.key
        spec = tuning_spec(list(products.values())) if products else ""
        with tempfile.TemporaryDirectory(prefix="tunery-iree-") as scratch:
            source = Path(scratch) / "network.mlir"
            tools.import_onnx(Path(network.path), source)
            made = fastest(network, source, target, spec, Path(scratch))
            write(output, network, target, made, spec)
        if made.name != TUNED_NAME:
            defaults = {key for key, one in chosen.items() if one.body in {_DEFAULT, _REFERENCE}}
            coverage = {key: found if key in defaults else None for key, found in coverage.items()}
        coverage |= {key: chosen[key].key for key, way in ways.items() if way == made.name}
        return Compiled(str(output), coverage)

    @override
    def load_network(self, archive: Archive, threads: int | None = None) -> CompiledNetwork:
        from tunery.dialects.iree.network import IreeNetwork

        return IreeNetwork(archive, threads)

    @override
    def texts(self, path: Path) -> Mapping[str, str]:
        from tunery.dialects.iree.network import SPEC, members

        with Archive(path) as archive:
            found = members(archive)
        return {".mlir": found[SPEC].decode()} if SPEC in found else {}

    @override
    def bundle(self, archive: Archive, directory: Path, runtime: Path | None = None) -> None:
        from tunery.dialects.iree.network import members

        if runtime:
            raise UsageError(
                f"{archive.path} is run by IREE's own runtime, of which a bundle holds nothing; omit --runtime"
            )
        for name, content in members(archive).items():
            (directory / name).write_bytes(content)


def _check_threads(spec: str, threads: int) -> None:
    if threads < 1:
        raise TargetError(f"target {spec!r:.60} with {threads} threads: at least one is needed")


def _workload(dispatch: DispatchedOperator) -> Workload:
    inputs, outputs = (
        tuple(TensorSpec(f"{name}{at}", shape, dtype) for at, (shape, dtype) in enumerate(of))
        for name, of in (("input", dispatch.inputs), ("output", dispatch.outputs))
    )
    product = dispatch.contraction
    written = sum(spec.size for spec in outputs)
    kind, told = "dense" if product else "other", list[str]()
    if dispatch.operator and dispatch.operator.startswith("conv"):  # its program does not say so
        kind, told = dispatch.operator.partition(":")[0], [dispatch.operator]
    return Workload(
        digest(dispatch.module, *told), dispatch.name, kind, dispatch.module,
        (*inputs, *outputs), len(outputs), product.flop if product else float(written),
        dispatch.operator,
    )  # fmt: skip


@lru_cache(maxsize=256)
def _read(program: str) -> Contraction | None:
    return contraction(program)


def _product(task: Task) -> Contraction:
    found = _read(task.workload.program)
    if found is None:
        raise DialectError(f"{task.workload.name} has no configuration that could be chosen")
    return found


def _space(task: Task) -> tuple[ConfigurationSpace, str]:
    from tunery.dialects.iree.configurations import space_of

    return (SPACE, _COMPILED) if is_convolution(task.workload.program) else (space_of(_product(task)), _TILES)


def _allowed(task: Task, body: str) -> dict[str, Any]:
    space, name = _space(task)
    choices = space.choices(configuration_of(body, name))
    if choices is None:
        raise DialectError(f"{body[:80]!r} is no configuration of {task.workload.name}")
    return space.configuration(choices)


def _tiles(task: Task, body: str) -> dict[str, int]:
    return {name: int(value) for name, value in _allowed(task, body).items()}


def _build_dispatch(module: str, spec: str, path: Path) -> None:
    flags = ["--compile-from=flow", *TUNED[:1], "--mlir-disable-threading"]
    if not spec:
        tools.compile_module(module, flags, path)
        return
    told = path.with_name(f"{path.name}.mlir")
    told.write_text(spec)
    try:
        tools.compile_module(module, [*flags, f"--iree-codegen-tuning-spec-path={told}"], path)
    finally:
        told.unlink(missing_ok=True)
