"""A concrete thing that runs kernels, the host that it is part of, and the processes on it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

from tunery.domain.keys import canonical_json, digest


@dataclass(frozen=True)
class DeviceDescription:
    """A processor or accelerator, as it describes itself: `facts` make timings comparable (model, caches, driver).
    `cores` are those of the host that it runs on; only their number is part of the fingerprint."""

    kind: str
    name: str
    cores: tuple[int, ...]
    facts: Mapping[str, Any]

    @cached_property
    def fingerprint(self) -> str:
        """Identity for comparing timings: the same machine type and core count give the same fingerprint."""
        return fingerprint_of(self.as_facts())

    @property
    def absent(self) -> str:
        """Why there is no such device here, though it is compiled for; "" where there is one."""
        return str(self.facts.get("reason", ""))

    def as_facts(self) -> Mapping[str, Any]:
        return {"kind": self.kind, "name": self.name, "cores": len(self.cores), **self.facts}


def fingerprint_of(facts: Mapping[str, Any]) -> str:
    rest = {name: value for name, value in facts.items() if name not in {"kind", "name", "cores"}}
    return digest(*(str(facts.get(name, "")) for name in ("kind", "name", "cores")), canonical_json(rest))


@dataclass(frozen=True, slots=True)
class SharingPoint:
    """What `degree` measurements at once do to kernels of a kind (`compute`, `memory`): one point of a device's curve.
    `deviation` is the share by which they take longer than alone (median over kernels), `tau` Kendall's rank agreement
    of shared with isolated timings, `gain` how many times as many candidates are measured per second."""

    kind: str
    degree: int
    deviation: float
    tau: float
    gain: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was found about measuring on a device with kernels of `threads` threads, of which `slots` fit at once.
    `isolated_tau` is the rank agreement of two isolated passes, by kind; `degrees` how many measurements may share the
    device, by kind; the rates are those of the fastest reference kernel."""

    device: str
    dialect: str
    threads: int
    slots: int
    points: tuple[SharingPoint, ...]
    isolated_tau: Mapping[str, float]
    degrees: Mapping[str, int]
    flop_per_s: float
    bytes_per_s: float
    clock_overhead_s: float
    made_at: float = 0.0

    @property
    def neighbours_disturb(self) -> bool:
        """Whether even one neighbour distorts what is measured, so that nothing may run beside a measurement."""
        return self.slots > 1 and max(self.degrees.values(), default=1) == 1


HERE = "here"
"""The name of this host, and of the one host of an engine that has no other."""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What a host says of itself. `version` is that of tunery, `packages` are those that tunery and its extras require,
    by their versions, as far as they are installed. `cores` are those that its agent may use, `granted` is how many of
    them at a time; `clock_s` is its time (seconds since 1970) when it said all this."""

    version: str
    python: str
    system: str
    machine: str
    node: str
    cores: tuple[int, ...]
    granted: int
    memory_bytes: int
    clock_s: float
    devices: tuple[DeviceDescription, ...] = ()
    packages: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (1 <= self.granted <= len(self.cores) and self.memory_bytes > 0 and math.isfinite(self.clock_s)):
            raise ValueError("no host has such cores, memory and time")


@dataclass(frozen=True)
class Environment:
    """What a worker's process is made with, before its service is created. `python` is the interpreter of a virtual
    environment in which tunery is installed; "" is this process's own. `preload` are modules that are imported once, in
    the process that workers are forked from: they may start no thread. `measuring_preload` are those of a worker that
    only runs what others have compiled, in its host's own Python, which need not have the compiler. `variables` are set
    before anything is imported, `thread_variables` in each worker to the number of its threads. `forbidden` are modules
    that these workers may not import; `libraries` those that a worker which needs a forbidden module may not import in
    turn (`counterpart`)."""

    python: str = ""
    preload: tuple[str, ...] = ()
    measuring_preload: tuple[str, ...] | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    thread_variables: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()

    @cached_property
    def key(self) -> str:
        """Identity of the process that workers are forked from: those with one key share it."""
        made = [self.python, list(self.preload), dict(self.variables), list(self.forbidden)]
        return digest(canonical_json(made))

    def counterpart(self) -> "Environment":
        """Return the environment of a worker that imports what is forbidden here, and never the `libraries`."""
        return Environment(forbidden=self.libraries)

    def measuring(self) -> "Environment":
        return self if self.measuring_preload is None else replace(self, python="", preload=self.measuring_preload)

    def preloading(self, *modules: str) -> "Environment":
        return replace(self, preload=(*self.preload, *modules))


class CheckState(StrEnum):
    """How a check ended; what is absent is needed for something that nobody has asked for yet."""

    OK = "ok"
    ABSENT = "absent"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """What one look found; `advice` is empty where there is nothing to do."""

    name: str
    state: CheckState
    found: str
    advice: str = ""
