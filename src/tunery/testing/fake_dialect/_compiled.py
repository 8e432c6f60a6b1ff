"""Compiled fake networks: an archive whose manifest holds programs and schedules, and what runs it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tunery._archive import Archive, ArchiveError, ArchiveWriter, new_archive
from tunery._errors import UsageError
from tunery._outputs import replacing
from tunery.dialects import Array, CompiledNetwork
from tunery.domain import Candidate, Target, Task, TensorSpec, Workload
from tunery.domain import digest as digest_of
from tunery.testing.fake_dialect._kernel import FakeKernel, NoiseClock
from tunery.testing.fake_dialect._script import FakeProgram
from tunery.testing.fake_dialect._space import FakeSpace
from tunery.testing.fake_dialect._workloads import operator

_FORMAT = "fake-network"


def workload_of(program: FakeProgram) -> Workload:
    text = program.dump()
    specs, outputs = program.arguments
    name, key = f"{program.op}_{program.index}", operator(program.op, program.script.size)
    return Workload(digest_of(text), name, program.kind, text, specs, outputs, program.flop, key)


def write_network(path: Path, target: Target, used: Sequence[tuple[Task, Candidate]]) -> None:
    parts = [
        {"program": task.workload.program, "tunable": task.tunable, "weight": task.weight, "body": candidate.body}
        for task, candidate in used
    ]
    config = {"config": dict(sorted(target.config.items())), "threads": target.threads}
    with replacing(path) as part, new_archive(part) as archive:
        archive.finish({"dialect": "fake", "format": _FORMAT, "target": config, "tasks": parts})


def combine_networks(parts: Sequence[Archive], writer: ArchiveWriter) -> list[dict[str, Any]]:
    """Return what to say of parts of one network, for different targets; the first is the best."""
    manifests = [FakeCompiledNetwork(part).data for part in parts]
    programs = [[task["program"] for task in data["tasks"]] for data in manifests]
    targets = [data["target"] for data in manifests]
    if any(one != programs[0] for one in programs) or any(targets.count(one) > 1 for one in targets):
        names = ", ".join(str(part.path) for part in parts)
        raise UsageError(f"{names} are not of one network for different targets; combine files that are")
    return [writer.copy_part(part, str(number)) for number, part in enumerate(parts)]


class FakeCompiledNetwork(CompiledNetwork):
    """Runs each task once, one after the other; its time counts each task as often as it has call sites."""

    def __init__(self, archive: Archive, threads: int | None = None) -> None:
        data = archive.manifest
        if data.get("format") != _FORMAT:
            raise ArchiveError("its format is another")
        self.data = data
        self.threads = threads or int(data["target"]["threads"])
        target = Target("fake", data["target"]["config"], self.threads)
        self._tasks = [_task(part, target) for part in data["tasks"]]
        clock = NoiseClock()
        self._kernels = [
            FakeKernel(FakeSpace(task), digest_of(task.key, part["body"]), part["body"], clock)
            for task, part in zip(self._tasks, data["tasks"], strict=True)
        ]
        numbers = [json.loads(task.workload.program)["index"] for task in self._tasks]
        numbered = list(zip(numbers, self._tasks, strict=True))
        self.inputs = tuple(_named(n, spec) for n, task in numbered for spec in task.workload.input_specs)
        self.outputs = tuple(_named(n, spec) for n, task in numbered for spec in task.workload.output_specs)

    def _run(self, arrays: Sequence[Array]) -> list[Array]:
        self._bind(arrays)
        results: list[Array] = []
        for kernel in self._kernels:
            kernel.run()
            results += kernel.outputs()
        return results

    def time(self, arrays: Sequence[Array], calls: int) -> float:
        self._bind(self.checked(arrays))
        pairs = zip(self._tasks, self._kernels, strict=True)
        return sum((kernel.time(calls * task.weight) for task, kernel in pairs), 0.0)

    def _bind(self, arrays: Sequence[Array]) -> None:
        waiting = list(arrays)
        for task, kernel in zip(self._tasks, self._kernels, strict=True):
            count = len(task.workload.input_specs)
            kernel.bind(waiting[:count])
            del waiting[:count]


def _named(number: int, spec: TensorSpec) -> TensorSpec:
    return TensorSpec(f"t{number}.{spec.name}", spec.shape, spec.dtype)


def _task(part: dict[str, Any], target: Target) -> Task:
    program = FakeProgram.parse(part["program"])
    return Task(workload_of(program), target, part["weight"], part["tunable"])
