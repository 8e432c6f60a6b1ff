"""Accounts, their tokens and uploads, what they did, and what their jobs cost in a month."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from tunery._errors import NothingFoundError, UsageError
from tunery.store._jobs import live_jobs
from tunery.store.database import schema
from tunery.store.database.connection import Database, database_time, upsert

_accounts, _tokens, _uploads, _audit = schema.accounts, schema.tokens, schema.uploads, schema.audit
ACTIVE, DISABLED, DELETED = "active", "disabled", "deleted"
"""States of an account. The tokens of a disabled one do not hold; a deleted one keeps its name for ever."""


@dataclass(frozen=True, slots=True)
class StoredAccount:
    """An account and its share of the machines. `month_money` is how much its jobs may cost in a calendar month (None:
    no limit), `upload_bytes` how much it may keep uploaded (None: what the service allows everybody)."""

    name: str
    role: str
    weight: float = 1.0
    priority: int = 0
    month_money: float | None = None
    upload_bytes: int | None = None
    state: str = ACTIVE


@dataclass(frozen=True, slots=True)
class StoredToken:
    """A token of an account: the SHA-256 of its text, and when it ends (database's clock; None: never). `made_by` is
    the digest of the token of the same account that made it ("": none did), with which it ends."""

    digest: str
    account: str
    label: str
    role: str
    created_at: float = 0.0
    expires_at: float | None = None
    made_by: str = ""


@dataclass(frozen=True, slots=True)
class Upload:
    """A model that an account has uploaded."""

    digest: str
    name: str
    size_bytes: int
    created_at: float


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """What an account has done over the network: the call, from which address, and how it was answered."""

    account: str
    source: str
    action: str
    status: int
    id: int = 0
    at: float = 0.0


class Accounts:
    """The store's accounts and tokens. A token is known by its digest only: nobody can read it out of the store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> list[StoredAccount]:
        query = sa.select(_accounts).where(_accounts.c.state != DELETED).order_by(_accounts.c.name)
        return [_account(row) for row in self._rows(query)]

    def get(self, name: str) -> StoredAccount:
        rows = self._rows(sa.select(_accounts).where(_accounts.c.name == name))
        if not rows:
            raise NothingFoundError(f"there is no account {name!r}")
        return _account(rows[0])

    def create(self, account: StoredAccount) -> None:
        def insert(connection: Connection) -> None:
            if connection.execute(sa.select(_accounts).where(_accounts.c.name == account.name)).first():
                raise UsageError(f"there is or was an account {account.name!r} already; choose another name")
            row = {name: getattr(account, name) for name in StoredAccount.__dataclass_fields__}
            connection.execute(sa.insert(_accounts).values(**row, created_at=database_time(connection)))

        self._database.write(insert)

    def change(self, name: str, values: Mapping[str, Any], *, keep_one: str = "") -> StoredAccount:
        """Change some of an account's fields; the last active one of a role that is to stay keeps it. A deleted one
        loses its tokens and uploads."""
        change = sa.update(_accounts).where(_accounts.c.name == name).values(**values)
        keeps = sa.and_(_accounts.c.role == keep_one, _accounts.c.state == ACTIVE)
        holders = sa.select(_accounts.c.name).where(keeps).with_for_update()

        def write(connection: Connection) -> None:
            leaves = values.get("role", keep_one) != keep_one or values.get("state", ACTIVE) != ACTIVE
            if leaves and connection.execute(holders).scalars().all() == [name]:
                raise UsageError(f"{name} is the last account of the role {keep_one}; give it to another one first")
            connection.execute(change)
            if values.get("state") == DELETED:
                connection.execute(sa.delete(_tokens).where(_tokens.c.account == name))
                connection.execute(sa.delete(_uploads).where(_uploads.c.account == name))

        if values:
            self._database.write(write)
        return self.get(name)

    def add_token(self, token: StoredToken, lifetime_s: float | None) -> StoredToken:
        """Store a token that ends `lifetime_s` from now (None: never), or at its end if that is sooner; return it."""

        def insert(connection: Connection) -> tuple[float, float | None]:
            now = database_time(connection)
            ends = [token.expires_at, None if lifetime_s is None else now + lifetime_s]
            until = min((end for end in ends if end is not None), default=None)
            row = {name: getattr(token, name) for name in ("digest", "account", "label", "role", "made_by")}
            connection.execute(sa.insert(_tokens).values(**row, created_at=now, expires_at=until))
            return now, until

        created, until = self._database.write(insert)
        return replace(token, created_at=created, expires_at=until)

    def tokens(self, account: str) -> list[StoredToken]:
        query = sa.select(_tokens).where(_tokens.c.account == account).order_by(_tokens.c.created_at, _tokens.c.digest)
        return [StoredToken(**row) for row in self._rows(query)]

    def drop_token(self, account: str, digest: str, keep: str = "") -> None:
        """End a token whose digest begins so, with those that it made, but for the one of the digest `keep`."""
        mine = sa.and_(_tokens.c.account == account, _tokens.c.digest.startswith(digest, autoescape=True))
        ended = sa.select(_tokens.c.digest).where(mine).cte("ended", recursive=True)
        ended = ended.union(
            sa.select(_tokens.c.digest).where(_tokens.c.made_by == ended.c.digest, _tokens.c.digest != keep)
        )

        def end(connection: Connection) -> bool:
            gone = connection.execute(sa.select(ended.c.digest)).scalars().all()
            connection.execute(sa.delete(_tokens).where(_tokens.c.digest.in_(gone)))
            return bool(gone)

        if not self._database.write(end):
            raise NothingFoundError(f"there is no token {digest!r}")

    def who(self, digest: str) -> tuple[StoredAccount, StoredToken] | None:
        def ask(connection: Connection) -> tuple[StoredAccount, StoredToken] | None:
            row = connection.execute(sa.select(_tokens).where(_tokens.c.digest == digest)).mappings().first()
            if row is None or (row["expires_at"] is not None and row["expires_at"] <= database_time(connection)):
                return None
            owner = sa.select(_accounts).where(_accounts.c.name == row["account"])
            account = _account(connection.execute(owner).mappings().one())
            return (account, StoredToken(**row)) if account.state == ACTIVE else None

        return self._database.read(ask)

    def add_upload(self, account: str, digest: str, name: str, size_bytes: int) -> None:
        row = {"account": account, "digest": digest, "name": name, "size_bytes": size_bytes}

        def insert(connection: Connection) -> None:
            upsert(connection, _uploads, {**row, "created_at": database_time(connection)}, replaced=["name"])

        self._database.write(insert)

    def upload(self, account: str, digest: str) -> Upload:
        query = sa.select(_uploads).where(_uploads.c.account == account, _uploads.c.digest == digest)
        rows = self._rows(query)
        if not rows:
            raise NothingFoundError(f"there is no blob sha256:{digest}; upload it first")
        return Upload(*(rows[0][name] for name in Upload.__dataclass_fields__))

    def uploads(self, account: str) -> list[Upload]:
        query = sa.select(_uploads).where(_uploads.c.account == account).order_by(_uploads.c.created_at)
        return [Upload(*(row[name] for name in Upload.__dataclass_fields__)) for row in self._rows(query)]

    def drop_uploads(self, digests: Sequence[str], account: str | None = None) -> set[str]:
        mine = _uploads.c.digest.in_(digests)
        gone = mine if account is None else sa.and_(mine, _uploads.c.account == account)

        def drop(connection: Connection) -> set[str]:
            connection.execute(sa.delete(_uploads).where(gone))
            return set(digests) - set(connection.execute(sa.select(_uploads.c.digest).where(mine)).scalars())

        return self._database.write(drop)

    def note(self, entry: AuditEntry) -> None:
        """Add to what accounts have done; nothing takes it away again."""
        row = {name: getattr(entry, name) for name in ("account", "source", "action", "status")}
        self._database.write(
            lambda connection: connection.execute(sa.insert(_audit).values(**row, at=database_time(connection)))
        )

    def audit(self, limit: int, before: int | None = None) -> list[AuditEntry]:
        query = sa.select(_audit).order_by(_audit.c.id.desc()).limit(limit)
        if before is not None:
            query = query.where(_audit.c.id < before)
        return [AuditEntry(**row) for row in self._rows(query)]

    def _rows(self, query: sa.Select[Any]) -> list[RowMapping]:
        return list(self._database.read(lambda connection: connection.execute(query).mappings().all()))


def _account(row: RowMapping) -> StoredAccount:
    return StoredAccount(**{name: row[name] for name in StoredAccount.__dataclass_fields__})


_jobs, _ledger = schema.jobs, schema.ledger


@dataclass(frozen=True, slots=True)
class MonthMoney:
    """An account's month: its `limit`, and what its jobs have cost, `at_work` of which count with what they hold."""

    limit: float
    used: float
    at_work: int

    @property
    def left(self) -> float:
        return max(self.limit - self.used, 0.0)


@dataclass(frozen=True, slots=True)
class MonthPart:
    """What a job at work may cost with all its runs: `held` until it looks again, `most` if nothing changes. `others`
    is how the month stands without it; those at work have equal parts of the rest."""

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
        limit = self._limit(account)
        if limit is None:
            return None
        return self._database.read(lambda connection: self._money(connection, account, since, limit, ""))

    def hold(self, job_id: str, account: str, since: float, spent: float, ahead: float) -> MonthPart | None:
        """Let a job at work, which has cost `spent`, hold a part of what is left: at most what it costs `ahead`. A part
        is kept for one that begins."""
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
