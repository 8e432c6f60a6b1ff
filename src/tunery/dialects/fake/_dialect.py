"""The dialect itself: extraction, files, and a look behind the script for tests."""

import json
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tunery._errors import DialectError, TargetError
from tunery.dialects._base import Array, Compiled, Dialect, Told
from tunery.dialects.fake._kernel import FakeKernel, NoiseClock, misbehave, spend
from tunery.dialects.fake._script import BUILD_FAULTS, Program, parse_source, programs
from tunery.dialects.fake._search import FakeProposer
from tunery.dialects.fake._space import DEFAULT, FEATURES, REFERENCE, Space
from tunery.dialects.fake._workloads import KINDS, arguments, flop
from tunery.domain import Artifact, Candidate, Network, Origin, Target, Task, Workload, canonical_json, digest

_SPEEDS = {"native": 1.0, "fake": 1.0, "fake-fast": 4.0}


class FakeDialect(Dialect):
    """Deterministic, scripted by the network's source (see the package's docstring); needs no compiler."""

    name = "fake"

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
        except (ValueError, TypeError, AttributeError) as error:
            raise TargetError(f"unknown target {spec!r}; use {accepted}") from error
        if not known or not 0 < speed < math.inf:
            raise TargetError(f"unknown or incomplete target {spec!r}; use {accepted}")
        return Target(self.name, {"kind": "fake", "speed": speed}, threads)

    def extract(self, network: Network, target: Target) -> list[Task]:
        name, script, task_script = parse_source(network.source)
        spend(script.extract_s, task_script.spin)
        if script.unsupported:
            raise DialectError(f"network {name!r} holds an operator that the fake compiler cannot import: Scripted")
        weights = [int(weight) for weight in script.weights.split(",")]
        tasks = [
            Task(_workload(program), target, weights[program.index % len(weights)], program.index < script.tasks)
            for program in programs(script, task_script)
        ]
        return sorted(tasks, key=lambda task: -task.weight * task.workload.flop)

    def open(self, task: Task, history: Sequence[Told], cost_model: str | None, seed: int) -> FakeProposer:
        return FakeProposer(Space(task), history, cost_model, seed)

    def build(self, task: Task, candidate: Candidate, directory: Path) -> Artifact:
        space = Space(task)
        fault = space.fault(candidate.body)
        spend(space.script.build_s, space.script.spin)
        if fault == "refuse":
            raise DialectError(f"candidate {candidate.key} of {task.workload.name} is scripted not to build")
        misbehave(fault if fault in BUILD_FAULTS else None)
        content = canonical_json({"task": task.key, "candidate": candidate.key, "body": candidate.body})
        path = directory / f"{digest(self.compiler, task.key, candidate.body)}.json"
        _write(path, content)
        return Artifact(candidate.key, str(path), len(content.encode()))

    def load(self, task: Task, artifact: Artifact) -> FakeKernel:
        data = _read(Path(artifact.path))
        if data.get("task") != task.key or data.get("candidate") != artifact.candidate_key:
            raise DialectError(f"artifact {artifact.path} was not built for candidate {artifact.candidate_key}")
        space = Space(task)
        spend(space.script.load_s, space.script.spin)
        return FakeKernel(space, artifact.candidate_key, data["body"], self._clock)

    def reference(self, task: Task) -> Candidate:
        return Space(task).named(REFERENCE, Origin.PLANTED)

    def baseline(self, task: Task) -> Candidate:
        return Space(task).named(DEFAULT, Origin.BASELINE)

    def features(self, task: Task, candidates: Sequence[Candidate]) -> npt.NDArray[np.float32]:
        space = Space(task)
        rows = np.full((len(candidates), FEATURES), np.nan, np.float32)
        for row, candidate in zip(rows, candidates, strict=True):
            try:
                row[:] = space.features(candidate.body)
            except DialectError:
                continue
        return rows

    def compile(self, network: Network, target: Target, chosen: Mapping[str, Candidate], output: Path) -> Compiled:
        name, script, task_script = parse_source(network.source)
        spend(script.compile_s, task_script.spin)
        output.unlink(missing_ok=True)
        if script.compile_fails:
            raise DialectError(f"network {name!r} is scripted not to compile")
        parts: list[dict[str, Any]] = []
        coverage: dict[str, str | None] = {}
        # In the order of the network's inputs, not of the tasks' weights.
        for task in sorted(self.extract(network, target), key=lambda task: Program.parse(task.workload).index):
            candidate = chosen.get(task.workload.key)
            coverage[task.workload.key] = candidate.key if candidate else None
            used = candidate or self.baseline(task)
            if Space(task).fault(used.body) in BUILD_FAULTS:
                raise DialectError(f"candidate {used.key} of {task.workload.name} does not build")
            parts.append({"program": task.workload.program, "tunable": task.tunable, "body": used.body})
        config = {"config": dict(target.config), "threads": target.threads}
        _write(output, canonical_json({"format": "fake-network", "target": config, "tasks": parts}))
        return Compiled(str(output), coverage)

    @classmethod
    def run_compiled(cls, path: str | Path, inputs: Sequence[Array]) -> list[Array]:
        """Run a compiled network on the network's inputs, in order, and return its outputs.

        Raises:
            DialectError: the file is no compiled network of this dialect.
        """
        data = _read(Path(path))
        if data.get("format") != "fake-network":
            raise DialectError(f"{path} is no compiled fake network")
        target = Target(cls.name, data["target"]["config"], data["target"]["threads"])
        waiting = list(inputs)
        outputs: list[Array] = []
        for part in data["tasks"]:
            program = Program.parse(Workload("", "", "", part["program"], (), 0, 0.0))
            task = Task(_workload(program), target, tunable=part["tunable"])
            kernel = FakeKernel(Space(task), "", part["body"], NoiseClock())
            count = len(task.workload.input_specs)
            kernel.bind(waiting[:count])
            del waiting[:count]
            kernel.run()
            outputs += kernel.outputs()
        return outputs

    def candidate(self, task: Task, index: int) -> Candidate:
        """Return the config with this index, for tests that plant a candidate."""
        return Space(task).candidate(index)

    def fault(self, task: Task, candidate: Candidate) -> str | None:
        """Return what the script makes this candidate do wrong, None where it is healthy."""
        return Space(task).fault(candidate.body)

    def latency_s(self, task: Task, candidate: Candidate) -> float:
        """Return the scripted latency in seconds, without noise."""
        return Space(task).latency_s(candidate.body)

    def best(self, task: Task) -> Candidate | None:
        """Return the fastest healthy config, None where the task has none."""
        space = Space(task)
        return next((space.candidate(index) for index in space.healthy()), None) if space.size else None


def _workload(program: Program) -> Workload:
    specs, outputs = arguments(program.op, program.script.size)
    text = program.dump()
    work = flop(program.op, program.script.size)
    return Workload(digest(text), f"{program.op}_{program.index}", KINDS[program.op], text, specs, outputs, work)


def _write(path: Path, content: str) -> None:
    """Write a file that is either whole or absent, also where this process is killed."""
    handle, partial = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".partial")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(content)
        Path(partial).replace(path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise DialectError(f"{path} cannot be loaded: {error}") from error
    if not isinstance(data, dict):
        raise DialectError(f"{path} holds no artifact")
    return data
