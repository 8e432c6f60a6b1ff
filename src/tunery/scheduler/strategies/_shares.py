"""Start-time fair queueing (Goyal et al., SIGCOMM 1996) between owners, and between the jobs of each owner.

Whoever has used least, divided by its share, goes first. One that comes back after a pause starts at the present
virtual time: it has no claim on the time it did not ask for.
"""

from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace

from tunery.scheduler._state import Job, Phase, Stage


@dataclass(slots=True, eq=False)
class Account:
    """What an owner or a job has used, as virtual time that never decreases; `carry` is still to be booked."""

    order: int
    used: float = 0.0
    carry: float = 0.0
    ready: int = 0
    children_now: float = 0.0

    def charge(self, amount: float) -> None:
        """Book a use and as much of the carry as keeps virtual time from running backwards."""
        amount += self.carry
        self.carry = min(0.0, amount)
        self.used += max(0.0, amount)


@dataclass(slots=True, eq=False)
class _Jobs:
    """One owner's jobs with offered stages of one shape."""

    heap: list[tuple[float, int, Job]] = field(default_factory=list)
    stages: dict[int, list[tuple[float, int, int, Stage]]] = field(default_factory=dict)


class Shares:
    """The accounts of all owners and jobs."""

    def __init__(self) -> None:
        self.now = 0.0
        self._owners: dict[str, Account] = {}
        self._jobs: dict[int, Account] = {}

    def owner(self, job: Job) -> Account:
        """Return the account of a job's owner; a job without an owner is its own."""
        name = job.asked.owner or f"job {job.asked.job_id}"
        account = self._owners.get(name)
        if account is None:
            account = self._owners[name] = Account(job.order, used=self.now)
        return account

    def job(self, job: Job) -> Account:
        """Return a job's account."""
        account = self._jobs.get(job.order)
        if account is None:
            account = self._jobs[job.order] = Account(job.order, used=self.owner(job).children_now)
        return account

    def forget(self, job: Job) -> None:
        """Drop a job's account, and its owner's if nobody is left to know it by."""
        self._jobs.pop(job.order, None)
        if not job.asked.owner:
            self._owners.pop(f"job {job.asked.job_id}", None)

    def woke(self, job: Job) -> None:
        """Note a newly offered stage."""
        owner, mine = self.owner(job), self.job(job)
        if not owner.ready:
            owner.used = max(owner.used, self.now)
        if not mine.ready:
            mine.used = max(mine.used, owner.children_now)
        owner.ready += 1
        mine.ready += 1

    def slept(self, job: Job) -> None:
        """Note that a stage is offered no more."""
        self.owner(job).ready -= 1
        self.job(job).ready -= 1

    def serve(self, job: Job, owner_use: float, job_use: float) -> None:
        """Charge a start, already divided by the shares."""
        owner, mine = self.owner(job), self.job(job)
        self.now = max(self.now, owner.used)
        owner.children_now = max(owner.children_now, mine.used)
        owner.charge(owner_use)
        mine.charge(job_use)

    def correct(self, job: Job, owner_use: float) -> None:
        """Book the difference between a predicted and an actual use with the next start."""
        self.owner(job).carry += owner_use


class FairQueue:
    """Offered stages of one shape, in the order of the shares; inside a job by value, then age."""

    def __init__(self, shares: Shares, since_s: float) -> None:
        self.since_s = since_s
        self._shares = shares
        self._heap: list[tuple[float, int, Account]] = []
        self._owners: dict[int, _Jobs] = {}

    def push(self, stage: Stage) -> None:
        """Add a stage."""
        owner = self._shares.owner(stage.job)
        jobs = self._owners.get(owner.order)
        if jobs is None:
            jobs = self._owners[owner.order] = _Jobs()
            heappush(self._heap, (owner.used, owner.order, owner))
        order = stage.job.order
        heap = jobs.stages.get(order)
        if heap is None:
            heap = jobs.stages[order] = []
            heappush(jobs.heap, (self._shares.job(stage.job).used, order, stage.job))
        heappush(heap, (-stage.request.value, stage.order, stage.offer, stage))

    def head(self) -> tuple[float, Stage] | None:
        """Return the stage whose turn it is with its owner's virtual time, None if none is offered."""
        while self._heap:
            used, order, owner = self._heap[0]
            if owner.used > used:
                heapreplace(self._heap, (owner.used, order, owner))
                continue
            stage = self._head_of(self._owners[order])
            if stage:
                return used, stage
            heappop(self._heap)
            del self._owners[order]
        return None

    def _head_of(self, jobs: _Jobs) -> Stage | None:
        while jobs.heap:
            used, order, job = jobs.heap[0]
            heap = jobs.stages[order]
            while heap and (heap[0][3].offer != heap[0][2] or heap[0][3].phase is not Phase.OFFERED):
                heappop(heap)
            if not heap:
                heappop(jobs.heap)
                del jobs.stages[order]
                continue
            now = self._shares.job(job).used
            if now > used:
                heapreplace(jobs.heap, (now, order, job))
                continue
            return heap[0][3]
        return None
