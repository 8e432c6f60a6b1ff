"""Start-time fair queueing (Goyal et al., SIGCOMM 1996) between owners, the shortest rest first inside each.

Whoever has used least, divided by its share, goes first. One that comes back after a pause starts at the present
virtual time: it has no claim on the time it did not ask for.
"""

import math
from collections.abc import Callable, Container, Hashable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from typing import Generic, TypeVar

from tunery.scheduling._pool import Needs
from tunery.scheduling._state import ScheduledJob, Stage, StageState

T = TypeVar("T", bound=Hashable)

# How many owners of about equal virtual time are compared: more gain little, and each costs a few microseconds.
_NEAR_OWNERS = 4


class Ranking(Generic[T]):
    """Things by a key that changes: a smaller one is noted when a thing is pushed again, a larger one when it is met.
    Each thing has a number of its own, which decides between equal keys."""

    def __init__(self, key: Callable[[T], float]) -> None:
        self._key = key
        self._heap: list[tuple[float, int, T]] = []
        self._listed: dict[T, tuple[float, int]] = {}

    def push(self, thing: T, number: int) -> None:
        """Add a thing, or see that its key is smaller now."""
        key = self._key(thing)
        if key < self._listed.get(thing, (math.inf,))[0]:
            self._listed[thing] = key, number
            heappush(self._heap, (key, number, thing))
            if len(self._heap) > 2 * len(self._listed) + 16:
                self._heap = [(*listed, thing) for thing, listed in self._listed.items()]
                heapify(self._heap)

    def first(self, wanted: Container[T], below: float = math.inf) -> T | None:
        """Return the thing with the smallest key of those `wanted`, None if that is not `below`; the others are
        forgotten."""
        while self._heap and self._heap[0][0] < below:
            key, number, thing = self._heap[0]
            if thing not in wanted or self._listed.get(thing) != (key, number):
                heappop(self._heap)
                if self._listed.get(thing) == (key, number):
                    del self._listed[thing]
            elif (now := self._key(thing)) > key:
                self._listed[thing] = now, number
                heapreplace(self._heap, (now, number, thing))
            else:
                return thing
        return None


@dataclass(slots=True, eq=False)
class OwnerShare:
    """What an owner or a job has used, as virtual time that never decreases; `carry` is still to be booked."""

    order: int
    used: float = 0.0
    carry: float = 0.0
    ready: int = 0

    def charge(self, amount: float) -> None:
        """Book a use and as much of the carry as keeps virtual time from running backwards."""
        amount += self.carry
        self.carry = min(0.0, amount)
        self.used += max(0.0, amount)


class Shares:
    """The accounts of all owners."""

    def __init__(self) -> None:
        self.now = 0.0
        self._owners: dict[str, OwnerShare] = {}

    def owner(self, job: ScheduledJob) -> OwnerShare:
        name = job.asked.owner
        account = self._owners.get(name)
        if account is None:
            account = self._owners[name] = OwnerShare(job.order, used=self.now)
        return account

    def woke(self, job: ScheduledJob) -> None:
        owner = self.owner(job)
        if not owner.ready:
            owner.used = max(owner.used, self.now)
        owner.ready += 1

    def slept(self, job: ScheduledJob) -> None:
        self.owner(job).ready -= 1

    def serve(self, job: ScheduledJob, use: float, least: float) -> None:
        """Charge a start to the job's owner. `least` is the smallest virtual time of those who wait: the present one,
        at which whoever comes late begins."""
        self.now = max(self.now, least)
        self.owner(job).charge(use)

    def correct(self, job: ScheduledJob, use: float) -> None:
        self.owner(job).carry += use


