"""Turning a budget and an effort into a plan."""

from dataclasses import dataclass

from tunery._errors import UsageError
from tunery.domain import Budget

EFFORTS = {"quick": 16, "standard": 64, "full": 256}
"""Trials per tunable task where no budget is given."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The limits of a job; None is no limit. `batch` is candidates per round. `seconds` are of wall time, `money` is in
    the currency of the price sheet, `joules` are of energy."""

    seconds: float | None
    trials: int | None
    batch: int
    money: float | None = None
    joules: float | None = None


def check_effort(effort: str) -> None:
    if effort not in EFFORTS:
        raise UsageError(f"unknown effort {effort!r}; use {', '.join(EFFORTS)}")


def plan(budget: Budget, effort: str, tunable: int) -> Plan:
    """Return the limits of a job over `tunable` tasks; without a budget the effort sets the number of trials."""
    check_effort(effort)
    trials = budget.trials
    if budget.unlimited:
        trials = EFFORTS[effort] * max(tunable, 1)
    batch = 32
    if trials is not None:
        # Four rounds a task at least, so that proposing and building overlap and the model learns in between.
        batch = max(1, min(batch, trials // (4 * max(tunable, 1))))
    return Plan(budget.seconds, trials, batch, budget.money, budget.joules)
