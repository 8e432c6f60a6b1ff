"""Tasks and records: written once, never changed."""

import math
import sqlite3
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, product, takewhile
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, RowMapping

from tunery._errors import NothingFoundError, StoreError, UsageError
from tunery.domain import Mode, OperatorKey, OperatorPattern, Origin, Outcome, Provenance, Record, Target, Task
from tunery.store._claims import end_claims
from tunery.store._devices import KnownDevice
from tunery.store._ledger import Charge, insert_charges
from tunery.store.database import schema
from tunery.store.database.codec import decode, unpack
from tunery.store.database.connection import Database, batched, insert_new
from tunery.store.records.entries import best_entries, compilers_of, histories, holds, is_default, tells
from tunery.store.records.ranking import Entry, verdicts
from tunery.store.records.rows import (
    Skipped,
    as_late,
    classify,
    provenance_row,
    record_row,
    stored_task,
    target_row,
    task_row,
    to_record,
    workload_row,
)

_records = schema.records
_own = sa.not_(_records.c.imported)
_RUN = (Outcome.OK.value, Outcome.ABANDONED.value)
_HINTS_READ = 200


@dataclass(frozen=True, slots=True)
class Addition:
    """Records of one task, and charges that are stored with them; without a task, charges alone."""

    task: Task | None
    records: tuple[Record, ...]
    charges: tuple[Charge, ...] = ()

    def __post_init__(self) -> None:
        key = "" if self.task is None else self.task.key
        for record in self.records:
            if record.candidate.task_key != key:
                raise StoreError(f"a record of task {record.candidate.task_key} cannot be stored under task {key}")


@dataclass(frozen=True, slots=True)
class Offer:
    """A record of another device of the same type of processor, or of another version of the compiler, that may serve.
    `compiler` is that other version, "" where it is the same."""

    record: Record
    device: KnownDevice
    compiler: str = ""

    @property
    def source(self) -> str:
        facts, by = self.device.facts, f", by {self.compiler}" if self.compiler else ""
        host = self.record.host or self.device.host
        return f"{facts.get('name')} with {facts.get('cores')} cores, host {host}{by}"


@dataclass(frozen=True, slots=True)
class Tried:
    """A measured candidate of a task; `score` is what the cost model said before: higher is faster."""

    candidate: str
    origin: str
    mode: str
    outcome: str
    latency_s: float | None
    score: float | None
    dialect: str
    device: str
    job: str
    at: float


@dataclass(frozen=True, slots=True)
class Trial:
    """A measurement of a job as its history has it: `rank_s` as in ranking, `paid_s` what building and measuring
    took."""

    task_key: str
    candidate_key: str
    mode: str
    outcome: str
    rank_s: float | None
    created_at: float
    paid_s: float


@dataclass(frozen=True, slots=True)
class Failure:
    """A candidate of a job that failed; `created_at` is when that was stored, in seconds since 1970."""

    task_key: str
    candidate_key: str
    outcome: str
    detail: str
    created_at: float


@dataclass(frozen=True, slots=True)
class KnownOperator:
    """What the store knows of one task under one set of conditions. `best_s` is that of the deliverable candidate
    `best`, in a run of `mode`; `baseline_s` is that of the compiler's own schedule."""

    name: str
    kind: str
    operator: str | None
    task_key: str
    workload_key: str
    target: str
    provenance: Provenance
    records: int
    last_at: float
    best: str | None
    best_s: float | None
    baseline_s: float | None
    origin: str
    mode: str


@dataclass(frozen=True, slots=True)
class Standing:
    """The best that is known of a task, and of the compiler's default for it, under one set of conditions.
    `default_final_s` is what the default took beside what won: a default that loses is not verified to the end there.
    `searched` says that a candidate of a search was run: then the default has won, or was beaten."""

    best: Record | None
    baseline: Record | None
    default_final_s: float | None = None
    searched: bool = False


