"""Turning a budget and an effort into a plan, and knowing when it is used up."""

from dataclasses import dataclass

from tunery._errors import UsageError
from tunery.accounting.prices import Prices
from tunery.domain import Budget

EFFORTS = {"quick": 16, "standard": 64, "full": 256}
"""Trials per tunable task where no budget is given."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The limits of a job; None is no limit. `batch` is candidates per round.

    `seconds` are of wall time, `money` is in the currency of the price sheet, `joules` are of energy.
    """

    seconds: float | None
    trials: int | None
    batch: int
    money: float | None = None
    joules: float | None = None


def check_effort(effort: str) -> None:
    """Check the word for an effort."""
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


class BudgetMeter:
    """What is left of a plan. `used_s`, `used_trials`, `used_j` and `used_money` are what earlier runs of the same job
    have spent.

    Without `prices`, of a machine of `cores`, nothing costs money.
    """

    def __init__(  # noqa: PLR0917 - what was used, kind by kind
        self,
        limits: Plan,
        used_s: float = 0.0,
        used_trials: int = 0,
        used_j: float = 0.0,
        prices: Prices | None = None,
        cores: int = 1,
        used_money: float = 0.0,
    ) -> None:
        self.limits = limits
        self.trials = used_trials
        self._before_s, self._before_j, self._before_money = used_s, used_j, used_money
        self._prices, self._cores = prices, cores

    def trials_left(self, in_flight: int) -> int | None:
        """Return how many more trials may be started, None for no limit."""
        return None if self.limits.trials is None else max(self.limits.trials - self.trials - in_flight, 0)

    def seconds_left(self, elapsed_s: float, joules: float = 0.0, machine_s: float = 0.0) -> float | None:
        """Return how long this run may go on after `elapsed_s`, `joules` and `machine_s`, None for no limit.

        Energy is turned into time by the rate at which it was used so far, money as if the job were alone.
        """
        total_s, total_j = self.total_s(elapsed_s), self.total_j(joules)
        watts = max(total_j / max(total_s, 1.0), 1e-3)
        left = []
        if self.limits.seconds is not None:
            left.append(self.limits.seconds - total_s)
        if self.limits.joules is not None:
            left.append((self.limits.joules - total_j) / watts)
        if self.limits.money is not None and self._prices is not None:
            rate = self._prices.of_machine(self._cores) + self._prices.of_energy(watts)
            left.append((self.limits.money - self.money(machine_s, joules)) / max(rate, 1e-12))
        return min(left, default=None)

    def allowance_s(self, elapsed_s: float = 0.0, joules: float = 0.0, machine_s: float = 0.0) -> float:
        """Return the seconds the whole budget is worth at the rate used so far; 0 where nothing limits the time."""
        left_s = self.seconds_left(elapsed_s, joules, machine_s)
        return 0.0 if left_s is None else max(left_s + self.total_s(elapsed_s), 0.0)

    def total_s(self, elapsed_s: float) -> float:
        """Return the wall seconds of all runs of the job."""
        return self._before_s + elapsed_s

    def total_j(self, joules: float) -> float:
        return self._before_j + joules

    def money(self, machine_s: float, joules: float) -> float:
        """Return what all runs of the job cost: the machine, `machine_s` of it in this run, and electricity."""
        if self._prices is None:
            return 0.0
        machine = self._prices.of_machine(self._cores * machine_s)
        return self._before_money + machine + self._prices.of_energy(joules)

    def remaining(self, elapsed_s: float, joules: float, machine_s: float) -> dict[str, float]:
        """Return what is left of each limit there is, by the names in Plan; what was used in excess is negative."""
        used = {
            "seconds": self.total_s(elapsed_s),
            "trials": float(self.trials),
            "money": self.money(machine_s, joules),
            "joules": self.total_j(joules),
        }
        limits = {name: getattr(self.limits, name) for name in used}
        return {name: limit - used[name] for name, limit in limits.items() if limit is not None}
