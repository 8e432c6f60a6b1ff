"""Turning a budget and an effort into a plan, and knowing when it is used up."""

from dataclasses import dataclass

from tunery._errors import UsageError
from tunery.domain import Budget

EFFORTS = {"quick": 16, "standard": 64, "full": 256}
"""Trials per tunable task where no budget is given."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The limits of a job: seconds of wall time and trials; None is no limit. `batch` is candidates per round."""

    seconds: float | None
    trials: int | None
    batch: int


def check_effort(effort: str) -> None:
    """Check the word for an effort.

    Raises:
        UsageError: it is unknown.
    """
    if effort not in EFFORTS:
        raise UsageError(f"unknown effort {effort!r}; use {', '.join(EFFORTS)}")


def plan(budget: Budget, effort: str, tunable: int) -> Plan:
    """Return the limits of a job over `tunable` tasks; without a budget the effort sets the number of trials.

    Raises:
        UsageError: unknown effort.
    """
    check_effort(effort)
    trials = budget.trials
    if budget.seconds is None and budget.trials is None:
        trials = EFFORTS[effort] * max(tunable, 1)
    batch = 32
    if trials is not None:
        # Four rounds a task at least, so that proposing and building overlap and the model learns in between.
        batch = max(1, min(batch, trials // (4 * max(tunable, 1))))
    return Plan(budget.seconds, trials, batch)


class Meter:
    """What is left of a plan. `used_s` and `used_trials` are what earlier runs of the same job have spent."""

    def __init__(self, limits: Plan, used_s: float = 0.0, used_trials: int = 0) -> None:
        self.limits = limits
        self.trials = used_trials
        self._before_s = used_s

    def trials_left(self, in_flight: int) -> int | None:
        """Return how many more trials may be started, None for no limit."""
        return None if self.limits.trials is None else max(self.limits.trials - self.trials - in_flight, 0)

    def seconds_left(self, elapsed_s: float) -> float | None:
        """Return the wall seconds left after `elapsed_s` of this run, None for no limit."""
        return None if self.limits.seconds is None else self.limits.seconds - self._before_s - elapsed_s

    def total_s(self, elapsed_s: float) -> float:
        """Return the wall seconds of all runs of the job."""
        return self._before_s + elapsed_s
