"""The scheduler on an event loop: drivers wait here until their stage may run. One serves all jobs of a process."""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tunery._errors import UsageError, WorkError
from tunery._processor import granted_cores
from tunery.accounting.machine import MachineTime
from tunery.devices.cpu.facts import usable_cores
from tunery.domain import HERE
from tunery.engines import HostUse
from tunery.scheduling import (
    CapacityChanged,
    Event,
    JobCancelled,
    JobEnded,
    JobPaused,
    JobSubmitted,
    Refuse,
    Run,
    Scheduler,
    StageFinished,
    StageReady,
    StageRequest,
    StageWithdrawn,
)

CORE = f"{HERE}/core"
"""The cores of this host, which every engine's first host is."""
_USE_S = 15.0  # of what a runtime has last used


@dataclass(frozen=True, slots=True)
class Span:
    """One stage as it ran; start and end are seconds of the dispatch's clock."""

    job_id: str
    kind: str
    worker: str
    start_s: float
    end_s: float
    cores: int


@dataclass(frozen=True, slots=True)
class Pin:
    """The cores that a worker which runs a stage is kept on; `place` moves it."""

    cores: tuple[int, ...]
    place: Callable[[tuple[int, ...]], None]


def core_of(host: str) -> str:
    return f"{host}/core"


class WithdrawnError(WorkError):
    """A stage was taken back before its turn came: its job's budget is used up."""


class RerouteError(Exception):
    """A stage was taken back because its host has left: ask for it on another one."""


