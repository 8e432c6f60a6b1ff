"""First in, first out for every resource."""

from typing_extensions import override

from tunery.scheduling._pool import Capacities
from tunery.scheduling._state import Stage
from tunery.scheduling.durations import Durations
from tunery.scheduling.strategies._base import Ordered, Strategy


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
