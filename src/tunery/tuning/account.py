"""A job's account: whatever is done in its name is charged here, in core-seconds, joules and money."""

import platform
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from tunery.accounting.machine import Part
from tunery.accounting.power import Power
from tunery.accounting.prices import Prices
from tunery.domain import Candidate, Record, Spend, Task
from tunery.runtime.runtime import Runtime
from tunery.store import AsyncStore, Charge
from tunery.tuning.allocation.allocator import Cost

OVERHEAD, MANAGE, IDLE = "overhead", "manage", "idle"
"""Stages of no candidate: workers coming up and work cut short, this process's own, the machine that no stage paid."""


@dataclass(frozen=True, slots=True)
class PricedCharge:
    """A charge without its price, and the core-seconds that were held for it, busy or not."""

    charge: Charge
    held_core_s: float


class Account:
    """Prices charges and stores them, and knows what this run of the job has used so far.

    A charge counts from the moment at which it is to be stored, so that nobody else pays for the same meanwhile.
    """

    def __init__(self, store: AsyncStore, job_id: str, runtime: Runtime, prices: Prices, power: Power) -> None:
        self.prices, self.power = prices, power
        self._store, self._job_id, self._runtime = store, job_id, runtime
        self._part, self._idle_core_s, self._closed = Part(), 0.0, False
        self._core_s = self._joules = 0.0
        self._by_task: defaultdict[str, Cost] = defaultdict(lambda: Cost(0.0))
        self._aside: defaultdict[tuple[str, str], float] = defaultdict(float)

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
            self._runtime.claim(core_s)
        self._runtime.dispatch.machine.charge(self._job_id, sign * held_core_s)
        task = self._by_task[charge.task_key]
        self._by_task[charge.task_key] = Cost(task.held_core_s + sign * held_core_s, task.joules + joules)

    def of_task(self, task_key: str) -> Cost:
        return self._by_task[task_key]

    def defer(self, candidate: Candidate, core_s: float) -> None:
        """Keep what a build took for the bill that will say what came of the candidate: it is no overhead meanwhile."""
        self._aside[candidate.task_key, candidate.key] += core_s
        self._runtime.claim(core_s)

    def take_back(self, candidates: Iterable[Candidate]) -> None:
        """Let go of what was set aside for candidates, to bill it now, or because nothing comes of them."""
        for candidate in candidates:
            self._runtime.claim(-self._aside.pop((candidate.task_key, candidate.key), 0.0))

    def core_s(self) -> float:
        """Return the core-seconds of this run, with what is not billed yet."""
        return self._core_s + self._unbilled_s()

    def joules(self) -> float:
        """Return the energy of this run, with what is not billed yet."""
        return self._joules + self.power.joules(self._unbilled_s())

    def machine_s(self) -> float:
        return self._part.time_s + (0.0 if self._closed else self._runtime.dispatch.machine.time_s(self._job_id))

    def _unbilled_s(self) -> float:
        """Return the core-seconds of stages that have not ended, and of what nobody was charged for yet.

        That is workers' starts, builds that wait for their races, and this process. Jobs that run at once each count
        all of it until one of them settles: a limit is rather kept too early than exceeded.
        """
        runtime, aside_s = self._runtime, sum(self._aside.values())
        return aside_s + runtime.in_use(self._job_id) + runtime.unclaimed_core_s() + runtime.dispatch.own_s()

    async def settle(self) -> None:
        """Charge what belongs to no stage: workers' starts and this process's own work since a job of it last did.

        So is what no stage has held of the job's part of the machine.
        """
        charges = (
            Charge(self._job_id, "", OVERHEAD, "", 0.0, self._runtime.unclaimed_core_s(), 0.0),  # of any host's workers
            Charge(self._job_id, "", MANAGE, "", 0.0, self._runtime.dispatch.own_s(), 0.0, host=platform.node()),
        )
        await self.post(PricedCharge(one, 0.0) for one in charges if one.core_s > 0)
        await self._settle_idle()

    async def reconcile(self, before: Spend) -> Spend:
        """Return what earlier runs of the job have spent, by the ledger, which may have more than was stored.

        What a run that was killed has paid the machine for and never wrote down is charged before.
        """
        rows = await self._store.read(lambda store: store.ledger(self._job_id))
        spent = charged(before, rows)
        rest = (before.money or 0.0) - (spent.money or 0.0)
        if rest > 0 and before.currency:
            await self._charge_idle(rest, before.currency)
            spent = replace(spent, money=before.money)
        return spent

    async def close(self) -> None:
        """Settle, and charge what no stage was charged for of the job's part of the machine's time."""
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
    """Return what a job has spent by what it was charged for: `rows` of the ledger, in the money that it keeps."""
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
    """Add up what is known, None where nothing is."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known else None
