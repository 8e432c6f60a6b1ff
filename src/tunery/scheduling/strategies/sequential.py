"""One job after another."""

from heapq import heappop, heappush

from typing_extensions import override

from tunery.scheduling._pool import Capacities
from tunery.scheduling._state import ScheduledJob, Stage
from tunery.scheduling.durations import Durations
from tunery.scheduling.strategies._base import Ordered, Strategy


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
