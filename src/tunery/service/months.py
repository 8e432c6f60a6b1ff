"""A month's limit of an account: its jobs at work share what is left of it, and look again while they work."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

from tunery._errors import StoreError, UsageError
from tunery.store import AsyncStore, MonthMoney, MonthPart, Store
from tunery.tuning.job import HEARTBEAT_S

_AHEAD_S = 3 * HEARTBEAT_S
_SHORTEST_S = 0.2
DAY_S = 86_400.0


def month(now: datetime) -> tuple[float, float]:
    """Return from when until when jobs are of the month of `now`; the database's clock may be ahead."""
    return _first(now), now.timestamp() + DAY_S


def refuse_used_up(store: Store, account: str) -> None:
    """Refuse further jobs of an account whose month is used up.

    Raises:
        UsageError: it is, or its jobs at work hold the rest.
    """
    if (found := store.months.money(account, _first(datetime.now(UTC)))) is not None and not found.left:
        raise _used_up(account, found)


class MonthShare:
    """What one job at work may cost: an equal part of what is left of its account's month, less as others begin.

    It holds in the store what it may cost until it looks again, so that no other coordinator gives that out.
    `rate` is what a second of it costs at most, `spent` what its earlier runs have.
    """

    def __init__(self, store: AsyncStore, job_id: str, account: str, rate: float, spent: float) -> None:
        self._store, self._job_id, self.account, self._rate = store, job_id, account, rate
        self.before = spent
        self._spent: Callable[[], float] = lambda: spent
        self._limit: Callable[[float], None] = lambda _: None
        self._part: MonthPart | None = None

    async def look(self) -> None:
        """Take a part of what is left now.

        Raises:
            StoreError: the store does not say.
        """
        since, spent = _first(datetime.now(UTC)), self._spent()
        self._part = await self._store.write(
            lambda store: store.months.hold(self._job_id, self.account, since, spent, self._rate * _AHEAD_S)
        )
        if self._part is not None:
            self._limit(self._part.most)

    def meter(self, spent: Callable[[], float], limit: Callable[[float], None] = lambda _: None) -> None:
        """Have `spent` tell from now on what all runs have cost, and `limit` be told what they may cost."""
        self._spent, self._limit = spent, limit
        if self._part is not None:
            limit(self._part.most)

    def leaves(self, seconds: float) -> bool:
        """Tell whether the job's part is enough for it to work so long."""
        return self._part is None or self._spent() + self._rate * seconds < self._part.most

    def refusal(self) -> UsageError:
        """Return why the job does not go on."""
        assert self._part is not None
        others = self._part.others
        return _used_up(self.account, replace(others, used=others.used + self._spent() - self._part.earlier))

    async def watch(self) -> None:
        """Look again and again until the job has had its part, and nothing more is left for it."""
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


def _first(now: datetime) -> float:
    return now.replace(day=1, hour=0, minute=0, second=0, microsecond=0).timestamp()


def _used_up(account: str, found: MonthMoney) -> UsageError:
    held = f", with what {found.at_work} at work may cost," if found.at_work else ""
    return UsageError(
        f"the jobs of the account {account} have used{held} {found.used:.6g} of its {found.limit:.6g} of this month; "
        "ask an administrator for more"
    )
