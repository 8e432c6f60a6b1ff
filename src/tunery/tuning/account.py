"""A job's account: whatever is done in its name is charged here, in core-seconds, joules and money."""

import math
import platform
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from tunery.accounting.machine import Part
from tunery.accounting.meter import Plan
from tunery.accounting.power import Power
from tunery.accounting.prices import Prices
from tunery.domain import Candidate, Record, Spend, Task
from tunery.runtime.runtime import Runtime
from tunery.store import AsyncStore, Charge
from tunery.tuning.allocation.allocator import Cost, Unit, unit_of

OVERHEAD, MANAGE, IDLE = "overhead", "manage", "idle"
"""Stages of no candidate: workers coming up and work cut short, this process's own, the machine that no stage paid."""


@dataclass(frozen=True, slots=True)
class PricedCharge:
    """A charge without its price, and the core-seconds that were held for it, busy or not."""

    charge: Charge
    held_core_s: float


class Account:
    """Prices charges and stores them, and knows what this run of the job has used so far. A charge counts from the
    moment at which it is to be stored, so that nobody else pays for the same meanwhile."""

    def __init__(self, store: AsyncStore, job_id: str, runtime: Runtime, prices: Prices, power: Power) -> None:
        self.prices, self.power = prices, power
        self._store, self._job_id, self._runtime = store, job_id, runtime
        self._part, self._idle_core_s, self._closed = Part(), 0.0, False
        self._core_s = self._joules = 0.0
        self._by_task: defaultdict[str, Cost] = defaultdict(lambda: Cost(0.0))
        self._deferred: defaultdict[tuple[str, str], float] = defaultdict(float)

    async def post(self, bills: Iterable[PricedCharge]) -> None:
        """Price bills and store them in one commit; what could not be stored is left for the next `settle`."""
        await self._post(list(bills), self._store.charge_all)

    async def record(self, task: Task, records: Sequence[Record], bills: Iterable[PricedCharge]) -> None:
        """Store records of a task and what they have cost in one commit: neither is ever there without the other."""
        await self._post(list(bills), lambda charges: self._store.add_records(task, records, charges))

    async def _post(
        self, bills: Sequence[PricedCharge], store: Callable[[Sequence[Charge]], Awaitable[object]]
    ) -> None:
        charges = [self._priced(bill) for bill in bills]
        counted = [(charge, bill.held_core_s) for bill, charge in zip(bills, charges, strict=True)]
        for charge, held_core_s in counted:
            self._count(charge, held_core_s)
        try:
            await store(charges)
        except BaseException:
            for charge, held_core_s in counted:
                self._count(charge, held_core_s, sign=-1)
            raise

    def _priced(self, bill: PricedCharge) -> Charge:
        joules = self.power.joules(bill.charge.core_s)
        money = self.prices.of_machine(bill.held_core_s) + self.prices.of_energy(joules)
        return replace(
            bill.charge, joules=joules, modelled=self.power.modelled, money=money, currency=self.prices.currency
        )

    def _count(self, charge: Charge, held_core_s: float, sign: int = 1) -> None:
        joules, core_s = sign * (charge.joules or 0.0), sign * charge.core_s
        self._joules += joules
        self._core_s += core_s
        if charge.stage == MANAGE:  # it is no worker's
            self._runtime.dispatch.claim(core_s)
        else:
            self._runtime.usage.claim(core_s)
        self._runtime.dispatch.machine.charge(self._job_id, sign * held_core_s)
        task = self._by_task[charge.task_key]
        self._by_task[charge.task_key] = Cost(task.held_core_s + sign * held_core_s, task.joules + joules)

    def of_task(self, task_key: str) -> Cost:
        return self._by_task[task_key]

    def defer(self, candidate: Candidate, core_s: float) -> None:
        """Keep what a build took for the bill that will say what came of the candidate: it is no overhead meanwhile."""
        self._deferred[candidate.task_key, candidate.key] += core_s
        self._runtime.usage.claim(core_s)

    def settle_deferred(self, candidates: Iterable[Candidate]) -> None:
        """Let go of what was set aside for candidates, to bill it now, or because nothing comes of them."""
        for candidate in candidates:
            self._runtime.usage.claim(-self._deferred.pop((candidate.task_key, candidate.key), 0.0))

    def core_s(self) -> float:
        return self._core_s + self._unbilled_s()

    def joules(self) -> float:
        return self._joules + self.power.joules(self._unbilled_s())

    def machine_s(self) -> float:
        return self._part.time_s + (0.0 if self._closed else self._runtime.dispatch.machine.time_s(self._job_id))

    def _unbilled_s(self) -> float:
        """Return the core-seconds of stages that have not ended, of workers' starts, of builds that wait for their
        races, and of this process. Jobs that run at once each count all of it until one of them settles: a limit is
        rather kept too early than exceeded."""
        runtime, deferred_s = self._runtime, sum(self._deferred.values())
        return deferred_s + runtime.usage.in_use(self._job_id) + runtime.usage.unclaimed() + runtime.dispatch.own_s()

    async def settle(self) -> None:
        """Charge what belongs to no stage: workers' starts, this process's own work since a job of it last did, and
        what no stage has held of the job's part of the machine."""
        charges = (
            Charge(self._job_id, "", OVERHEAD, "", 0.0, self._runtime.usage.unclaimed(), 0.0),  # of any host's workers
            Charge(self._job_id, "", MANAGE, "", 0.0, self._runtime.dispatch.own_s(), 0.0, host=platform.node()),
        )
        await self.post(PricedCharge(charge, 0.0) for charge in charges if charge.core_s > 0)
        await self._settle_idle()

    async def reconcile(self, before: Spend) -> Spend:
        """Return what earlier runs of the job have spent, by the ledger, which may have more than was stored. What a
        run that was killed has paid the machine for and never wrote down is charged before."""
        rows = await self._store.read(lambda store: store.ledger(self._job_id))
        spent = charged(before, rows)
        rest = (before.money or 0.0) - (spent.money or 0.0)
        if rest > 0 and before.currency:
            await self._charge_idle(rest, before.currency)
            spent = replace(spent, money=before.money)
        return spent

    async def close(self) -> None:
        self._take()
        self._closed = True
        await self.settle()

    def _take(self) -> None:
        if not self._closed:
            self._part.add(self._runtime.dispatch.machine.take(self._job_id))

    async def _settle_idle(self) -> None:
        self._take()
        part = self._part
        stages_core_s = part.charged_core_s if self._closed else max(part.held_core_s, part.charged_core_s)
        idle_core_s = self._runtime.granted * part.time_s - stages_core_s - self._idle_core_s
        if idle_core_s > 0:
            await self._charge_idle(self.prices.of_machine(idle_core_s), self.prices.currency)
            self._idle_core_s += idle_core_s

    async def _charge_idle(self, money: float, currency: str) -> None:
        idle = Charge(self._job_id, "", IDLE, "", 0.0, 0.0, 0.0, money=money, currency=currency, host=platform.node())
        await self._store.charge_all([idle])