class Dispatch:
    """Owns the scheduler, its clock, and where stages that run are pinned. A job's spans are kept until it ends. With
    `record`, the scheduler's events and all spans are kept: for tests and studies, as both grow for ever."""

    def __init__(self, strategy: str = "predictive", *, record: bool = True) -> None:
        self.cores = usable_cores()
        self.granted = granted_cores()
        self.scheduler = Scheduler({CORE: self.granted}, strategy, keep_log=record)
        self.named_hosts: dict[str, float] = {}  # when it was said, for all runtimes, that a host is away
        self.waiting: dict[str, asyncio.Future[None]] = {}
        self._waiting_requests: dict[str, StageRequest] = {}
        self.pinned: dict[str, Pin] = {}
        self.spans: list[Span] = []
        self._spans_of: dict[str, list[Span]] = {}
        self._record = record
        self._ids = itertools.count(1)
        self._origin = time.monotonic()
        self.machine = MachineTime(time.monotonic)
        self._claimed_s = time.process_time()
        self._left: dict[tuple[str, str], int] = {}
        self._used: dict[tuple[str, str], tuple[float, float]] = {}  # when it was said, and how many cores
        self._cores = {CORE: self.granted}

    def now(self) -> float:
        return time.monotonic() - self._origin

    def own_s(self) -> float:
        return time.process_time() - self._claimed_s

    def claim(self, own_s: float) -> None:
        self._claimed_s += own_s

    def add(self, resources: Mapping[str, int]) -> None:
        self._cores |= {name: amount for name, amount in resources.items() if name.endswith("/core")}
        for name, amount in resources.items():
            self.decide(CapacityChanged(self.now(), name, amount))

    def core_count(self) -> int:
        return sum(self._cores.values())

    def cores_left(self, who: str, cores: int, host: str = HERE) -> CapacityChanged:
        """Return what `who` leaves of a host's cores beside others' load; the one that needs most decides for all."""
        self._left[host, who] = cores
        left = max(cores for (at, _), cores in self._left.items() if at == host)
        return CapacityChanged(self.now(), core_of(host), left)

    def others_on(self, who: str, host: str, use: HostUse) -> float:
        """Return how many cores of a host are used by others than us: each of ours has an agent there, `who` this one,
        and to it the workers of the rest are others."""
        self._used[host, who] = self.now(), use.ours
        since_s = self.now() - _USE_S
        rest = (ours for (at, one), (at_s, ours) in self._used.items() if at == host and one != who and at_s > since_s)
        return max(0.0, use.others - sum(rest))

    def submit(self, job_id: str, owner: str = "", weight: float = 1.0, priority: int = 0, planned: int = 0) -> None:
        for decision in self.decide(JobSubmitted(self.now(), job_id, owner, weight, priority, planned)):
            if isinstance(decision, Refuse) and decision.subject == job_id:
                raise UsageError(f"the job cannot be taken: {decision.reason}")
        self._spans_of[job_id] = []

    def end(self, job_id: str) -> list[Span]:
        self.decide(JobEnded(self.now(), job_id))
        return self._spans_of.pop(job_id, [])

    def spans_of(self, job_id: str) -> list[Span]:
        return list(self._spans_of.get(job_id, ()))

    def pause(self, job_id: str) -> None:
        """Start nothing more of a job: what waits goes on waiting, what runs may finish."""
        self.decide(JobPaused(self.now(), job_id))

    def cancel(self, job_id: str) -> None:
        """Give a job up: nothing of it is started any more. Whoever holds a stage of it is to end it."""
        self.decide(JobCancelled(self.now(), job_id))

    def stage_id(self, kind: str) -> str:
        return f"{kind}-{next(self._ids)}"

    async def permission(self, request: StageRequest) -> None:
        """Wait until a stage may run; whoever got it must say `finished`."""
        ready = asyncio.get_running_loop().create_future()
        self.waiting[request.stage_id] = ready
        self._waiting_requests[request.stage_id] = request
        self.decide(StageReady(self.now(), request))
        try:
            await ready
        except asyncio.CancelledError:
            if self.waiting.pop(request.stage_id, None) is not None:
                self.decide(StageWithdrawn(self.now(), request.stage_id))
            elif ready.cancelled() or ready.exception() is None:
                self.finished(request.stage_id, ok=False)
            raise
        finally:
            del self._waiting_requests[request.stage_id]

    def queues(self) -> Counter[str]:
        waiting = [one for stage_id, one in self._waiting_requests.items() if stage_id in self.waiting]
        return Counter(resource for one in waiting for resource in one.needs)

    def withdraw(self, job_id: str) -> None:
        for stage_id in [one.stage_id for one in self._waiting_requests.values() if one.job_id == job_id]:
            self._take_back(stage_id, WithdrawnError("the budget was used up before its turn came"))

    def reroute(self, stage_ids: Iterable[str]) -> None:
        for stage_id in stage_ids:
            self._take_back(stage_id, RerouteError("it is to go to another host"))

    def _take_back(self, stage_id: str, why: Exception) -> None:
        ready = self.waiting.get(stage_id)
        if ready is None or ready.done():
            return  # its turn has come, or it is being cancelled
        del self.waiting[stage_id]
        self.decide(StageWithdrawn(self.now(), stage_id))
        ready.set_exception(why)

    def finished(self, stage_id: str, *, ok: bool) -> None:
        self.decide(StageFinished(self.now(), stage_id, ok=ok))

    def ran(self, span: Span) -> None:
        if self._record:
            self.spans.append(span)
        if (mine := self._spans_of.get(span.job_id)) is not None:
            mine.append(span)

    def pin(self, worker: str, place: Callable[[tuple[int, ...]], None], shun: Sequence[int]) -> None:
        """Keep a worker on one core that no other stage holds, if there is one, and rather not one of `shun`."""
        taken = {core for other, pin in self.pinned.items() if other != worker for core in pin.cores}
        free = [core for core in self.cores if core not in taken] or list(self.cores)
        free.sort(key=lambda core: core in shun)
        self.pinned[worker] = Pin((free[0],), place)
        place((free[0],))

    def decide(self, *events: Event) -> list[Run | Refuse]:
        told: list[Run | Refuse] = []
        for decision in self.scheduler.handle(*events):
            if isinstance(decision, Run):
                told.append(decision)
                ready = self.waiting.pop(decision.stage_id, None)
                if ready is not None and not ready.done():
                    ready.set_result(None)
            elif isinstance(decision, Refuse):
                told.append(decision)
                ready = self.waiting.pop(decision.subject, None)
                if ready is not None and not ready.done():
                    ready.set_exception(WorkError(decision.reason))
        return told
