"""Scheduling policies by name."""

from tunery._errors import UsageError
from tunery.scheduling.strategies._base import Strategy
from tunery.scheduling.strategies.predictive import Predictive

STRATEGIES: dict[str, type[Strategy]] = {Predictive.name: Predictive}
"""Those of prior work are added by the studies that compare them."""


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
