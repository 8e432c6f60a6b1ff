import time
from pathlib import Path

import pytest

from tunery.domain import JobState
from tunery.store import Charge, Store, StoredAccount, open_store


def _job(store: Store, account: str = "ann") -> str:
    job_id = store.create_job({"queue_owner": account, "seed": len(store.jobs())}).job_id
    assert store.acquire_job(job_id)
    return job_id


def _paid(store: Store, job_id: str, money: float) -> None:
    store.charge_all([Charge(job_id, "", "build", "", 1.0, 1.0, 0.0, money=money, currency="USD")])


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "tunery.db")


def test_jobs_of_two_coordinators_hold_no_more_than_is_left_in_all(place: str) -> None:
    with open_store(place) as here, open_store(place) as there:
        here.accounts.create(StoredAccount("ann", "user", month_money=10.0))
        jobs = [(store, _job(store)) for store in (here, there, here)]
        spent = dict.fromkeys((job_id for _, job_id in jobs), 0.0)
        for _ in range(60):
            for store, job_id in jobs:
                found = store.months.hold(job_id, "ann", 0.0, spent[job_id], 0.5)
                assert found is not None
                assert found.held <= found.most
                spent[job_id] = min(spent[job_id] + 0.4, found.held)
                assert sum(spent.values()) <= 10.0 + 1e-9
        assert sum(spent.values()) > 9.0
        assert min(spent.values()) > 2.0  # none had to starve


def test_what_a_job_holds_is_free_again_when_it_rests(place: str) -> None:
    with open_store(place) as here:
        here.accounts.create(StoredAccount("ann", "user", month_money=10.0))
        with open_store(place) as there:
            other = _job(there)
            assert there.months.hold(other, "ann", 0.0, 0.0, 4.0) is not None
            money = here.months.money("ann", 0.0)
            assert money is not None
            assert money.left == pytest.approx(6.0)
            _paid(there, other, 1.0)
            there.release_job(other, JobState.PAUSED)
        money = here.months.money("ann", 0.0)
        assert money is not None
        assert (money.left, money.at_work) == (pytest.approx(9.0), 0)


def test_what_was_paid_since_the_last_look_counts(place: str) -> None:
    with open_store(place) as store:
        store.accounts.create(StoredAccount("ann", "user", month_money=10.0))
        for paid in (1.0, 2.0):
            job_id = _job(store)
            _paid(store, job_id, 1.0)
            store.release_job(job_id, JobState.DONE)
            money = store.months.money("ann", 0.0)
            assert money is not None
            assert money.used == pytest.approx(paid)


def test_a_job_over_the_turn_of_two_months_counts_in_each_with_what_it_cost_in_it(place: str) -> None:
    with open_store(place) as store:
        store.accounts.create(StoredAccount("ann", "user", month_money=10.0))
        job_id = _job(store)
        _paid(store, job_id, 7.0)
        time.sleep(0.01)
        turn = time.time()
        found = store.months.hold(job_id, "ann", turn, 7.5, 1.0)  # it has cost half a coin since
        assert found is not None
        assert (found.earlier, found.held, found.most) == (7.0, 8.5, 17.0)
        money = store.months.money("ann", turn)
        assert money is not None
        assert (money.used, money.at_work) == (1.5, 1)
        _paid(store, job_id, 3.0)
        store.release_job(job_id, JobState.DONE)
        months = [store.months.money("ann", since) for since in (0.0, turn)]
        assert [month.used for month in months if month is not None] == [10.0, 3.0]
        sums = [store.usage(*span)["ann"] for span in ((0.0, turn), (turn, time.time() + 1.0))]
        assert [sum(charge.money or 0.0 for charge in charges) for charges in sums] == [7.0, 3.0]


def test_an_account_without_a_limit_and_a_stranger_may_cost_anything(place: str) -> None:
    with open_store(place) as store:
        store.accounts.create(StoredAccount("ann", "user"))
        job_id = _job(store)
        for name in ("ann", "nobody", ""):
            assert store.months.money(name, 0.0) is None
            assert store.months.hold(job_id, name, 0.0, 1.0, 1.0) is None
