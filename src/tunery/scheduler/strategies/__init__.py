"""Scheduling policies by name."""

from tunery._errors import UsageError
from tunery.scheduler.strategies._base import Strategy
from tunery.scheduler.strategies.fair import Fair
from tunery.scheduler.strategies.greedy import Greedy
from tunery.scheduler.strategies.predictive import Predictive
from tunery.scheduler.strategies.sequential import Sequential
from tunery.scheduler.strategies.synchronous import Synchronous

STRATEGIES: dict[str, type[Strategy]] = {
    strategy.name: strategy for strategy in (Sequential, Synchronous, Greedy, Fair, Predictive)
}


def get_strategy(name: str) -> type[Strategy]:
    """Return a strategy's class by its name.

    Raises:
        UsageError: there is none of this name; the message lists all.
    """
    try:
        return STRATEGIES[name]
    except KeyError:
        raise UsageError(f"unknown strategy {name!r}; choose one of {', '.join(STRATEGIES)}") from None


__all__ = ["STRATEGIES", "Strategy", "get_strategy"]
