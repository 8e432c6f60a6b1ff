"""What one run of a job has used and may still use, by its own clock and account."""

import math
import time
from collections.abc import Callable
from dataclasses import replace

from tunery.accounting.meter import BudgetMeter, Plan
from tunery.accounting.prices import Prices
from tunery.domain import Spend
from tunery.tuning.account import Account
from tunery.tuning.allocation.allocator import Unit, unit_of


class RunBudget:
    """The limits of a job read at this moment, in a run that `began` then (monotonic seconds) after `before` was spent.

    `trials` are those of all runs, kept up to date by whoever counts them. Of a limit of time `reserve` is kept for
    what follows: compiling, comparing, and the way back to the prompt.
    """

    def __init__(  # noqa: PLR0917 - limits and what they count from
        self,
        limits: Plan,
        before: Spend,
        account: Account,
        cores: int,
        began: float,
        reserve: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._own, self.account, self._why = limits, account, ""
        self._reserve = reserve
        self._cores, self._began = cores, began
        self._ended: float | None = None
        self._before, self._meter = before, self._metered(limits, before)

    def _metered(self, limits: Plan, before: Spend) -> BudgetMeter:
        used = before.wall_s, before.trials, before.joules or 0.0
        return BudgetMeter(limits, *used, self.account.prices, self._cores, before.money or 0.0)

    def correct(self, before: Spend) -> None:
        """Take in what earlier runs have really spent."""
        self._before, self._meter = before, self._metered(self.limits, before)

    @property
    def limits(self) -> Plan:
        return self._meter.limits

    def limit_money(self, most: float, why: str = "") -> None:
        """Let all runs cost no more than `most`, and than the job's own limit."""
        money = most if self._own.money is None else min(self._own.money, most)
        self._meter.limits, self._why = replace(self._own, money=money), why

    def limited_by(self) -> str:
        """Return why a limit beside the job's own ends it earlier than these, "" where none does."""
        used = self.elapsed_s(), self.account.joules(), self.account.machine_s()
        left_s, own = self._meter.seconds_left(*used), self._metered(self._own, self._before)
        own_s = own.seconds_left(*used)
        return "" if left_s is None or (own_s is not None and own_s <= left_s) else self._why

    @property
    def prices(self) -> Prices:
        """The price sheet that money is counted by."""
        return self.account.prices

    @property
    def unit(self) -> Unit:
        """What gains are weighed against: the unit of the job's own limits."""
        return unit_of(self._own)

    @property
    def earlier_s(self) -> float:
        return self._meter.total_s(0.0)

    @property
    def trials(self) -> int:
        return self._meter.trials

    @trials.setter
    def trials(self, trials: int) -> None:
        self._meter.trials = trials

    @property
    def reserve_s(self) -> float:
        return self._reserve()

    def elapsed_s(self) -> float:
        return (self._ended or time.monotonic()) - self._began

    @property
    def ended(self) -> bool:
        return self._ended is not None

    def end(self) -> None:
        self._ended = time.monotonic()

    def left_s(self) -> float | None:
        """Return how long this run may go on, None without a limit of time, money or energy."""
        left_s = self._meter.seconds_left(self.elapsed_s(), self.account.joules(), self.account.machine_s())
        until_s = self.until_end_s()
        return left_s if left_s is None or until_s is None else min(left_s, until_s - self.reserve_s)

    def until_end_s(self) -> float | None:
        """Return how long it is to the end of a limit of time, None without one."""
        seconds = self.limits.seconds
        return None if seconds is None else seconds - self._meter.total_s(self.elapsed_s())

    def whole_s(self) -> float:
        """Return the seconds that the whole budget is worth at the rate so far, 0 where nothing limits the time."""
        left_s = self.left_s()
        return 0.0 if left_s is None else max(left_s + self._meter.total_s(self.elapsed_s()), 0.0)

    def spare_s(self, reserve_s: float, most: float = 0.5) -> float:
        """Return how long the run may go on if `reserve_s`, at most the share `most` of the whole, are set aside."""
        left_s = self.left_s()
        return math.inf if left_s is None else left_s - min(reserve_s, most * self.whole_s())

    def trials_left(self, in_flight: int) -> int | None:
        """Return how many more trials may be started, None for no limit."""
        return self._meter.trials_left(in_flight)

    def remaining(self) -> dict[str, float]:
        """Return what is left of each limit, by the names in Plan; what was used in excess is negative."""
        return self._meter.remaining(self.elapsed_s(), self.account.joules(), self.account.machine_s())

    def spend(self) -> Spend:
        """Return what all runs have used, as far as it is known without the ledger."""
        elapsed_s, joules, machine_s = self.elapsed_s(), self.account.joules(), self.account.machine_s()
        return Spend(
            wall_s=self._meter.total_s(elapsed_s),
            core_s=self._before.core_s + self.account.core_s(),
            trials=self.trials,
            joules=self._meter.total_j(joules),
            modelled=self.account.power.modelled,
            machine_s=(self._before.machine_s or self._before.wall_s) + machine_s,
            money=self._meter.money(machine_s, joules),
            currency=self.prices.currency,
        )
