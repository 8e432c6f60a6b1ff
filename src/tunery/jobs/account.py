"""A job's account: whatever is done in its name is charged here, in core-seconds, joules and money."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tunery.budgets import Cost, Power, Prices
from tunery.jobs.runtime import Runtime
from tunery.store import Charge, Store

OVERHEAD, MANAGE, IDLE = "overhead", "manage", "idle"
"""Stages of no candidate: workers coming up and work cut short, this process's own, a machine paid for and not held."""


@dataclass(frozen=True, slots=True)
class Bill:
    """A charge without its price, and the core-seconds that were held for it, busy or not."""

    charge: Charge
    held_core_s: float


class Account:
    """Prices charges and stores them; `used` is what this run of the job has used so far."""

    def __init__(self, store: Store, job_id: str, runtime: Runtime, prices: Prices, power: Power) -> None:
        self.prices, self.power = prices, power
        self._store, self._job_id, self._runtime = store, job_id, runtime
        self._held_money = 0.0
        self._core_s = self._joules = 0.0
        self._by_task: defaultdict[str, Cost] = defaultdict(lambda: Cost(0.0))

    def post(self, bills: Iterable[Bill]) -> None:
        """Price bills and store them in one commit."""
        self._store.charge_all([self._priced(bill) for bill in bills])

    def _priced(self, bill: Bill) -> Charge:
        joules = self.power.joules(bill.charge.core_s)
        held = self.prices.of_machine(bill.held_core_s)
        self._joules += joules
        self._core_s += bill.charge.core_s
        self._runtime.claim(bill.charge.core_s)
        self._held_money += held
        task = self._by_task[bill.charge.task_key]
        self._by_task[bill.charge.task_key] = Cost(task.held_core_s + bill.held_core_s, task.joules + joules)
        return replace(
            bill.charge, joules=joules, modelled=self.power.modelled, money=held + self.prices.of_energy(joules),
            currency=self.prices.currency,
        )  # fmt: skip

    def of_task(self, task_key: str) -> Cost:
        """Return what a task has taken in this run."""
        return self._by_task[task_key]

    def core_s(self) -> float:
        """Return the core-seconds of this run, with what is not billed yet."""
        return self._core_s + self._unbilled_s()

    def joules(self) -> float:
        """Return the energy of this run, with what is not billed yet."""
        return self._joules + self.power.joules(self._unbilled_s())

    def _unbilled_s(self) -> float:
        """Return the core-seconds of stages that have not ended, and of what nobody was charged for yet.

        That is workers' starts, builds that wait for their races, and this process. Jobs that run at once each count
        all of it until one of them settles: a limit is rather kept too early than exceeded.
        """
        runtime = self._runtime
        return runtime.in_use(self._job_id) + runtime.unclaimed_core_s() + runtime.dispatch.own_s()

    def settle(self) -> None:
        """Charge what belongs to no stage: workers' starts and this process's own work since a job of it last did."""
        spent = {OVERHEAD: self._runtime.unclaimed_core_s(), MANAGE: self._runtime.dispatch.own_s(claim=True)}
        self._runtime.claim(-spent[MANAGE])  # it is no worker's
        bills = (Bill(Charge(self._job_id, "", stage, "", 0.0, core_s, 0.0), 0.0) for stage, core_s in spent.items())
        self.post(bill for bill in bills if bill.charge.core_s > 0)

    def close(self, wall_s: float) -> None:
        """Settle, and charge the machine for the rest of this run's `wall_s`: it is paid for, held or not."""
        self.settle()
        rest = self.prices.of_machine(len(self._runtime.cores) * wall_s) - self._held_money
        if rest > 0:
            idle = Charge(self._job_id, "", IDLE, "", 0.0, 0.0, 0.0, money=rest, currency=self.prices.currency)
            self._store.charge_all([idle])
