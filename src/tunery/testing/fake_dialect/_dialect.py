"""The dialect itself: extraction, files, and a look behind the script for tests."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from tunery._archive import Archive, ArchiveWriter
from tunery._errors import DialectError, TargetError, UsageError
from tunery.costmodels.columns import FeatureRows, Layout
from tunery.devices import Device
from tunery.dialects import (
    Array,
    Built,
    Codegen,
    Compiled,
    Dialect,
    NetworkCompiler,
    Observation,
    RecordChecker,
    Space,
    TaskSource,
)
from tunery.domain import Candidate, Network, Origin, Target, Task, Workload, canonical_json, digest
from tunery.testing.fake_dialect._compiled import FakeCompiledNetwork, combine_networks, workload_of, write_network
from tunery.testing.fake_dialect._files import read, write
from tunery.testing.fake_dialect._kernel import FakeKernel, NoiseClock, misbehave, spend
from tunery.testing.fake_dialect._script import BUILD_FAULTS, FakeProgram, fake_network, parse_source, programs
from tunery.testing.fake_dialect._search import FakeProposer
from tunery.testing.fake_dialect._space import DEFAULT, FEATURE_NAMES, FEATURES, REFERENCE, FakeSpace, check_schedule

_SPECIMENS = "fake:calibration?tasks=2&ops=matmul,elementwise&best_us=200&spread=4"
_SPEEDS = {"native": 1.0, "fake": 1.0, "fake-fast": 4.0}
_MOST_SPEED = 1e6
_DEVICES = {"cpu", "fake"}
_LAYOUT = Layout("schedule", 1, FEATURE_NAMES)


class FakeDialect(Dialect, TaskSource, Space, Codegen, NetworkCompiler, RecordChecker):
    """Deterministic, scripted by the network's source (see the package's docstring); needs no compiler."""

    name = "fake"
    scripted = True

    def __init__(self) -> None:
        self._clock = NoiseClock()

    @property
    def compiler(self) -> str:
        return "fake 1.0"

    def resolve_target(self, spec: str, threads: int) -> Target:
        accepted = f'{", ".join(_SPEEDS)} or an object such as {{"kind": "fake", "speed": 2.0}}'
        if threads < 1:
            raise TargetError(f"target {spec!r} with {threads} threads: at least one is needed")
        if spec in _SPEEDS:
            return Target(self.name, {"kind": "fake", "speed": _SPEEDS[spec]}, threads)
        try:
            config = json.loads(spec)
            speed = float(config.get("speed", 1.0))
            known = config.get("kind") == "fake" and config.keys() <= {"kind", "speed"}
        except (ValueError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            raise TargetError(f"unknown target {spec!r}; use {accepted}") from error
        if not known or not 1 / _MOST_SPEED <= speed <= _MOST_SPEED:
            raise TargetError(f"unknown or incomplete target {spec!r}; use {accepted}")
        return Target(self.name, {"kind": "fake", "speed": speed}, threads)

    def extract(self, network: Network, target: Target) -> list[Task]:
        name, script, task_script = parse_source(network.source)
        spend(script.extract_s, task_script.spin)
        misbehave("segfault" if script.extract_dies else None)
        if script.unsupported:
            raise DialectError(f"network {name!r} holds an operator that the fake compiler cannot import: Scripted")
        weights = [int(weight) for weight in script.weights.split(",")]
        tasks = [
            Task(workload_of(program), target, weights[program.index % len(weights)], program.index < script.tasks)
            for program in programs(script, task_script)
        ]
        return sorted(tasks, key=lambda task: -task.weight * task.workload.flop)

    def own_network(self, source: str) -> Network:
        return fake_network(source)

    def open(
        self,
        task: Task,
        history: Sequence[Observation],
        cost_model: str | None,
        seed: int,
        *,
        warm_start: bool = False,  # noqa: ARG002 - it knows nothing of other tasks
        generic_only_reason: str | None = None,
    ) -> FakeProposer:
        return FakeProposer(FakeSpace(task), history, cost_model, seed, generic_only=generic_only_reason is not None)

    def build(self, task: Task, candidate: Candidate, directory: Path) -> Built:
        space = FakeSpace(task)
        fault = space.fault(candidate.body)
        spend(space.script.build_s, space.script.spin)
        if fault == "refuse":
            raise DialectError(f"candidate {candidate.key} of {task.workload.name} is scripted not to build")
        misbehave(fault if fault in BUILD_FAULTS else None)
        content = canonical_json({"task": task.key, "candidate": candidate.key, "body": candidate.body})
        path = directory / f"{digest(self.compiler, task.key, candidate.body)}.json"
        write(path, content)
        return Built(candidate.key, path)

    def reject(self, task: Task, candidate: Candidate) -> str | None:
        absurd = FakeSpace(task).absurd(candidate.body)
        return "its loops are scripted to be absurd" if absurd else None

    def load(self, task: Task, built: Built, device: Device) -> FakeKernel:
        if device.kind not in _DEVICES:
            raise DialectError(f"a fake kernel does not run on a device of kind {device.kind}")
        data = read(built.path)
        if data.get("task") != task.key or data.get("candidate") != built.candidate_key:
            raise DialectError(f"{built.path} was not built for candidate {built.candidate_key}")
        space = FakeSpace(task)
        spend(space.script.load_s, space.script.spin)
        return FakeKernel(space, built.candidate_key, data["body"], self._clock, device)

    def reference(self, task: Task) -> Candidate:
        return FakeSpace(task).named(REFERENCE, Origin.PLANTED)

    def baseline(self, task: Task) -> Candidate:
        return FakeSpace(task).named(DEFAULT, Origin.BASELINE)

    def calibration_tasks(self, target: Target) -> Mapping[str, Task]:
        found = {task.workload.kind: task for task in self.extract(fake_network(_SPECIMENS), target)}
        return {"compute": found["dense"], "memory": found["elementwise"]}

    def layout(self) -> Layout:
        return _LAYOUT

    def features(self, task: Task, candidates: Sequence[Candidate]) -> FeatureRows:
        space = FakeSpace(task)
        rows = np.full((len(candidates), FEATURES), np.nan, np.float32)
        for row, candidate in zip(rows, candidates, strict=True):
            try:
                row[:] = space.features(candidate.body)
            except DialectError:
                continue
        return FeatureRows(rows, _LAYOUT)

    def check_workload(self, workload: Workload) -> None:
        try:
            made = workload_of(FakeProgram.parse(workload.program))
            sound = workload in {made, replace(made, operator=None)}
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            raise DialectError(f"the program of workload {workload.key} is none of the fake dialect") from error
        if not sound:
            raise DialectError(f"the program of workload {workload.key} is not the one that its key names")

    def check_body(self, body: str) -> None:
        check_schedule(body)

    def identify(self, task: Task, body: str) -> Candidate:
        return FakeSpace(task).identified(body)

    def compile(
        self,
        network: Network,
        target: Target,
        chosen: Mapping[str, Candidate],
        output: Path,
        parts: Mapping[str, Built] = MappingProxyType({}),  # noqa: ARG002 - it has no code to generate
    ) -> Compiled:
        name, script, task_script = parse_source(network.source)
        spend(script.compile_s, task_script.spin)
        output.unlink(missing_ok=True)
        if script.compile_fails:
            raise DialectError(f"network {name!r} is scripted not to compile")
        used: list[tuple[Task, Candidate]] = []
        coverage: dict[str, str | None] = {}
        # In the order of the network's inputs, not of the tasks' weights.
        for task in sorted(
            self.extract(network, target), key=lambda task: FakeProgram.parse(task.workload.program).index
        ):
            candidate = chosen.get(task.workload.key)
            coverage[task.workload.key] = candidate.key if candidate else None
            used.append((task, candidate or self.baseline(task)))
            if FakeSpace(task).fault(used[-1][1].body) in BUILD_FAULTS:
                raise DialectError(f"candidate {used[-1][1].key} of {task.workload.name} does not build")
        write_network(output, target, used)
        return Compiled(str(output), coverage)

    def load_network(self, archive: Archive, threads: int | None = None) -> FakeCompiledNetwork:
        return FakeCompiledNetwork(archive, threads)

    def bundle(self, archive: Archive, directory: Path, runtime: Path | None = None) -> None:
        FakeCompiledNetwork(archive)
        if runtime:
            raise UsageError(f"there are no libraries in {runtime}; a file of this dialect needs none")
        shutil.copy(archive.path, directory / "network")

    def combine(self, parts: Sequence[Archive], writer: ArchiveWriter) -> list[dict[str, Any]]:
        return combine_networks(parts, writer)

    @classmethod
    def run_compiled(cls, path: str | Path, inputs: Sequence[Array]) -> list[Array]:
        """Run a compiled network on the network's inputs, in order, and return its outputs."""
        with Archive(Path(path)) as archive:
            return FakeCompiledNetwork(archive)(*inputs)

    def candidate(self, task: Task, index: int) -> Candidate:
        return FakeSpace(task).candidate(index)

    def fault(self, task: Task, candidate: Candidate) -> str | None:
        return FakeSpace(task).fault(candidate.body)

    def latency_s(self, task: Task, candidate: Candidate) -> float:
        """Return the scripted latency in seconds, without noise."""
        return FakeSpace(task).latency_s(candidate.body)

    def best(self, task: Task) -> Candidate | None:
        space = FakeSpace(task)
        return next((space.candidate(index) for index in space.healthy()), None) if space.size else None
