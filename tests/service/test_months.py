import asyncio
from pathlib import Path

import pytest

from tunery import UsageError
from tunery.service.months import MonthShare, refuse_used_up
from tunery.store import AsyncStore, Charge, Store, StoredAccount, open_store


def test_a_share_ends_when_its_job_has_cost_all_that_is_left(tmp_path: Path) -> None:
    spent, limits = 0.0, list[float]()

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
            share.meter(cost, limits.append)
            await asyncio.wait_for(share.watch(), 60)
            assert spent >= 4.0
            assert limits == [4.0] * len(limits)
            bill = Charge(job_id, "", "build", "", 1.0, 1.0, 0.0, money=4.0, currency="USD")
            await calls.write(lambda store: store.charge_all([bill]))
            with pytest.raises(UsageError, match="ann"):
                await calls.read(lambda store: refuse_used_up(store, "ann"))

    asyncio.run(main())
