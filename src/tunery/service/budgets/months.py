"""A month's limit of an account: its jobs at work share what is left of it, and look again while they work."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from tunery._errors import BudgetError, StoreError
from tunery.accounting.power import modelled_w
from tunery.accounting.prices import load_prices
from tunery.domain import LEAST
from tunery.store import AsyncStore, MonthMoney, MonthPart, Store
from tunery.tuning.account import charged
from tunery.tuning.job import HEARTBEAT_S

_AHEAD_S = 3 * HEARTBEAT_S
_SHORTEST_S = 0.2
DAY_S = 86_400.0


def month(now: datetime) -> tuple[float, float]:
    """Return from when until when jobs are of the month of `now`; the database's clock may be ahead."""
    return _first(now), now.timestamp() + DAY_S


def left_of_month_s() -> float:
    now = _now()
    return _following(now).timestamp() - now.timestamp()


def refuse_used_up(store: Store, account: str) -> None:
    now = _now()
    if (found := store.months.money(account, _first(now))) is not None and not found.left:
        raise _used_up(account, found, now)


class MonthShare:
    """What one job at work may cost: an equal part of what is left of its account's month, less as others begin. It
    holds in the store what it may cost until it looks again, so that no other coordinator gives that out. `rate` is
    what a second of it costs at most, `spent` what its earlier runs have."""

    def __init__(self, store: AsyncStore, job_id: str, account: str, rate: float, spent: float) -> None:
        self._store, self._job_id, self.account, self._rate = store, job_id, account, rate
        self.before = spent
        self._spent: Callable[[], float] = lambda: spent
        self._limit: Callable[[float, str], None] | None = None
        self._part: MonthPart | None = None
        self._looked = _now()

    async def look(self) -> None:
        self._looked, spent = _now(), self._spent()
        since = _first(self._looked)
        self._part = await self._store.write(
            lambda store: store.months.hold(self._job_id, self.account, since, spent, self._rate * _AHEAD_S)
        )
        self._tell()

    def meter(self, spent: Callable[[], float], limit: Callable[[float, str], None] | None = None) -> None:
        """Have `spent` tell from now on what all runs have cost, and `limit` be told what they may cost, and why."""
        self._spent, self._limit = spent, limit
        self._tell()

    @property
    def kept(self) -> bool:
        return self._limit is not None

    def _tell(self) -> None:
        if (part := self._part) is None or self._limit is None:
            return
        others = f" beside {part.others.at_work} others at work" if part.others.at_work else ""
        self._limit(
            part.most,
            f"the job has cost all that was left for it{others} of the {part.others.limit:.6g} that the jobs of the "
            f"account {self.account} may cost in {self._looked:%B %Y}; {_advice(self._looked)}",
        )

    def leaves(self, seconds: float) -> bool:
        return self._part is None or self._spent() + self._rate * seconds < self._part.most

    def refusal(self) -> BudgetError:
        assert self._part is not None
        others = self._part.others
        found = replace(others, used=others.used + self._spent() - self._part.earlier)
        return _used_up(self.account, found, self._looked)

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(self._pause_s())
            with suppress(StoreError):  # until the next look it has what it holds
                await self.look()
            if not self.leaves(0.0):
                return

    def _pause_s(self) -> float:
        if self._part is None or not self._rate:
            return HEARTBEAT_S
        return min(max((self._part.held - self._spent()) / self._rate, _SHORTEST_S), HEARTBEAT_S)


async def take_share(store: AsyncStore, job_id: str, account: str, sheet: str, cores: int) -> MonthShare:
    """Take the part of a job that begins, on so many cores at the prices of a `sheet`, of what is left of its month."""
    spent = await store.read(lambda store: charged(store.job(job_id).spend, store.ledger(job_id)))
    prices = load_prices(sheet)
    rate = prices.of_machine(cores) + prices.of_energy(modelled_w(cores))
    share = MonthShare(store, job_id, account, rate, spent.money or 0.0)
    await share.look()
    if not share.leaves(LEAST["seconds"]):
        raise share.refusal()
    return share


def _now() -> datetime:
    return datetime.fromtimestamp(time.time(), UTC)


def _first(now: datetime) -> float:
    return now.replace(day=1, hour=0, minute=0, second=0, microsecond=0).timestamp()


def _following(now: datetime) -> datetime:
    later = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0) + timedelta(days=31)
    return later.replace(day=1)


def _advice(now: datetime) -> str:
    return f"ask an administrator for more, or submit it again from {_following(now):%Y-%m-%d} on (UTC)"


def _used_up(account: str, found: MonthMoney, now: datetime) -> BudgetError:
    held = f", with what {found.at_work} at work may still cost," if found.at_work else ""
    rest = ", and the rest is too little for one more" if found.left else ""
    return BudgetError(
        f"the jobs of the account {account} have used{held} {found.used:.6g} of the {found.limit:.6g} that they may "
        f"cost in {now:%B %Y}{rest}; {_advice(now)}"
    )