class _Jobs:
    """One owner's jobs with offered stages of one shape: by rest, by length, and by when they were last served."""

    def __init__(self) -> None:
        self.stages: dict[ScheduledJob, list[tuple[int, int, Stage]]] = {}
        self.served_s: dict[ScheduledJob, float] = {}
        self.shortest: Ranking[ScheduledJob] = Ranking(lambda job: job.rest)
        self.longest: Ranking[ScheduledJob] = Ranking(lambda job: -job.alone_s)
        self.waiting: Ranking[ScheduledJob] = Ranking(lambda job: self.served_s[job])


class FairQueue:
    """Offered stages of one shape: owners by their shares, an owner's jobs by what is left, a job's stages by age. The
    job with the least left goes first, except that one that was not served for `patience_s` goes before all others, and
    the longest before the shortest where it would take over `long_s` with the machine to itself."""

    def __init__(self, shares: Shares, needs: Needs, since_s: float) -> None:
        self.needs = needs
        self.since_s = since_s
        self.count = 0
        self.least = 0.0
        self._shares = shares
        self._heap: list[tuple[float, int, OwnerShare]] = []
        self._owners: dict[int, _Jobs] = {}

    def push(self, stage: Stage, now_s: float) -> None:
        self.count += 1
        job = stage.job
        owner = self._shares.owner(job)
        jobs = self._owners.get(owner.order)
        if jobs is None:
            jobs = self._owners[owner.order] = _Jobs()
            heappush(self._heap, (owner.used, owner.order, owner))
        if job not in jobs.stages:
            jobs.stages[job] = []
            jobs.served_s[job] = now_s
            jobs.waiting.push(job, job.order)
        jobs.shortest.push(job, job.order)
        jobs.longest.push(job, job.order)
        heappush(jobs.stages[job], (stage.order, stage.offer, stage))

    def served(self, stage: Stage, now_s: float) -> None:
        self.since_s = now_s
        jobs = self._owners.get(self._shares.owner(stage.job).order)
        if jobs and stage.job in jobs.served_s:
            jobs.served_s[stage.job] = now_s

    def head(self, now_s: float, patience_s: float, window: float, long_s: float) -> tuple[float, Stage]:
        """Return the stage whose turn it is with its owner's virtual time. Owners whose virtual times lie within
        `window` of the least are as good as equal: of the first few of them, the one whose job would go first in one
        owner's queue is served."""
        near: list[tuple[float, int, OwnerShare]] = []
        best: tuple[float, float, float, int, Stage] | None = None
        while self._heap and len(near) < _NEAR_OWNERS:
            used, order, owner = self._heap[0]
            if near and used > near[0][0] + window:
                break
            if owner.used > used:
                heapreplace(self._heap, (owner.used, order, owner))
                continue
            heappop(self._heap)
            jobs = self._owners[order]
            stage = self._first_of(jobs, now_s - patience_s, long_s)
            if stage is None:
                del self._owners[order]
                continue
            near.append((used, order, owner))
            job = stage.job
            turn = -job.alone_s if job.alone_s > long_s else 0.0, job.rest, used, order, stage
            best = turn if best is None or turn < best else best
        for entry in near:
            heappush(self._heap, entry)
        if best is None:
            raise AssertionError(f"a queue counts {self.count} stages and has none")
        self.least = near[0][0]
        return best[2], best[4]

    def _first_of(self, jobs: _Jobs, before_s: float, long_s: float) -> Stage | None:
        """Return the stage of an owner that goes first; None if no stage of his is offered any more."""
        while jobs.stages:
            job = (
                jobs.waiting.first(jobs.stages, below=before_s)
                or jobs.longest.first(jobs.stages, below=-long_s)
                or jobs.shortest.first(jobs.stages)
            )
            if job is not None and (stage := self._first(jobs, job)):
                return stage
        return None

    def _first(self, jobs: _Jobs, job: ScheduledJob) -> Stage | None:
        heap = jobs.stages[job]
        while heap and (heap[0][2].offer != heap[0][1] or heap[0][2].state is not StageState.OFFERED):
            heappop(heap)
        if heap:
            return heap[0][2]
        del jobs.stages[job], jobs.served_s[job]
        return None
