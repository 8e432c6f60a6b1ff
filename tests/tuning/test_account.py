"""A job's account, with a machine that the test makes up."""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunery._errors import StoreError
from tunery.accounting.machine import MachineTime
from tunery.accounting.power import Power
from tunery.accounting.prices import load_prices
from tunery.devices.cpu.load import MODELLED_W_PER_CORE, ModelledMeter
from tunery.domain import Spend
from tunery.store import AsyncStore, Charge, Store, open_store
from tunery.tuning.account import Account, PricedCharge, charged


@dataclass
class Clock:
    """A clock that the test moves."""

    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Process:
    """Stands in for a dispatch: core-seconds of this process that nobody has paid."""

    unpaid_s: float = 0.0
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.machine = MachineTime(self.clock)

    def own_s(self) -> float:
        return self.unpaid_s

    def claim(self, own_s: float) -> None:
        self.unpaid_s -= own_s


@dataclass
class Machine:
    """Stands in for a runtime: core-seconds of workers that nobody has paid."""

    unpaid_s: float = 0.0
    held_s: float = 0.0
    granted: int = 2
    dispatch: Process = field(default_factory=Process)

    @property
    def usage(self) -> "Machine":
        return self

    def unclaimed(self) -> float:
        return self.unpaid_s

    def in_use(self, _: str) -> float:
        return self.held_s

    def claim(self, core_s: float) -> None:
        self.unpaid_s -= core_s


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(str(tmp_path / "store.db")) as opened:
        yield opened


def account_of(store: Store, machine: Any) -> Account:
    return Account(AsyncStore(store), store.create_job({}).job_id, machine, load_prices(), Power(ModelledMeter()))


def spent(store: Store) -> dict[str, float]:
    return {charge.stage: charge.core_s for charge in store.ledger()}


def test_what_a_busy_store_did_not_take_is_charged_the_next_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(3.0, dispatch=Process(1.0))
    account = account_of(store, machine)

    def busy(self: Store, charges: Iterable[Charge]) -> None:
        raise StoreError("the database is locked")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "charge_all", busy)
        with pytest.raises(StoreError):
            asyncio.run(account.settle())
    assert (machine.unpaid_s, machine.dispatch.unpaid_s, account.core_s()) == (3.0, 1.0, 4.0)
    asyncio.run(account.settle())
    assert spent(store) == {"overhead": 3.0, "manage": 1.0}
    assert (machine.unpaid_s, machine.dispatch.unpaid_s, account.core_s()) == (0.0, 0.0, 4.0)


def test_the_machine_is_paid_once_for_what_was_granted(store: Store) -> None:
    machine = Machine(granted=3)
    account, dispatch = account_of(store, machine), machine.dispatch
    with dispatch.machine.running(store.jobs(1)[0].job_id):
        dispatch.clock.now_s += 100.0
        for _ in range(2):
            asyncio.run(account.close())
    assert [charge.money for charge in store.ledger()] == [pytest.approx(load_prices().of_machine(300.0))]
    assert account.machine_s() == 100.0


class Job:
    """A job of a made-up machine, which holds some cores for one stage after the other."""

    def __init__(self, store: Store, machine: Machine) -> None:
        self._clock, self._time = machine.dispatch.clock, machine.dispatch.machine
        self.account = account_of(store, machine)
        self.job_id = self.account._job_id
        self._running, self._stage = ExitStack(), ExitStack()
        self._running.enter_context(self._time.running(self.job_id))
        self._began_s, self.cores = self._clock(), 0

    async def hold(self, cores: int) -> None:
        took_s = self._clock() - self._began_s
        self._stage.close()
        spent = Charge(self.job_id, "", "build", "", took_s, took_s * self.cores, 0.0)
        if self._clock() % 2:
            await self.account.settle()  # a heartbeat before it is charged
        await self.account.post([PricedCharge(spent, took_s * self.cores)])
        self._stage.enter_context(self._time.held(self.job_id, cores))
        self._began_s, self.cores = self._clock(), cores

    async def end(self) -> None:
        await self.hold(0)
        await self.account.close()
        self._stage.close()
        self._running.close()


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 2), st.sampled_from([0.0, 1.0, 7.5])), max_size=25))
def test_the_jobs_together_pay_the_machine_once_and_the_electricity(steps: list[tuple[int, int, float]]) -> None:
    machine, jobs, used_s = Machine(), dict[int, Job](), 0.0

    async def main(store: Store) -> None:
        nonlocal used_s
        for name, cores, seconds in steps:  # a job begins or goes on with so many cores, or it ends; time passes
            if cores < 0 and name in jobs:
                await jobs.pop(name).end()
            elif cores >= 0:
                one = jobs.get(name) or jobs.setdefault(name, Job(store, machine))
                others = sum(job.cores for job in jobs.values()) - one.cores
                await one.hold(min(cores, machine.granted - others))
            machine.dispatch.clock.now_s += seconds
            used_s += seconds if jobs else 0.0
        for job in jobs.values():
            await job.end()

    with TemporaryDirectory() as directory, open_store(str(Path(directory, "store.db"))) as store:
        asyncio.run(main(store))
        charges, prices = store.ledger(), load_prices()
    energy = prices.of_energy(sum(charge.joules or 0.0 for charge in charges))
    bill = prices.of_machine(machine.granted * used_s) + energy
    assert sum(charge.money or 0.0 for charge in charges) == pytest.approx(bill, abs=1e-12)


def test_who_waits_for_anothers_kernel_pays_nothing_for_the_wait(store: Store) -> None:
    machine, prices = Machine(), load_prices()

    async def main() -> dict[str, float]:
        hung, waiting = Job(store, machine), Job(store, machine)
        machine.dispatch.clock.now_s += 10.0  # nobody holds anything: each pays a half
        await hung.hold(2)
        machine.dispatch.clock.now_s += 300.0
        await hung.end()
        machine.dispatch.clock.now_s += 20.0
        await waiting.end()
        return {job.job_id: job.account.machine_s() for job in (hung, waiting)}

    times = asyncio.run(main())
    assert list(times.values()) == [305.0, 25.0]
    for job_id, time_s in times.items():
        charges = store.ledger(job_id)
        machine_money = sum((c.money or 0.0) - prices.of_energy(c.joules) for c in charges)
        assert machine_money == pytest.approx(prices.of_machine(2 * time_s))


def test_the_meter_sees_what_nobody_was_charged_for_and_sees_it_once(store: Store) -> None:
    account = account_of(store, Machine(unpaid_s=3.0, held_s=1.0, dispatch=Process(0.5)))
    assert account.core_s() == pytest.approx(4.5)
    assert account.joules() == pytest.approx(4.5 * MODELLED_W_PER_CORE)
    asyncio.run(account.settle())
    assert account.joules() == pytest.approx(4.5 * MODELLED_W_PER_CORE), "charging it changes nothing"
    assert sum(charge.core_s for charge in store.ledger()) == pytest.approx(3.5)


def test_what_was_charged_before_a_job_was_stored_counts() -> None:
    rows = [Charge("job", "", "build", "", 1.0, 1.0, 0.0, money=0.25, currency="EUR"),
            Charge("job", "", "idle", "", 0.0, 0.0, 0.0, money=0.5, currency="EUR")]  # fmt: skip
    found = charged(Spend(), rows)
    assert (found.money, found.currency) == (0.75, "EUR")
    assert charged(Spend(currency="USD"), rows).money is None