class Records(Database):
    """The store's records and the tasks they belong to."""

    def __init__(self, url: URL, copy: sqlite3.Connection | None = None) -> None:
        super().__init__(url, copy)
        self._known_tasks: set[str] = set()

    def add_record(self, task: Task, record: Record, charges: Iterable[Charge] = ()) -> int:
        return self.add_records(task, [record], charges)

    def add_records(self, task: Task, records: Sequence[Record], charges: Iterable[Charge] = ()) -> int:
        """What comes for a job that this store has lost to another owner is kept, marked `late`, and never the best."""
        return self.add_all([Addition(task, tuple(records), tuple(charges))])[0]

    def add_all(self, additions: Sequence[Addition]) -> list[int]:
        """Add the records of several tasks in one commit and return a number for each: all are stored, or none."""
        at = time.time()
        records = [record for addition in additions for record in addition.records]
        rows = [record_row(record, at) for record in records]
        tasks = {addition.task.key: addition.task for addition in additions if addition.task is not None}
        charges = [charge for addition in additions for charge in addition.charges]

        def add(connection: Connection) -> list[int]:
            insert_tasks(connection, [task for key, task in tasks.items() if key not in self._known_tasks])
            late = self.lost_jobs(connection, {record.job_id for record in records})
            marked = [
                record_row(as_late(record), at) if record.job_id in late else row
                for record, row in zip(records, rows, strict=True)
            ]
            numbers: Iterable[int] = ()
            if marked:
                insert = sa.insert(_records).returning(_records.c.id, sort_by_parameter_order=True)
                numbers = connection.execute(insert, marked).scalars().all()
            insert_charges(connection, charges)
            end_claims(connection, [record for record in records if record.job_id not in late])
            rest = iter(numbers)
            return [max(islice(rest, len(addition.records)), default=0) for addition in additions]

        found = self.write(add)
        self._known_tasks.update(tasks)
        return found

    def records(
        self,
        task_key: str | None = None,
        *,
        provenance: Provenance | None = None,
        device: str | None = None,
        compiler: str | None = None,
        modes: Collection[Mode] | None = None,
        outcomes: Collection[Outcome] | None = None,
        origins: Collection[Origin] | None = None,
        job_id: str | None = None,
        limit: int | None = None,
        imported: bool = False,
    ) -> list[Record]:
        """Return the records that agree with everything given, oldest first; `limit` keeps the latest ones. Imported
        ones only where that is asked for: nobody here has seen what they tell."""
        query = sa.select(_records.c.body, _records.c.document).order_by(_records.c.id.desc()).limit(limit)
        if not imported:
            query = query.where(_own)
        wanted = {"task_key": task_key, "device": device, "compiler": compiler, "job_id": job_id}
        for name, value in wanted.items():
            query = query if value is None else query.where(_records.c[name] == value)
        if provenance is not None:
            query = query.where(holds(provenance))
        for name, chosen in (("mode", modes), ("outcome", outcomes), ("origin", origins)):
            if chosen is not None:
                query = query.where(_records.c[name].in_([one.value for one in chosen]))
        rows = self.read(lambda connection: connection.execute(query).mappings().all())
        return [to_record(row) for row in reversed(rows)]

    def tried(self, task_key: str, account: str | None, limit: int) -> list[Tried]:
        """Return the latest measurements of a task, oldest first; with `account`, those of its jobs."""
        r = _records.c
        score = r.document["measurement"]["context"]["score"].as_float()
        columns = (r.candidate_key, r.origin, r.mode, r.outcome, r.latency_s, score, r.dialect, r.device, r.job_id)
        query = sa.select(*columns, r.created_at).where(
            r.task_key == task_key, _own, r.outcome != Outcome.FILTERED.value
        )
        if account is not None:
            query = query.where(r.job_id.in_(sa.select(schema.jobs.c.job_id).filter_by(account=account)))
        query = query.order_by(r.id.desc()).limit(limit)
        return self.read(lambda connection: [Tried(*tuple(row)) for row in connection.execute(query)][::-1])

    def trials(self, job_id: str) -> list[Trial]:
        measured = _records.c.document["measurement"]
        paid = sa.func.coalesce(measured["build_s"].as_float() + measured["measure_s"].as_float(), 0.0)
        columns = (_records.c.task_key, _records.c.candidate_key, _records.c.mode, _records.c.outcome,
                   _records.c.rank_s, _records.c.created_at, paid)  # fmt: skip
        here = sa.and_(_records.c.job_id == job_id, _own, _records.c.outcome != Outcome.FILTERED.value)
        query = sa.select(*columns).where(here).order_by(_records.c.id)
        return self.read(lambda connection: [Trial(*row) for row in connection.execute(query)])

    def failures(self, job_id: str, limit: int) -> list[Failure]:
        no_failure = (Outcome.OK.value, Outcome.ABANDONED.value, Outcome.FILTERED.value)
        columns = (_records.c.task_key, _records.c.candidate_key, _records.c.outcome,
                   _records.c.document["measurement"]["detail"].as_string(), _records.c.created_at)  # fmt: skip
        here = sa.and_(_records.c.job_id == job_id, _own, _records.c.outcome.not_in(no_failure))
        query = sa.select(*columns).where(here).order_by(_records.c.id.desc()).limit(limit)
        found = self.read(lambda connection: connection.execute(query).all())
        return [Failure(task, key, outcome, detail or "", when) for task, key, outcome, detail, when in found[::-1]]

    def measured_keys(self, task_key: str, provenance: Provenance) -> set[str]:
        """What a filter dropped was not tried, and what came late, for a job that was lost by then, does not count."""
        tried = _records.c.outcome != Outcome.FILTERED.value
        here = (_records.c.task_key == task_key, holds(provenance), tells(), _own)
        query = sa.select(_records.c.candidate_key).where(*here, tried)
        return set(self.read(lambda connection: connection.execute(query.distinct()).scalars().all()))

    def best(
        self, task_key: str, provenance: Provenance, *, limit: int | None = 1, origin: Origin | None = None
    ) -> list[Record]:
        """Return the deliverable records made under exactly these conditions, one per candidate, best first (`ranked`).
        The time it takes grows with what it returns, not with the number of records."""

        return self.best_of([task_key], provenance, limit=limit, origin=origin)[task_key]

    def best_of(
        self, task_keys: Collection[str], provenance: Provenance, *, limit: int | None = 1, origin: Origin | None = None
    ) -> dict[str, list[Record]]:
        def ask(connection: Connection) -> dict[str, list[Record]]:
            found = best_entries(connection, task_keys, provenance, limit, origin)
            rows = _records_of(connection, chain(*found.values()))
            return {key: [rows[entry.row_id] for entry in ranking] for key, ranking in found.items()}

        return self.read(ask)

    def offers(
        self, task_keys: Collection[str], provenance: Provenance, devices: Sequence[KnownDevice], limit: int
    ) -> dict[str, list[Offer]]:
        """Return for each task the verified records of `devices`, and of other versions of the compiler, that are
        faster than the default there. How fast they are here is not known."""
        found: dict[str, list[Offer]] = {key: [] for key in task_keys}
        compilers = self.read(lambda connection: compilers_of(connection, task_keys, provenance.dialect))
        for device, compiler in product(devices, compilers):
            there = replace(provenance, device=device.fingerprint, compiler=compiler)
            if there == provenance:
                continue
            other = compiler if compiler != provenance.compiler else ""
            for key, ranking in self.best_of(task_keys, there, limit=limit).items():
                better = takewhile(lambda record: record.candidate.origin is not Origin.BASELINE, ranking)
                found[key] += (Offer(record, device, other) for record in better)
        for offers in found.values():
            offers.sort(key=lambda offer: offer.record.measurement.latency_s or math.inf)
        return found

    def standings(self, task_keys: Collection[str], provenance: Provenance) -> dict[str, Standing]:
        """Return for each task the best that is known under exactly these conditions; all are asked for at once."""

        def ask(connection: Connection) -> dict[str, Standing]:
            best = best_entries(connection, task_keys, provenance)
            defaults = best_entries(connection, task_keys, provenance, origin=Origin.BASELINE)
            rows = _records_of(connection, chain(*best.values(), *defaults.values()))
            first = {key: rows[each[0].row_id] for key, each in best.items() if each}
            default = {key: rows[each[0].row_id] for key, each in defaults.items() if each}
            found = {key: Standing(first.get(key), default.get(key)) for key in task_keys}
            beaten = [key for key, one in found.items() if one.best and one.best != one.baseline]
            held = _default_finals(connection, beaten, provenance)
            searched = _searched(connection, set(task_keys).difference(beaten), provenance)
            return {
                key: replace(one, default_final_s=held.get(key), searched=key in beaten or key in searched)
                for key, one in found.items()
            }

        return self.read(ask)

    def hints(self, task_key: str, provenance: Provenance, limit: int) -> list[str]:
        """Return what imported records call fast, those of this device first. Neither that they are right nor that they
        are fast is known here."""
        query = (
            sa.select(_records.c.body)
            .where(
                _records.c.task_key == task_key,
                _records.c.imported,
                _records.c.dialect == provenance.dialect,
                _records.c.compiler == provenance.compiler,
                _records.c.outcome == Outcome.OK.value,
                _records.c.origin != Origin.BASELINE.value,
                _records.c.latency_s.is_not(None),
            )
            .order_by(_records.c.device != provenance.device, _records.c.latency_s, _records.c.id)
            .limit(_HINTS_READ)
        )
        bodies = self.read(lambda connection: connection.execute(query).scalars().all())
        return list(dict.fromkeys(unpack(body) for body in bodies))[:limit]

    def imported_workloads(self) -> set[str]:
        query = sa.select(schema.workloads.c.key).where(schema.workloads.c.imported)
        return set(self.read(lambda connection: connection.execute(query).scalars().all()))

    def skipped(self, tasks: Collection[Task], provenance: Provenance) -> dict[str, list[Skipped]]:
        columns = (_records.c.task_key, schema.tasks.c.target_key, _records.c.dialect, _records.c.compiler,
                   _records.c.device, _records.c.settings, _records.c.outcome, _records.c.deliverable,
                   _records.c.imported)  # fmt: skip
        workload = schema.tasks.c.workload_key
        base = sa.select(workload, *columns, sa.func.count()).join_from(_records, schema.tasks)
        names = [column.name for column in columns]

        def ask(connection: Connection) -> dict[str, list[Skipped]]:
            counts: dict[str, Counter[tuple[Any, ...]]] = {task.workload.key: Counter() for task in tasks}
            for some in batched(counts):
                for of, *group, count in connection.execute(
                    base.where(workload.in_(some)).group_by(workload, *columns)
                ):
                    counts[of][tuple(group)] = count
            own = histories(connection, [task.key for task in tasks if counts[task.workload.key]], provenance)
            return {task.key: reasons(task, counts[task.workload.key], own.get(task.key, [])) for task in tasks}

        def reasons(task: Task, counts: Counter[tuple[Any, ...]], own: Sequence[Entry]) -> list[Skipped]:
            used = {entry.candidate_key for entry in verdicts(own) if entry.rank_s is not None}
            here = (task.key, task.target.key, *provenance_row(provenance).values())
            left = Counter(counts)
            left.subtract(
                (*here, entry.outcome, True, False)
                for entry in own
                if entry.deliverable and entry.candidate_key in used
            )
            rows = ({**dict(zip(names, group, strict=True)), "count": count} for group, count in left.items())
            return classify((row for row in rows if row["count"]), task.key, provenance)

        return self.read(ask)

    def tasks(self, *, workload_key: str | None = None, kind: str | None = None) -> list[Task]:
        query = task_query()
        if workload_key is not None:
            query = query.where(schema.tasks.c.workload_key == workload_key)
        if kind is not None:
            query = query.where(schema.workloads.c.kind == kind)
        return [stored_task(row) for row in self.read(lambda connection: connection.execute(query).mappings().all())]

    def task(self, task_key: str) -> Task:
        query = task_query().where(schema.tasks.c.key == task_key)
        row = self.read(lambda connection: connection.execute(query).mappings().first())
        if row is None:
            raise NothingFoundError(f"the store {self.place} knows no task {task_key}; extract its network first")
        return stored_task(row)

    def tasks_like(self, start: str, account: str | None = None) -> list[Task]:
        """Return the tasks whose key, or whose workload's key, is `start`, or else begins with it."""
        keys = (schema.tasks.c.key, schema.tasks.c.workload_key)
        query = task_query().where(sa.or_(*(key.startswith(start, autoescape=True) for key in keys)))

        def ask(connection: Connection) -> Sequence[RowMapping]:
            chosen = query if account is None else query.where(_is_of(connection, account))
            return connection.execute(chosen).mappings().all()

        found = [stored_task(row) for row in self.read(ask)]
        named = {key for task in found for key in (task.key, task.workload.key) if key.startswith(start)}
        if start in named:
            return [task for task in found if start in {task.key, task.workload.key}]
        if len(named) > 1:
            some = ", ".join(sorted(named)[:3])
            raise UsageError(f"{start} is the start of {len(named)} keys ({some}); give more of the one you mean")
        if not found:
            of_candidate = sa.select(_records.c.task_key).where(_records.c.candidate_key == start).limit(1)
            owner = self.read(lambda connection: connection.execute(of_candidate).scalar())
            if account is None and owner:
                raise UsageError(f"{start} is the key of a candidate; give that of its task, {owner}")
            raise NothingFoundError(f"the store {self.place} knows no task {start}; extract its network first")
        return found

    def operators(
        self,
        *,
        account: str | None = None,
        text: str = "",
        pattern: OperatorPattern | None = None,
        workloads: Collection[str] | None = None,
        skip: int = 0,
        limit: int | None = 100,
    ) -> list[KnownOperator]:
        """Return what is known of operators, by kind and name. With `workloads`, those of these workloads and what has
        the same operator key as one of them, in whatever dialect."""
        tasks, kinds, targets, r = schema.tasks, schema.workloads, schema.targets, _records
        conditions = (r.c.task_key, r.c.dialect, r.c.compiler, r.c.device, r.c.settings)
        query = sa.select(*conditions, sa.func.count().label("records"), sa.func.max(r.c.created_at).label("last_at"))
        query = query.where(_own).group_by(*conditions)
        if account is not None:
            query = query.where(r.c.job_id.in_(sa.select(schema.jobs.c.job_id).filter_by(account=account)))
        found = query.subquery()
        described = sa.select(
            found, kinds.c.name, kinds.c.kind, kinds.c.operator, tasks.c.workload_key, targets.c.document
        )
        described = described.join(tasks, tasks.c.key == found.c.task_key)
        described = described.join(kinds, kinds.c.key == tasks.c.workload_key)
        described = described.join(targets, targets.c.key == tasks.c.target_key)
        described = described.order_by(kinds.c.kind, kinds.c.name, *found.c).offset(skip).limit(limit)
        if text:
            names = (kinds.c.name, kinds.c.kind)
            described = described.where(sa.or_(*(name.icontains(text, autoescape=True) for name in names)))
        if workloads is not None:
            mine = kinds.alias()
            same = sa.select(mine.c.operator).where(mine.c.key.in_(workloads), mine.c.operator.is_not(None))
            described = described.where(sa.or_(kinds.c.key.in_(workloads), kinds.c.operator.in_(same)))

        def ask(connection: Connection) -> list[KnownOperator]:
            chosen = described
            if pattern is not None:
                chosen = chosen.where(kinds.c.operator.in_(_matching(connection, pattern)))
            rows = connection.execute(chosen).mappings().all()
            by_conditions: dict[Provenance, list[str]] = {}
            for row in rows:
                by_conditions.setdefault(_provenance(row), []).append(row["task_key"])
            found: dict[tuple[Provenance, Origin | None], dict[str, list[Entry]]] = {
                (conditions, origin): best_entries(connection, keys, conditions, origin=origin)
                for conditions, keys in by_conditions.items()
                for origin in (None, Origin.BASELINE)
            }
            defaults = {
                conditions: _default_finals(connection, keys, conditions) for conditions, keys in by_conditions.items()
            }

            def operator(row: RowMapping, where: Provenance, key: str) -> KnownOperator:
                bests, baselines = (found[where, origin][key] for origin in (None, Origin.BASELINE))
                return _operator(row, bests, baselines, defaults[where].get(key))

            return [operator(row, _provenance(row), row["task_key"]) for row in rows]

        return self.read(ask)


