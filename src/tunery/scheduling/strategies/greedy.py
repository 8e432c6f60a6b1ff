"""Free sharing: whatever fits starts, oldest first."""

from typing_extensions import override

from tunery.scheduling._pool import Capacities
from tunery.scheduling._state import Stage
from tunery.scheduling.durations import Durations
from tunery.scheduling.strategies._base import Ordered, Strategy


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
