"""A job's account, with a machine that the test makes up."""

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tunery._errors import StoreError
from tunery.accounting.power import Power
from tunery.accounting.prices import load_prices
from tunery.devices.cpu.energy import MODELLED_W_PER_CORE, ModelledMeter
from tunery.store import AsyncStore, Charge, Store, open_store
from tunery.tuning.account import Account


@dataclass
class Process:
    """Stands in for a dispatch: core-seconds of this process that nobody has paid."""

    unpaid_s: float = 0.0

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

    def unclaimed_core_s(self) -> float:
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
    account = account_of(store, Machine(granted=3))
    for _ in range(2):
        asyncio.run(account.close(100.0))
    assert [charge.money for charge in store.ledger()] == [pytest.approx(load_prices().of_machine(300.0))]


def test_the_meter_sees_what_nobody_was_charged_for_and_sees_it_once(store: Store) -> None:
    account = account_of(store, Machine(unpaid_s=3.0, held_s=1.0, dispatch=Process(0.5)))
    assert account.core_s() == pytest.approx(4.5)
    assert account.joules() == pytest.approx(4.5 * MODELLED_W_PER_CORE)
    asyncio.run(account.settle())
    assert account.joules() == pytest.approx(4.5 * MODELLED_W_PER_CORE), "charging it changes nothing"
    assert sum(charge.core_s for charge in store.ledger()) == pytest.approx(3.5)