def _is_of(connection: Connection, account: str) -> sa.ColumnElement[bool]:
    jobs, listed, tasks = schema.jobs.c, schema.extractions.c, schema.tasks.c
    requests = connection.execute(sa.select(jobs.request).where(jobs.account == account)).scalars()
    networks = {request["network"] for request in requests if request.get("network")}
    documents = connection.execute(sa.select(listed.document).where(listed.network.in_(networks))).scalars()
    held = {entry["workload"]["key"] for document in documents for entry in document}
    own = sa.select(jobs.job_id).where(jobs.account == account)
    measured = sa.select(_records.c.task_key).where(_records.c.job_id.in_(own))
    return sa.or_(tasks.key.in_(measured), tasks.workload_key.in_(held))


def _matching(connection: Connection, pattern: OperatorPattern) -> list[str]:
    key = schema.workloads.c.operator
    query = sa.select(key).where(key.startswith(f"{pattern.kind}:", autoescape=True)).distinct()
    return [text for text in connection.execute(query).scalars() if pattern.matches(OperatorKey.parse(text))]


def _records_of(connection: Connection, entries: Iterable[Entry]) -> dict[int, Record]:
    query = sa.select(_records.c.id, _records.c.body, _records.c.document)
    ids = {entry.row_id for entry in entries}
    parts = (connection.execute(query.where(_records.c.id.in_(some))).mappings() for some in batched(ids))
    return {row["id"]: to_record(row) for part in parts for row in part}


