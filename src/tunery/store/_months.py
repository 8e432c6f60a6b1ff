"""What the jobs of an account cost in a month, and what those at work hold of the rest: over all coordinators."""

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tunery._errors import NothingFoundError
from tunery.store._accounts import Accounts
from tunery.store._jobs import live_jobs
from tunery.store.database import schema
from tunery.store.database.connection import Database

_jobs, _ledger = schema.jobs, schema.ledger


@dataclass(frozen=True, slots=True)
class MonthMoney:
    """An account's month: its `limit`, and what its jobs have cost, `at_work` of which count with what they hold."""

    limit: float
    used: float
    at_work: int

    @property
    def left(self) -> float:
        """What further work may cost."""
        return max(self.limit - self.used, 0.0)


@dataclass(frozen=True, slots=True)
class MonthPart:
    """What a job at work may cost with all its runs: `held` until it looks again, `most` if nothing changes.

    `others` is how the month stands without it; those at work have equal parts of the rest. `earlier` is what it has
    cost in the months before.
    """

    others: MonthMoney
    earlier: float
    held: float
    most: float


class Months:
    """The months of accounts with a limit. What a job costs counts in the month in which it is charged."""

    def __init__(self, database: Database, accounts: Accounts) -> None:
        self._database, self._accounts = database, accounts
        self._rested: dict[str, tuple[tuple[float, int, float], float]] = {}

    def money(self, account: str, since: float) -> MonthMoney | None:
        """Return how an account's month stands that began then; None where nothing limits it."""
        limit = self._limit(account)
        if limit is None:
            return None
        return self._database.read(lambda connection: self._money(connection, account, since, limit, ""))

    def hold(self, job_id: str, account: str, since: float, spent: float, ahead: float) -> MonthPart | None:
        """Let a job at work, which has cost `spent`, hold a part of what is left: at most what it costs `ahead`.

        A part is kept for one that begins. None where nothing limits the account.
        """
        limit = self._limit(account)
        if limit is None:
            return None
        # Two coordinators, each in a session of PostgreSQL, would else both take the same rest.
        lock = sa.select(schema.accounts.c.name).where(schema.accounts.c.name == account).with_for_update()

        def write(connection: Connection) -> MonthPart:
            connection.execute(lock).all()
            others = self._money(connection, account, since, limit, job_id)
            earlier = _charged(connection, _ledger.c.job_id == job_id, _ledger.c.charged_at < since)
            left, at_work = max(others.left - (spent - earlier), 0.0), others.at_work + 1
            part = MonthPart(others, earlier, spent + min(left / (at_work + 1), ahead), spent + left / at_work)
            mine = sa.update(_jobs).where(_jobs.c.job_id == job_id)
            connection.execute(mine.values(held_money=part.held - earlier))
            return part

        return self._database.write(write)

    def _limit(self, account: str) -> float | None:
        with suppress(NothingFoundError):  # who has no account has no limit
            return self._accounts.get(account).month_money
        return None

    def _money(self, connection: Connection, account: str, since: float, limit: float, but: str) -> MonthMoney:
        held = dict(_held(connection, account))
        held.pop(but, None)
        used = sum(held.values()) + self._cost(connection, account, since, {*held, but})
        return MonthMoney(limit, used, len(held))

    def _cost(self, connection: Connection, account: str, since: float, but: Collection[str]) -> float:
        """Return what an account's jobs `but` some cost since then; it is summed up when one of them was changed."""
        mine = sa.and_(_jobs.c.account == account, _jobs.c.updated_at >= since, _jobs.c.job_id.not_in(but))
        count, latest = connection.execute(
            sa.select(sa.func.count(), sa.func.max(_jobs.c.updated_at)).where(mine)
        ).one()
        state = since, count, latest or 0.0
        if self._rested.get(account, ((), 0.0))[0] != state:
            self._rested[account] = state, _charged(connection, mine, _ledger.c.charged_at >= since)
        return self._rested[account][1]


def _charged(connection: Connection, *which: sa.ColumnElement[bool]) -> float:
    query = sa.select(sa.func.sum(_ledger.c.money)).join(_jobs, _jobs.c.job_id == _ledger.c.job_id).where(*which)
    return connection.execute(query).scalar() or 0.0


def _held(connection: Connection, account: str) -> Iterator[tuple[str, float]]:
    query = sa.select(_jobs.c.job_id, _jobs.c.held_money)
    query = query.where(_jobs.c.account == account, _jobs.c.owner.is_not(sa.null()), _jobs.c.held_money.is_not(None))
    rows = connection.execute(query).all()
    alive = live_jobs(connection, [job_id for job_id, _ in rows])
    yield from ((job_id, money) for job_id, money in rows if job_id in alive)
