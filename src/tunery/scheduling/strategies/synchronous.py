"""All jobs in step: the worst case of sharing."""

from typing_extensions import override

from tunery.scheduling._pool import Capacities
from tunery.scheduling._state import Phase, Stage
from tunery.scheduling.durations import Durations
from tunery.scheduling.strategies._base import Ordered, Strategy


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
            alive = [e for e in self._waiting[kind] if e[1].offer == e[0] and e[1].phase is Phase.OFFERED]
            self._waiting[kind] = alive
            if not alive:
                del self._waiting[kind]
        if not self._waiting:
            return False
        kind = min(self._waiting, key=lambda kind: self._waiting[kind][0][1].order)
        for _, stage in self._waiting.pop(kind):
            self._step.push(stage)
        return True