def _default_finals(connection: Connection, task_keys: Collection[str], provenance: Provenance) -> dict[str, float]:
    query = sa.select(_records.c.task_key, _records.c.latency_s).where(holds(provenance), _own, tells())
    query = query.where(_records.c.mode == Mode.FINAL.value, is_default())
    query = query.where(_records.c.latency_s.is_not(None)).order_by(_records.c.id)
    parts = (connection.execute(query.where(_records.c.task_key.in_(some))) for some in batched(task_keys))
    return {key: latency_s for part in parts for key, latency_s in part}


def _searched(connection: Connection, task_keys: Collection[str], provenance: Provenance) -> set[str]:
    run = sa.select(_records.c.id).where(_records.c.task_key == schema.tasks.c.key, holds(provenance), _own)
    run = run.where(_records.c.outcome.in_(_RUN), _records.c.origin != Origin.BASELINE.value)
    query = sa.select(schema.tasks.c.key).where(run.exists())
    parts = (connection.execute(query.where(schema.tasks.c.key.in_(some))).scalars() for some in batched(task_keys))
    return {key for part in parts for key in part}


def _provenance(row: RowMapping) -> Provenance:
    return Provenance(row["dialect"], row["compiler"], row["device"], row["settings"])


def _operator(
    row: RowMapping, bests: Sequence[Entry], baselines: Sequence[Entry], default_s: float | None
) -> KnownOperator:
    """Return what is known of an operator, whose latencies are told as the ladder tells them of a network's task."""
    best, baseline = next(iter(bests), None), next(iter(baselines), None)
    return KnownOperator(
        row["name"], row["kind"], row["operator"], row["task_key"], row["workload_key"],
        str(decode(Target, row["document"])), _provenance(row), row["records"], row["last_at"],
        best.candidate_key if best else None, best.latency_s if best else None,
        default_s or (baseline.latency_s if baseline else None),
        best.origin if best else "", best.mode if best else "",
    )  # fmt: skip


