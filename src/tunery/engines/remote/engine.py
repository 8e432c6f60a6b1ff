"""Another host's processes as an engine, through the agent that a command reaches there."""

import math
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from typing_extensions import override

from tunery._errors import EngineError
from tunery.blobs import Blobs
from tunery.domain import Check, HostFacts, Task
from tunery.engines._base import Engine, HostControl, HostUse, OnUsage, WorkerSpec, check_deadline
from tunery.engines._followed import FollowedBlobs
from tunery.engines._payload import signatures
from tunery.engines.remote._calls import Calls, RemoteCall, RemoteWorker
from tunery.engines.remote._link import Link, Timing
from tunery.engines.remote._protocol import pack


class AgentEngine(Engine):
    """Workers on the host that `connect`, any command that passes its input and output on, reaches.

    The command is started at once and again whenever it ends, later and later; a call that is in flight then fails with
    LostWorkerError, calls that wait are made when the host is back, or fail so after `patience_s`. A host whose agent
    is of another version is not tried again. `blobs` are the caller's: what a call's arguments and settings name
    (`BlobDigest`) is copied to the host before it is made, once, and what its result names is copied back before its
    future is done.

    Raises:
        HostError: the command is empty or cannot be read.

    Example:
        with AgentEngine("pi4", "ssh pi@10.0.0.7", blobs) as engine:
            worker = engine.start(WorkerSpec(Role.BUILDER, "package.module:Builder"))
            engine.call(worker, "build", task, candidate, deadline_s=10).result()
    """

    def __init__(
        self, name: str, connect: str, blobs: Blobs, on_usage: OnUsage | None = None, timing: Timing | None = None
    ) -> None:
        self.name = name
        self._link = Link(name, connect, blobs, timing or Timing())
        self._calls = Calls(self._link, blobs, on_usage)
        self.blobs = FollowedBlobs(blobs, [self._released])
        self.control = AgentControl(self._link, self._calls)
        self._link.begin(self._calls)

    @classmethod
    @override
    def open(cls, scratch: Path, blobs: Blobs) -> Self:
        raise EngineError("an engine on another host needs the command that reaches it; see `tunery hosts add`")

    @property
    @override
    def hosts(self) -> tuple[str, ...]:
        return (self.name,)

    @override
    def facts(self, host: str = "") -> HostFacts | None:
        return self._link.facts

    @override
    def trouble(self, host: str = "") -> str:
        return self._link.trouble

    @override
    def use(self, host: str = "") -> HostUse | None:
        return self._link.use

    @override
    def watch(self, changed: Callable[[str], None]) -> None:
        self._link.watch(changed)

    def wait(self, seconds: float, tries: int = 1 << 30) -> HostFacts:
        """Wait until the host answers and return its facts."""
        return self._link.wait(seconds, tries)

    def try_again(self) -> None:
        """Connect at once if the host is away: somebody has seen that it is back."""
        self._link.try_again()

    def reach_by(self, connect: str) -> None:
        """Use this connect command from now on; a host that was given up, or refused, is tried again."""
        self._link.reach_by(connect)

    def give_up(self, why: str) -> None:
        """End the connection and do not connect again, unless `reach_by` says so; calls fail with LostWorkerError."""
        self._link.give_up(why)

    def clock_off_s(self, seconds: float = 0.0) -> float | None:
        """Return by how much the host's clock is ahead of ours; None where that is not known within so many seconds."""
        return self._link.clock_off_s(seconds)

    def checks(self, *, measuring: bool = False) -> Future[tuple[Check, ...]]:
        """Have the host look at what its workers need, all of them or those that only run kernels (`measuring`).

        The future fails with LostWorkerError if it is away.
        """
        return self._calls.questions.check(measuring=measuring)

    @override
    def hold_device(self, host: str = "") -> Future[Callable[[], None]]:
        return self._calls.questions.hold_device()

    @override
    def start(self, spec: WorkerSpec) -> str:
        self.host_of(spec)
        if spec.environment.python:
            raise EngineError(f"{spec.environment.python} is a Python of this host, and {self.name} is another one")
        methods = signatures(spec.service)
        worker = RemoteWorker(
            f"{spec.role.value}-{next(self._calls.numbers)}", spec, methods, methods.encode_settings(spec.settings),
            methods.blobs_in_settings(spec.settings),
        )  # fmt: skip
        self._link.post(lambda: None)  # refuses where this is closed
        self._calls.workers[worker.name] = worker
        self._link.post(lambda: self._calls.prepare(worker))
        return worker.name

    @override
    def call(self, worker: str, method: str, *args: object, deadline_s: float) -> Future[Any]:
        check_deadline(deadline_s)
        found = self._calls.find(worker)
        body = found.methods.encode_arguments(method, args)
        number = next(self._calls.numbers)
        header = {
            "do": "call", "id": number, "worker": worker, "method": method, "count": len(args),
            "deadline_s": None if deadline_s == math.inf else deadline_s,
        }  # fmt: skip
        frame, blobs = pack(header, body), found.methods.blobs_in_arguments(method, args)
        call = RemoteCall(number, found, method, frame, blobs, deadline_s)
        call.task = next((one for one in args if isinstance(one, Task)), None)
        self._link.post(lambda: self._calls.enqueue(call))
        return call.future

    @override
    def kill(self, worker: str) -> None:
        found = self._calls.find(worker)
        found.pid = None
        self._link.post(lambda: self._calls.kill(found))

    @override
    def generation(self, worker: str) -> int:
        return self._calls.find(worker).generation

    @override
    def close(self) -> None:
        self._link.close()

    def _released(self, digest: str) -> None:
        self._link.post_if_open(lambda: self._calls.release(digest))


class AgentControl(HostControl):
    """The processes of an `AgentEngine`, as its agent last told of them: with each answer and each keep-alive."""

    def __init__(self, link: Link, calls: Calls) -> None:
        self._link, self._calls = link, calls

    @override
    def place(self, worker: str, cores: tuple[int, ...]) -> None:
        found = self._calls.find(worker)
        found.spec = replace(found.spec, cores=cores)
        self._link.post(lambda: self._calls.tell(found, {"do": "place", "cores": list(cores)}))

    @override
    def pid(self, worker: str) -> int | None:
        return self._calls.find(worker).pid

    @override
    def cpu_s(self, worker: str) -> float:
        return self._calls.find(worker).cpu_s

    @override
    def own_cpu_s(self) -> float:
        return self._link.own_cpu_s