def charged(spend: Spend, rows: Sequence[Charge]) -> Spend:
    currency = spend.currency or next((row.currency for row in rows if row.currency), "")
    stage_s: dict[str, float] = {}
    for row in (row for row in rows if row.wall_s):
        stage_s[row.stage] = stage_s.get(row.stage, 0.0) + row.wall_s
    return replace(
        spend,
        core_s=sum(row.core_s for row in rows),
        device_s=sum(row.device_s for row in rows),
        stage_s=stage_s,
        joules=_sum(row.joules for row in rows),
        modelled=any(row.modelled for row in rows),
        money=_sum(row.money for row in rows if row.currency == currency),
        currency=currency,
    )


def _sum(amounts: Iterable[float | None]) -> float | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known else None


class RunBudget:
    """The limits of a job read at this moment, in a run that `began` then (monotonic seconds) after `before` was spent.
    Of a limit of time `reserve` is kept for what follows: compiling, comparing, and the way back to the prompt."""

    def __init__(  # noqa: PLR0917 - limits and what they count from
        self,
        limits: Plan,
        before: Spend,
        account: Account,
        cores: int,
        began: float,
        reserve: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.limits, self.account, self._reserve = limits, account, reserve
        self._own, self._why = limits, ""
        self._cores, self._began = cores, began
        self._ended: float | None = None
        self.correct(before)

    def correct(self, before: Spend) -> None:
        self._before, self.trials = before, before.trials

    def limit_money(self, most: float, why: str = "") -> None:
        """What is left to its account may be less than its budget."""
        money = most if self._own.money is None else min(self._own.money, most)
        self.limits, self._why = replace(self._own, money=money), why

    def limited_by(self) -> str:
        left_s, own_s = self._seconds_left(self.limits), self._seconds_left(self._own)
        return "" if left_s is None or (own_s is not None and own_s <= left_s) else self._why

    @property
    def prices(self) -> Prices:
        return self.account.prices

    @property
    def unit(self) -> Unit:
        return unit_of(self._own)

    @property
    def earlier_s(self) -> float:
        return self._before.wall_s

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
        left_s, until_s = self._seconds_left(self.limits), self.until_end_s()
        return left_s if left_s is None or until_s is None else min(left_s, until_s - self.reserve_s)

    def _seconds_left(self, limits: Plan) -> float | None:
        """Energy is turned into time by the rate at which it was used so far, money as if the job were alone."""
        total_s, joules = self._total_s(), self._joules()
        watts = max(joules / max(total_s, 1.0), 1e-3)
        left = []
        if limits.seconds is not None:
            left.append(limits.seconds - total_s)
        if limits.joules is not None:
            left.append((limits.joules - joules) / watts)
        if limits.money is not None:
            rate = self.prices.of_machine(self._cores) + self.prices.of_energy(watts)
            left.append((limits.money - self._money()) / max(rate, 1e-12))
        return min(left, default=None)

    def _total_s(self) -> float:
        return self._before.wall_s + self.elapsed_s()

    def _joules(self) -> float:
        return (self._before.joules or 0.0) + self.account.joules()

    def _money(self) -> float:
        machine = self.prices.of_machine(self._cores * self.account.machine_s())
        return (self._before.money or 0.0) + machine + self.prices.of_energy(self.account.joules())

    def until_end_s(self) -> float | None:
        """Return how long it is to the end of a limit of time, None without one."""
        seconds = self.limits.seconds
        return None if seconds is None else seconds - self._total_s()

    def whole_s(self) -> float:
        left_s = self.left_s()
        return 0.0 if left_s is None else max(left_s + self._total_s(), 0.0)

    def spare_s(self, reserve_s: float, most: float = 0.5) -> float:
        left_s = self.left_s()
        return math.inf if left_s is None else left_s - min(reserve_s, most * self.whole_s())

    def trials_left(self, in_flight: int) -> int | None:
        return None if self.limits.trials is None else max(self.limits.trials - self.trials - in_flight, 0)

    def remaining(self) -> dict[str, float]:
        limits, used = self.limits, (self._total_s(), float(self.trials), self._money(), self._joules())
        most = {"seconds": limits.seconds, "trials": limits.trials, "money": limits.money, "joules": limits.joules}
        pairs = zip(most.items(), used, strict=True)
        return {name: limit - amount for (name, limit), amount in pairs if limit is not None}

    def spend(self) -> Spend:
        return Spend(
            wall_s=self._total_s(),
            core_s=self._before.core_s + self.account.core_s(),
            trials=self.trials,
            joules=self._joules(),
            modelled=self.account.power.modelled,
            machine_s=(self._before.machine_s or self._before.wall_s) + self.account.machine_s(),
            money=self._money(),
            currency=self.prices.currency,
        )
