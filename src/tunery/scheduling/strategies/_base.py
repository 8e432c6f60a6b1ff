"""The contract of a strategy: which of the stages that fit starts next.

A strategy hears of each stage that may run (`push`) or no longer may (`discard`), and is asked with `pick` until it
names none. It must not name a stage that does not fit the pool. It has no clock: all times come in.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import ClassVar

from tunery.scheduling._pool import Capacities, Needs
from tunery.scheduling._state import Phase, ScheduledJob, Stage
from tunery.scheduling.durations import Durations


class Strategy(ABC):
    """One scheduling policy for one scheduler."""

    name: ClassVar[str]

    def __init__(self, pool: Capacities, durations: Durations) -> None:
        self.pool = pool
        self.durations = durations

    @abstractmethod
    def push(self, stage: Stage, now_s: float) -> None:
        """Take in a stage that may run; `stage.offer` tells a repeated push from an earlier one."""

    @abstractmethod
    def pick(self, now_s: float) -> Stage | None:
        """Return the stage to start now, None to start none. It is started at once."""

    def discard(self, stage: Stage) -> None:  # noqa: B027 - queues that forget stale entries by themselves need nothing
        """Forget a pushed stage: it was withdrawn, or its job was paused or ended."""

    def started(self, stage: Stage, now_s: float) -> None:  # noqa: B027 - optional hook
        """Hear that a stage took its resources."""

    def finished(self, stage: Stage, duration_s: float, now_s: float) -> None:  # noqa: B027 - optional hook
        """Hear that a stage gave its resources back."""

    def job_added(self, job: ScheduledJob) -> None:  # noqa: B027 - optional hook
        """Hear of a new or resumed job."""

    def job_removed(self, job: ScheduledJob) -> None:  # noqa: B027 - optional hook
        """Hear that a job ended or was paused; its stages were discarded before."""


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
            while heap and (heap[0][3].offer != heap[0][2] or heap[0][3].phase is not Phase.OFFERED):
                heappop(heap)
            if heap:
                yield heap[0][0], heap[0][1], heap[0][3]
            else:
                del self._shapes[shape]

    def first_fit(self, pool: Capacities) -> Stage | None:
        """Return the first stage by key among the shapes that fit."""
        best = min((head for head in self.heads() if pool.fits(head[2].needs)), default=None)
        return best[2] if best else None
