"""Start-time fair queueing (Goyal et al., SIGCOMM 1996) between owners, the shortest rest first inside each. Whoever
has used least, divided by its share, goes first. One that comes back after a pause starts at the present virtual time:
it has no claim on the time it did not ask for."""

import math
from collections.abc import Callable, Container, Hashable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from typing import Generic, TypeVar

from tunery.scheduling._state import Capacities, Durations, Needs, ScheduledJob, Stage, StageState

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


@dataclass(slots=True, eq=False)
class _Kind:
    """The stages of one kind of a job that have ended."""

    needs: Needs
    seconds: float = 0.0
    units: int = 0


@dataclass(slots=True, eq=False)
class _Seen:
    """What was seen of a job: its kinds of stages, how many it had ready and running at once, its work by resource."""

    kinds: dict[str, _Kind] = field(default_factory=dict)
    most_at_once: int = 1
    work: dict[str, float] = field(default_factory=dict)


class Rests:
    """Keeps `rest` and `alone_s` of all jobs, and knows what all of them together need still. A unit of work passes
    through the kinds of stages that its job has asked for so far. A kind takes the mean of the job's own stages; until
    the first has ended, what the kind takes elsewhere."""

    def __init__(self, pool: Capacities, durations: Durations) -> None:
        self._pool = pool
        self._durations = durations
        self._jobs: dict[ScheduledJob, _Seen] = {}
        self._work: dict[str, float] = {}
        self._numbers: dict[str, int] = {}
        self._busiest: Ranking[str] = Ranking(lambda name: -self._work[name] / max(1, pool.ceiling[name]))

    def all_s(self) -> float:
        name = self._busiest.first(self._work)
        return self._work[name] / max(1, self._pool.ceiling[name]) if name else 0.0

    def add(self, job: ScheduledJob) -> None:
        if job not in self._jobs:
            self._jobs[job] = _Seen()
            job.rest = _units_left(job) / job.share

    def remove(self, job: ScheduledJob) -> None:
        seen = self._jobs.pop(job, None)
        if seen is not None:
            self._replace(seen.work, {})

    def asked(self, stage: Stage) -> None:
        job = stage.job
        seen = self._jobs[job]
        seen.most_at_once = max(seen.most_at_once, len(job.ready) + len(job.running))
        if stage.request.kind not in seen.kinds:
            seen.kinds[stage.request.kind] = _Kind(stage.needs)
            self._update(job, seen)

    def ended(self, stage: Stage, duration_s: float) -> None:
        seen = self._jobs.get(stage.job)
        if seen is None:
            return
        kind = seen.kinds[stage.request.kind]
        kind.needs = stage.needs
        kind.seconds += duration_s
        kind.units += max(1, stage.request.size)
        self._update(stage.job, seen)

    def _update(self, job: ScheduledJob, seen: _Seen) -> None:
        units, chain_s = _units_left(job), 0.0
        work: dict[str, float] = {}
        for name, kind in seen.kinds.items():
            unit_s = kind.seconds / kind.units if kind.units else self._durations.predict(name, "", 1)
            chain_s += units * unit_s
            for resource, amount in kind.needs:
                work[resource] = work.get(resource, 0.0) + amount * units * unit_s
        ceiling, rest_s = self._pool.ceiling, 0.0
        for name, total in work.items():
            rest_s = max(rest_s, total / (ceiling[name] or 1))
        job.rest = (rest_s if work else chain_s) / job.share
        job.alone_s = chain_s / seen.most_at_once
        self._replace(seen.work, work)
        seen.work = work

    def _replace(self, old: dict[str, float], new: dict[str, float]) -> None:
        for name, total in old.items():
            self._work[name] -= total
        for name, total in new.items():
            self._work[name] = self._work.get(name, 0.0) + total
            self._busiest.push(name, self._numbers.setdefault(name, len(self._numbers)))


def _units_left(job: ScheduledJob) -> float:
    """Return how many units of work a job is expected to want still; unknown: as many again as it has done."""
    done = job.done()
    return job.asked.planned - done if job.asked.planned > done else max(done, 1.0)
