"""The strategies that the scheduler's own is compared with; importing this module adds them to `STRATEGIES`."""

from collections.abc import Callable, Iterator
from heapq import heappop, heappush

from typing_extensions import override

from tunery.scheduling import STRATEGIES
from tunery.scheduling._state import Capacities, Durations, Needs, ScheduledJob, Stage, StageState
from tunery.scheduling.strategies._base import Strategy

__all__ = ["STRATEGIES"]


class Ordered:
    """Offered stages by shape, each shape in the order of a key.

    The cost of a pick grows with the number of shapes (kinds times distinct needs: a handful) and with the logarithm of
    the number of stages.
    """

    def __init__(self, key: Callable[[Stage], float] | None = None) -> None:
        self._key = key or (lambda stage: stage.order)
        self._shapes: dict[tuple[str, Needs], list[tuple[float, int, int, Stage]]] = {}

    def push(self, stage: Stage) -> None:
        """Add a stage."""
        heap = self._shapes.get(stage.shape)
        if heap is None:
            heap = self._shapes[stage.shape] = []
        heappush(heap, (self._key(stage), stage.order, stage.offer, stage))

    def heads(self) -> Iterator[tuple[float, int, Stage]]:
        """Yield the first stage of each shape with its key and order."""
        for shape in list(self._shapes):
            heap = self._shapes[shape]
            while heap and (heap[0][3].offer != heap[0][2] or heap[0][3].state is not StageState.OFFERED):
                heappop(heap)
            if heap:
                yield heap[0][0], heap[0][1], heap[0][3]
            else:
                del self._shapes[shape]

    def first_fit(self, pool: Capacities) -> Stage | None:
        """Return the first stage by key among the shapes that fit."""
        best = min((head for head in self.heads() if pool.fits(head[2].needs)), default=None)
        return best[2] if best else None


class Sequential(Strategy):
    """The job of highest priority that was submitted first has the machine to itself until it ends or is paused."""

    name = "sequential"

    def __init__(self, pool: Capacities, durations: Durations) -> None:
        super().__init__(pool, durations)
        self._jobs: list[tuple[int, int, ScheduledJob]] = []
        self._present: set[int] = set()
        self._current: ScheduledJob | None = None
        self._ready: dict[int, Ordered] = {}

    @override
    def job_added(self, job: ScheduledJob) -> None:
        self._present.add(job.order)
        self._ready[job.order] = Ordered()
        heappush(self._jobs, (-job.asked.priority, job.order, job))

    @override
    def job_removed(self, job: ScheduledJob) -> None:
        self._present.discard(job.order)
        self._ready.pop(job.order, None)
        if self._current is job:
            self._current = None

    @override
    def push(self, stage: Stage, now_s: float) -> None:
        self._ready[stage.job.order].push(stage)

    @override
    def pick(self, now_s: float) -> Stage | None:
        while self._current is None and self._jobs:
            job = heappop(self._jobs)[2]
            if job.order in self._present:
                self._current = job
        return self._ready[self._current.order].first_fit(self.pool) if self._current else None


class Synchronous(Strategy):
    """A step runs the stages of one kind that are ready when it begins; the next begins when all of them have ended."""

    name = "synchronous"

    def __init__(self, pool: Capacities, durations: Durations) -> None:
        super().__init__(pool, durations)
        self._step = Ordered()
        self._running = 0
        self._waiting: dict[str, list[tuple[int, Stage]]] = {}

    @override
    def push(self, stage: Stage, now_s: float) -> None:
        self._waiting.setdefault(stage.request.kind, []).append((stage.offer, stage))

    @override
    def started(self, stage: Stage, now_s: float) -> None:
        self._running += 1

    @override
    def finished(self, stage: Stage, duration_s: float, now_s: float) -> None:
        self._running -= 1

    @override
    def pick(self, now_s: float) -> Stage | None:
        stage = self._step.first_fit(self.pool)
        # What is left of a step may not fit for long, because a resource shrank: the others need not wait for that.
        while stage is None and not self._running and self._next_step():
            stage = self._step.first_fit(self.pool)
        return stage

    def _next_step(self) -> bool:
        """Take the next kind into the step; say whether there was one."""
        for kind in list(self._waiting):
            alive = [e for e in self._waiting[kind] if e[1].offer == e[0] and e[1].state is StageState.OFFERED]
            self._waiting[kind] = alive
            if not alive:
                del self._waiting[kind]
        if not self._waiting:
            return False
        kind = min(self._waiting, key=lambda kind: self._waiting[kind][0][1].order)
        for _, stage in self._waiting.pop(kind):
            self._step.push(stage)
        return True


class Greedy(Strategy):
    """Never leaves a resource free that a ready stage could use now; a wide stage waits until all it needs is free."""

    name = "greedy"

    def __init__(self, pool: Capacities, durations: Durations) -> None:
        super().__init__(pool, durations)
        self._ready = Ordered()

    @override
    def push(self, stage: Stage, now_s: float) -> None:
        self._ready.push(stage)

    @override
    def pick(self, now_s: float) -> Stage | None:
        return self._ready.first_fit(self.pool)


class Fair(Strategy):
    """A stage starts only if no older stage waits for a resource that it needs, even where that leaves some idle."""

    name = "fair"

    def __init__(self, pool: Capacities, durations: Durations) -> None:
        super().__init__(pool, durations)
        self._ready = Ordered()

    @override
    def push(self, stage: Stage, now_s: float) -> None:
        self._ready.push(stage)

    @override
    def pick(self, now_s: float) -> Stage | None:
        claimed: set[str] = set()
        for _, _, stage in sorted(self._ready.heads(), key=lambda head: head[1]):
            wanted = {name for name, amount in stage.needs if amount}
            if claimed.isdisjoint(wanted) and self.pool.fits(stage.needs):
                return stage
            claimed |= wanted
        return None


STRATEGIES |= {strategy.name: strategy for strategy in (Sequential, Synchronous, Greedy, Fair)}
