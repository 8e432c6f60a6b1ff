import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest
from clocks import Clock

from tunery import UsageError
from tunery.service.budgets.months import MonthShare, refuse_used_up
from tunery.store import AsyncStore, Charge, Store, StoredAccount, open_store

pytestmark = pytest.mark.usefixtures("inline_workers")


def test_a_share_ends_when_its_job_has_cost_all_that_is_left(tmp_path: Path) -> None:
    spent, limits, reasons = 0.0, list[float](), set[str]()

    def cost() -> float:
        nonlocal spent
        spent += 0.5
        return spent

    def begun(store: Store) -> str:
        store.accounts.create(StoredAccount("ann", "user", month_money=4.0))
        job_id = store.create_job({"queue_owner": "ann"}).job_id
        store.acquire_job(job_id)
        return job_id

    async def main() -> None:
        with open_store(str(tmp_path / "store.db")) as store, AsyncStore(store) as calls:
            job_id = await calls.write(begun)
            share = MonthShare(calls, job_id, "ann", 1.0, 0.0)
            await share.look()
            assert share.leaves(3.0)
            assert not share.leaves(5.0)
            share.meter(cost, lambda most, why: (limits.append(most), reasons.add(why)))
            await asyncio.wait_for(share.watch(), 60)
            assert spent >= 4.0
            assert limits == [4.0] * len(limits)
            assert all(told in why for why in reasons for told in ("ann", "4", following_month()))
            bill = Charge(job_id, "", "build", "", 1.0, 1.0, 0.0, money=4.0, currency="USD")
            await calls.write(lambda store: store.charge_all([bill]))
            with pytest.raises(UsageError, match=f"ann.* 4 .*{following_month()}"):
                await calls.read(lambda store: refuse_used_up(store, "ann"))

    asyncio.run(main())


def following_month() -> str:
    now = datetime.now(UTC)
    year, month = divmod(now.year * 12 + now.month, 12)
    return f"{year}-{month + 1:02}-01"


def test_a_job_at_work_when_the_month_turns_may_cost_the_next_ones_money(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch, datetime(2026, 12, 31, 23, 59, 58, tzinfo=UTC))

    def begun(store: Store) -> str:
        store.accounts.create(StoredAccount("ann", "user", month_money=4.0))
        job_id = store.create_job({"queue_owner": "ann"}).job_id
        store.acquire_job(job_id)
        bill = Charge(job_id, "", "build", "", 1.0, 1.0, 0.0, money=4.0, currency="USD")
        store.charge_all([bill])
        return job_id

    async def main() -> None:
        with open_store(str(tmp_path / "store.db")) as store, AsyncStore(store) as calls:
            share = MonthShare(calls, await calls.write(begun), "ann", 1.0, 4.0)
            await share.look()
            assert not share.leaves(0.0)
            assert "2027-01-01" in str(share.refusal())
            clock.go_on(4.0)
            await share.look()
            assert share.leaves(3.9)
            assert not share.leaves(4.1)

    asyncio.run(main())
