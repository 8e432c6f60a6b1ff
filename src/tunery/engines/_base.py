"""What runs stages: worker processes that can be called, timed out and killed from outside."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from tunery._errors import EngineError
from tunery.blobs import Blobs
from tunery.domain import HERE, Environment, HostFacts

OnUsage = Callable[[str, str, float, float], None]
"""What an engine may be given to report to: worker, method, wall seconds and CPU seconds of one call, as it ends.

The wall seconds count from when the worker took the call up; a call that ended by a deadline, a kill or a crash is
reported too. The creation of the service is reported as the method `__init__`. It is called before the call's future
is resolved, on a thread of the engine: it must be quick.
"""


class Role(StrEnum):
    """What a worker is for."""

    PREPARER = "preparer"
    IMPORTER = "importer"
    PROPOSER = "proposer"
    BUILDER = "builder"
    MEASURER = "measurer"
    TRAINER = "trainer"


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """How a worker is started.

    `service` is `module:Class`; the class is created once in the worker with `settings` as keyword arguments (plain
    data), and its public methods are what `Engine.call` reaches. A parameter of the constructor that is annotated
    `Blobs` is given the blobs of the worker's host. `cores` is the set of CPUs it is pinned to (empty: all
    that this process may use), `threads` the compiler's thread count, `nice` its priority, `memory_bytes` its address
    space above what it starts with (None: no limit). `environment` says in which Python it runs and what its process
    has imported already; by default nothing, so that it is there at once. `host` is one of `Engine.hosts`; "" is the
    first. One that is `confined` may, once its service is there, read programs and blobs in use, and write nothing.
    """

    role: Role
    service: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    cores: tuple[int, ...] = ()
    threads: int = 1
    nice: int = 0
    memory_bytes: int | None = None
    environment: Environment = field(default_factory=Environment)
    host: str = ""
    confined: bool = False


@dataclass(frozen=True, slots=True)
class HostUse:
    """How many cores of a host were used in its last seconds: `ours` by this engine, `others` by all else there."""

    ours: float
    others: float


class Engine(ABC):
    """Workers by id. A worker that dies or is killed is started again at its next call, with fresh state.

    A service's method takes and returns plain data, annotated; arguments and results cross the border as JSON by those
    annotations, never as pickles. Files cross as blobs: the caller puts them into `blobs` and hands over digests. One
    worker runs one call at a time; further calls to it wait.
    """

    blobs: Blobs
    """The blobs of this host, in the view that its workers share."""

    grows: bool = False
    """Whether hosts may join that are not among `hosts` yet."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names of the hosts that workers run on; the first is the one that has `blobs`."""
        return (HERE,)

    @classmethod
    @abstractmethod
    def open(cls, scratch: Path, blobs: Blobs) -> Self:
        """Return a new engine that may keep logs and the like in `scratch`, beside this host's `blobs`.

        Both outlive it. This is how the engine that the setting `TUNERY_ENGINE` names is made.
        """

    def host_of(self, spec: WorkerSpec) -> str:
        """Return the host that a worker of this spec is started on.

        Raises:
            EngineError: this engine has no such host.
        """
        if spec.host and spec.host not in self.hosts:
            raise EngineError(f"there is no host {spec.host!r}; this engine has {', '.join(self.hosts)}")
        return spec.host or self.hosts[0]

    def facts(self, host: str = "") -> HostFacts | None:  # noqa: ARG002 - one that has a further host says more
        """Return what a further host says of itself; None while it is away, and of the host that the caller is on."""
        return None

    def trusts(self, host: str) -> bool:  # noqa: ARG002
        """Return whether what a host has built may be loaded as our own is."""
        return True

    def trouble(self, host: str = "") -> str:  # noqa: ARG002
        """Return in a sentence why a host is away, "" where it is not."""
        return ""

    def use(self, host: str = "") -> HostUse | None:  # noqa: ARG002
        """Return how busy a further host is; None where it does not tell, and of the host that the caller is on."""
        return None

    def watch(self, changed: Callable[[str], None]) -> None:  # noqa: B027 - a host that cannot go away says nothing
        """Have `changed` called with a host's name, on a thread of the engine, whenever it has come or gone, or its use
        has changed."""

    def place(self, worker: str, cores: tuple[int, ...]) -> None:  # noqa: B027 - where it cannot, they run anywhere
        """Have a worker run on these CPUs from now on, however often its process is started anew."""

    def log_directory(self) -> Path | None:
        """Return where the workers of this host print to, None where nobody keeps that."""
        return None

    def pid(self, worker: str) -> int | None:  # noqa: ARG002
        """Return the process id of the worker, None while it has no process, or none that is known."""
        return None

    def cpu_s(self, worker: str) -> float | None:  # noqa: ARG002
        """Return the CPU seconds used by all processes this worker has had; None where the engine cannot know."""
        return None

    def own_cpu_s(self) -> float:
        """Return the CPU seconds that the engine has used in processes that are no worker's."""
        return 0.0

    def obstacle(self) -> str:
        """Say what keeps workers from being started, or from working, "" where nothing is known to."""
        return ""

    def hold_device(self, host: str = "") -> Future[Callable[[], None]]:
        """Wait for the right to measure on a further host, beside whoever else measures there.

        What the future gives lets go again; the right is gone as well when the connection to the host is.

        Raises:
            EngineError: the caller measures there by itself.
        """
        raise EngineError(f"{host or self.hosts[0]!r} is no further host")

    @abstractmethod
    def start(self, spec: WorkerSpec) -> str:
        """Start a worker and return its id; returns at once, the process comes up in the background.

        Raises:
            EngineError: the service cannot be imported, there is no such host, or the engine is closed.
            TypeError: a setting is unknown to the service's constructor or does not fit its annotation.
        """

    @abstractmethod
    def call(self, worker: str, method: str, *args: object, deadline_s: float) -> Future[Any]:
        """Call `method` on a worker. `deadline_s` counts from when the worker takes the call up.

        The future gives the method's result, or raises DeadlineError (the worker was killed), CrashError (its process
        ended) or RemoteError (the method raised, or the service's constructor did). An error of `tunery._errors` that
        the method raises comes out as itself. Cancelling the future withdraws a call that still waits.

        Raises:
            EngineError: no such worker, or the engine is closed.
            TypeError: no such method, or the arguments do not fit it.
            ValueError: the deadline is not a positive number of seconds (inf: none).
        """

    @abstractmethod
    def kill(self, worker: str) -> None:
        """End the worker's process now; the call in flight fails with CrashError, the next call starts it anew."""

    @abstractmethod
    def generation(self, worker: str) -> int:
        """Return how often the worker's process was started; a change means its state was lost."""

    @abstractmethod
    def close(self) -> None:
        """End all workers; calls in flight fail with CrashError. No process is left behind."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def check_deadline(deadline_s: float) -> None:
    """Refuse what is no deadline.

    Raises:
        ValueError: it is not a positive number of seconds.
    """
    if math.isnan(deadline_s) or deadline_s <= 0:
        raise ValueError(f"a deadline of {deadline_s} s is not a positive number of seconds")
