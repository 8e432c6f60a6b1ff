"""A job's account counts work as soon as it is done, not when somebody is charged for it."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tunery.budgets import load_prices
from tunery.budgets.power import modelled_power
from tunery.jobs.account import Account
from tunery.measure.energy import MODELLED_W_PER_CORE
from tunery.store import Store, open_store


class Machine:
    """What an account asks of a runtime: core-seconds of open stages, unclaimed ones, and this process's own."""

    def __init__(self, held_s: float, unclaimed_s: float, own_s: float) -> None:
        self.held_s, self.unclaimed_s, self.own = held_s, unclaimed_s, own_s
        self.dispatch = SimpleNamespace(own_s=self._own_s)

    def in_use(self, _: str) -> float:
        return self.held_s

    def unclaimed_core_s(self) -> float:
        return self.unclaimed_s

    def claim(self, core_s: float) -> None:
        self.unclaimed_s -= core_s

    def _own_s(self, *, claim: bool = False) -> float:
        now_s, self.own = self.own, 0.0 if claim else self.own
        return now_s


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(str(tmp_path / "store.db")) as opened:
        yield opened


def test_the_meter_sees_what_nobody_was_charged_for_and_sees_it_once(store: Store) -> None:
    machine: Any = Machine(held_s=1.0, unclaimed_s=3.0, own_s=0.5)
    job_id = store.create_job({}).job_id
    account = Account(store, job_id, machine, load_prices(), modelled_power())
    assert account.core_s() == pytest.approx(4.5)
    assert account.joules() == pytest.approx(4.5 * MODELLED_W_PER_CORE)
    account.settle()
    assert account.joules() == pytest.approx(4.5 * MODELLED_W_PER_CORE), "charging it changes nothing"
    assert sum(charge.core_s for charge in store.ledger(job_id)) == pytest.approx(3.5)
