"""What is tuned: workload, target, task."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tunery.domain.keys import canonical_json, digest
from tunery.domain.network import TensorSpec


@dataclass(frozen=True)
class Target:
    """What code is generated for: a dialect's target description as plain data. `threads` is the number of threads a
    kernel may use, in tuning, in measurement and in delivery alike."""

    dialect: str
    config: Mapping[str, Any]
    threads: int

    @cached_property
    def key(self) -> str:
        """Identity: any field that affects code changes it."""
        return digest(self.dialect, canonical_json(dict(self.config)), str(self.threads))

    def __str__(self) -> str:
        return f"{self.config.get('kind', self.dialect)}/{self.config.get('mcpu', '-')} x{self.threads}"


@dataclass(frozen=True)
class Workload:
    """One operator-level computation, independent of target. `key` is the dialect's structural hash; `program` its
    serialised form; `arguments` are inputs first, outputs last; `kind` is the operator family used in tables (`conv2d`,
    `dense`, `elementwise`, ...); `flop` counts one execution. `operator` is the text of its `OperatorKey`, which is the
    same whatever dialect has it; None where nobody can tell."""

    key: str
    name: str
    kind: str
    program: str
    arguments: tuple[TensorSpec, ...]
    outputs: int
    flop: float
    operator: str | None = None

    @property
    def label(self) -> str:
        """What reports call it: its name, which other workloads of a network may share, and the start of its key."""
        return f"{self.name}:{self.key[:8]}"

    @property
    def input_specs(self) -> tuple[TensorSpec, ...]:
        return self.arguments[: len(self.arguments) - self.outputs]

    @property
    def output_specs(self) -> tuple[TensorSpec, ...]:
        return self.arguments[len(self.arguments) - self.outputs :]


@dataclass(frozen=True)
class Task:
    """A workload on a target, with its number of call sites in the network it came from. A task that is not `tunable`
    has no decision to make: its one implementation is measured and verified, not searched."""

    workload: Workload
    target: Target
    weight: int = 1
    tunable: bool = True

    @cached_property
    def key(self) -> str:
        """Identity of workload and target; the weight is the network's business, not the task's."""
        return digest(self.workload.key, self.target.key)


def merged_tasks(tasks: Iterable[Task]) -> tuple[Task, ...]:
    merged: dict[str, Task] = {}
    for task in tasks:
        known = merged.get(task.key)
        merged[task.key] = task if known is None else replace(known, weight=known.weight + task.weight)
    return tuple(sorted(merged.values(), key=lambda task: -task.weight * task.workload.flop))
