"""Scheduling policies by name."""

from tunery._errors import UsageError
from tunery.scheduling.strategies._base import Strategy
from tunery.scheduling.strategies.fair import Fair
from tunery.scheduling.strategies.greedy import Greedy
from tunery.scheduling.strategies.predictive import Predictive
from tunery.scheduling.strategies.sequential import Sequential
from tunery.scheduling.strategies.synchronous import Synchronous

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
