"""A task, and a dialect that loads scripted kernels by candidate key."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunery.blobs import Blobs
from tunery.devices import Device
from tunery.dialects import Array, Built, Codegen, Dialect, Kernel
from tunery.domain import Artifact, Candidate, Origin, Target, Task, TensorSpec, Workload
from tunery.measuring.inputs import numpy_dtype
from tunery.measuring.service import Measurer
from tunery.measuring.settings import MeasuringSettings
from tunery.testing.fake_blobs import FakeBlobs
from tunery.testing.fake_device import FakeDevice
from tunery.testing.fake_measuring import FakeKernel

LATENCY_S = 1e-3


def double(inputs: Sequence[Array]) -> list[Array | None]:
    """What the task computes."""
    return [inputs[0] * 2]


def make_task(dtype: str = "float32", shape: tuple[int, ...] = (16, 8)) -> Task:
    specs = (TensorSpec("x", shape, dtype), TensorSpec("y", shape, dtype))
    workload = Workload(f"w-{dtype}-{shape}", "double", "elementwise", "", specs, 1, float(specs[0].size))
    return Task(workload, Target("scripted", {"kind": "cpu"}, 1))


class ScriptedDialect(Dialect, Codegen):
    """Knows only how to load: `scripts` maps a candidate key to a kernel's keyword arguments, or an error."""

    name = "scripted"

    def __init__(self) -> None:
        self.scripts: dict[str, Mapping[str, Any] | Exception] = {"reference": {"latency_s": 0.1}}
        self.loaded: list[str] = []
        self.kernels: dict[str, FakeKernel] = {}

    @property
    def compiler(self) -> str:
        return "scripted 1"

    def resolve_target(self, spec: str, threads: int) -> Target:
        return Target(self.name, {"kind": spec}, threads)

    def build(self, task: Task, candidate: Candidate, directory: Path) -> Built:
        return Built(candidate.key, directory / f"{candidate.key}.so")

    def reference(self, task: Task) -> Candidate:
        return candidate("reference")

    def baseline(self, task: Task) -> Candidate:
        return candidate("baseline", Origin.BASELINE)

    def load(self, task: Task, built: Built, device: Device) -> Kernel:
        self.loaded.append(built.candidate_key)
        script = self.scripts[built.candidate_key]
        if isinstance(script, Exception):
            raise script
        assert isinstance(device, FakeDevice)
        empty = [np.zeros(spec.shape, numpy_dtype(spec.dtype)) for spec in task.workload.output_specs]
        kernel = FakeKernel(device, **{"latency_s": LATENCY_S, "compute": double, "empty": empty, **script})
        self.kernels[built.candidate_key] = kernel
        return kernel


def candidate(key: str, origin: Origin = Origin.SEARCH) -> Candidate:
    return Candidate(key, "task", "{}", origin)


class Bench:
    """A measurer on a scripted device."""

    def __init__(self, blobs: Blobs | None = None, settings: MeasuringSettings | None = None, **device: Any) -> None:
        self.device = FakeDevice(**device)
        self.dialect = ScriptedDialect()
        self.blobs = blobs or FakeBlobs()
        self.task = make_task()
        self.measurer = Measurer(self.dialect, self.device, self.blobs, settings)

    def artifact(self, key: str) -> Artifact:
        return Artifact(key, self.blobs.put(key.encode()), len(key))

    def race(self, incumbent_s: float | None = None, **script: Any) -> Any:
        self.dialect.scripts["c"] = script
        reference = self.artifact("reference")
        return self.measurer.race(self.task, self.artifact("c"), candidate("c"), incumbent_s, reference)

    def finals(self, rounds: int = 12, **scripts: Mapping[str, Any]) -> Any:
        self.dialect.scripts.update(scripts)
        artifacts, candidates = map(self.artifact, scripts), map(candidate, scripts)
        return self.measurer.finals(self.task, list(artifacts), list(candidates), self.artifact("reference"), rounds)


@pytest.fixture
def bench() -> Callable[..., Bench]:
    return Bench


@pytest.fixture
def task() -> Task:
    return make_task()


@pytest.fixture
def task_of() -> Callable[..., Task]:
    return make_task
