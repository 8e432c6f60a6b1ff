"""A network as its job knows it: the searches of its tasks with their weights, and sums over them."""

from collections.abc import Sequence
from dataclasses import replace

from tunery.accounting.prices import Prices
from tunery.domain import Prospect
from tunery.tuning.allocation.outlook import outlook, reaching
from tunery.tuning.search.task_search import TaskSearch


class NetworkEstimate:
    """Sums over `searches` by the `weights` that they have in one job; `target_s` is its latency target, if any."""

    def __init__(self, searches: Sequence[TaskSearch], weights: Sequence[int], target_s: float | None) -> None:
        self.weighted = tuple(zip(searches, weights, strict=True))
        self.target_s = target_s

    def total_s(self, what: str) -> float | None:
        """Return the sum of the tasks' `best_s`, `proven_s` or `baseline_s`, None while one is missing.

        A task that gets no more trials counts with what it has reached.
        """
        total = 0.0
        for search, weight in self.weighted:
            value = getattr(search.state, what)
            if value is None:
                return None
            total += weight * value
        return total

    def met(self, *, proven: bool, within: float = 1.0) -> bool:
        if self.target_s is None or (not proven and any(search.state.untried for search, _ in self.weighted)):
            return False  # there would be no finals to hold
        latency_s = self.total_s("proven_s" if proven else "best_s")
        return latency_s is not None and latency_s <= within * self.target_s

    def finals_due(self) -> int:
        """Return how many tasks have finals to hold."""
        return sum(search.finals_cost_s() > 0.0 for search, _ in self.weighted)

    def finals_cost_s(self) -> float:
        """Return the predicted seconds of all finals that are due."""
        return sum(search.finals_cost_s() for search, _ in self.weighted)

    def held_core_s(self) -> float:
        """Return the core-seconds that workers were held for by all batches that are known."""
        return sum(cost.held_core_s for search, _ in self.weighted for cost in search.state.progress.costs)

    def outlook(self, cores: int, prices: Prices, seed: int, pace: float) -> tuple[Prospect, ...]:
        """Return what more would probably buy, `pace` as in `budgets.outlook`; nothing while a task has no latency."""
        known = [(search, weight, search.state.best_s) for search, weight in self.weighted]
        if any(best_s is None for _, _, best_s in known):
            return ()
        fixed_s = sum(weight * (best_s or 0.0) for search, weight, best_s in known if not search.task.tunable)
        standings = [
            replace(reaching(search.state.progress, best_s), weight=weight)
            for search, weight, best_s in known
            if search.task.tunable and best_s is not None
        ]
        return outlook(standings, fixed_s, cores, prices, seed, pace)
