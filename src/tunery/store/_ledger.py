"""What jobs have spent, by task, stage and outcome."""

import sqlite3
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection

from tunery.store.database import schema
from tunery.store.database.connection import Database

_id = schema.ledger.c.id
_LAST = 2**63 - 1
_TOTALS_BY = ("stage", "outcome", "host")
_SUMMED = ("wall_s", "core_s", "device_s", "joules", "money")
_OF_NOTHING = {**dict.fromkeys(("job_id", "task_key", "stage", "outcome", "currency"), ""), "helped": False}


@dataclass(frozen=True, slots=True)
class Charge:
    """What `count` runs of a stage have cost; `joules` is None where unknown, `modelled` where they were not measured.
    `money` is at the prices of then. `helped` says that it went into candidates that were the best of their task when
    they were measured. `task_key` is "" for the whole network; `host` is "" where several machines did it."""

    job_id: str
    task_key: str
    stage: str
    outcome: str
    wall_s: float
    core_s: float
    device_s: float
    joules: float | None = None
    modelled: bool = False
    count: int = 1
    money: float | None = None
    currency: str = ""
    helped: bool = False
    host: str = ""


class Ledger(Database):
    """The store's ledger."""

    def __init__(self, url: URL, copy: sqlite3.Connection | None = None) -> None:
        super().__init__(url, copy)
        self._totals = _Totals()

    def charge_all(self, charges: Iterable[Charge]) -> None:
        """Charge several stages at the price of one commit."""
        rows = list(charges)
        self.write(lambda connection: insert_charges(connection, rows))

    def ledger(self, job_id: str | None = None, *, account: str | None = None) -> list[Charge]:
        """Return the sums by (job, task, stage, outcome, currency, helped, host), in that order."""
        table = schema.ledger
        group = [table.c[name] for name in ("job_id", "task_key", "stage", "outcome", "currency", "helped", "host")]
        query = sa.select(*group, *_sums(table))
        if job_id is not None:
            query = query.where(table.c.job_id == job_id)
        if account is not None:
            mine = sa.select(schema.jobs.c.job_id).where(schema.jobs.c.account == account)
            query = query.where(table.c.job_id.in_(mine))
        query = query.group_by(*group).order_by(*group)
        rows = self.read(lambda connection: connection.execute(query).mappings().all())
        return [_charge(dict(row)) for row in rows]

    def ledger_sums(self) -> list[Charge]:
        """Return the sums of all that was spent, by (stage, outcome). An open store reads each row once for it, but for
        the latest."""
        return [*_summed(self._totals.read(self), ("stage", "outcome")).values()]

    def ledger_by_host(self) -> dict[str, Charge]:
        return {host: charge for (host,), charge in _summed(self._totals.read(self), ("host",)).items()}

    def usage(self, since: float, until: float, account: str | None = None) -> dict[str, list[Charge]]:
        """Return what was charged to jobs between two times, by account; the sums are by (stage, outcome, currency,
        helped)."""
        jobs, table = schema.jobs, schema.ledger
        group = (jobs.c.account, table.c.stage, table.c.outcome, table.c.currency, table.c.helped)
        query = sa.select(*group, *_sums(table)).join(jobs, jobs.c.job_id == table.c.job_id)
        query = query.where(table.c.charged_at >= since, table.c.charged_at < until)
        if account is not None:
            query = query.where(jobs.c.account == account)
        query = query.group_by(*group).order_by(*group)
        found: dict[str, list[Charge]] = {}
        for row in self.read(lambda connection: connection.execute(query).mappings().all()):
            fields = {**row, "job_id": "", "task_key": ""}
            found.setdefault(fields.pop("account"), []).append(_charge(fields))
        return found


class _Totals:
    """The sums of all rows by stage, outcome and host. Rows are only ever added, so most are read once. Another process
    may commit a row after one with a larger number, but not after so many more."""

    _UNSETTLED = 10_000

    def __init__(self) -> None:
        self._counted = 0
        self._settled: list[Charge] = []
        self._lock = threading.Lock()

    def read(self, database: Database) -> list[Charge]:
        with self._lock:
            newest = database.read(lambda connection: connection.execute(sa.select(sa.func.max(_id))).scalar()) or 0
            if (settled := newest - self._UNSETTLED) > self._counted:
                more = _between(database, self._counted, settled)
                self._settled = [*_summed([*self._settled, *more], _TOTALS_BY).values()]
                self._counted = settled
            return [*self._settled, *_between(database, self._counted, _LAST)]


def _between(database: Database, after: int, last: int) -> list[Charge]:
    group = [schema.ledger.c[name] for name in _TOTALS_BY]
    query = sa.select(*group, *_sums(schema.ledger)).where(_id > after, _id <= last).group_by(*group)
    rows = database.read(lambda connection: connection.execute(query).mappings().all())
    return [_charge({**_OF_NOTHING, **row}) for row in rows]


def _summed(charges: Iterable[Charge], by: Sequence[str]) -> dict[tuple[str, ...], Charge]:
    """Return sums of charges by some of their fields; the others are ""."""
    found: dict[tuple[str, ...], Charge] = {}
    for charge in charges:
        key = tuple(getattr(charge, name) for name in by)
        before = found.get(key)
        amounts = {name: _plus(getattr(before, name, None), getattr(charge, name)) for name in (*_SUMMED, "count")}
        modelled = charge.modelled or (before is not None and before.modelled)
        found[key] = Charge(**{**_OF_NOTHING, **dict(zip(by, key, strict=True)), **amounts, "modelled": modelled})
    return dict(sorted(found.items()))


def _plus(first: float | None, second: float | None) -> float | None:
    return first if second is None else second if first is None else first + second


def _sums(table: sa.Table) -> list[sa.ColumnElement[Any]]:
    return [
        *(sa.func.sum(table.c[name]).label(name) for name in _SUMMED),
        sa.func.max(sa.cast(table.c.modelled, sa.Integer)).label("modelled"),
        sa.func.sum(table.c.count).label("count"),
    ]


def _charge(row: Mapping[str, Any]) -> Charge:
    kinds = {"modelled": bool, "helped": bool, "count": int}
    return Charge(**{**row, **{name: kind(row[name]) for name, kind in kinds.items()}})


def insert_charges(connection: Connection, charges: Iterable[Charge]) -> None:
    now = time.time()
    rows = [{**asdict(charge), "outcome": str(charge.outcome), "charged_at": now} for charge in charges]
    if rows:
        connection.execute(sa.insert(schema.ledger), rows)