def task_query() -> sa.Select[tuple[Any, ...]]:
    tasks, workloads, targets = schema.tasks, schema.workloads, schema.targets
    return (
        sa.select(
            workloads.c.document.label("workload"),
            workloads.c.program,
            targets.c.document.label("target"),
            tasks.c.tunable,
        )
        .join_from(tasks, workloads)
        .join(targets)
        .order_by(tasks.c.key)
    )


def insert_tasks(connection: Connection, tasks: Iterable[Task], *, imported: bool = False) -> None:
    """A workload that an import has brought gives way to one of a network here, and one whose operator has no key or
    another one to one with a key."""
    by_key = {task.key: task for task in tasks}.values()
    if not by_key:
        return
    rows = [workload_row(task.workload) | {"imported": imported} for task in by_key]
    known: sa.ColumnElement[Any] = schema.workloads.c.operator
    told: sa.ColumnElement[Any] = sa.literal_column("excluded.operator")
    news = sa.or_(schema.workloads.c.imported, sa.and_(told.is_not(None), known.is_distinct_from(told)))
    insert_new(connection, schema.workloads, rows, replaced=None if imported else news)
    insert_new(connection, schema.targets, [target_row(task.target) for task in by_key])
    other = None if imported else schema.tasks.c.tunable != sa.literal_column("excluded.tunable")
    insert_new(connection, schema.tasks, [task_row(task) for task in by_key], replaced=other)
