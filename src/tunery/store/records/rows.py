"""Rows of the tables from domain objects, and back; which records could not be used, and why."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy.engine import RowMapping

from tunery.domain import Outcome, Provenance, Record, Target, Task, Workload, canonical_json, digest
from tunery.store.database.codec import decode, encode, pack, unpack
from tunery.store.records.ranking import rank_of, rankable_latency

CONDITIONS = ("dialect", "compiler", "device", "settings")
"""The columns that all must agree for records to be compared."""


def workload_row(workload: Workload) -> dict[str, Any]:
    """Return the row of `workloads`; the program, by far its largest part, is compressed."""
    document = encode(workload)
    del document["program"]
    return {
        "key": workload.key,
        "name": workload.name,
        "kind": workload.kind,
        "program": pack(workload.program),
        "document": document,
        "operator": workload.operator,
    }


def target_row(target: Target) -> dict[str, Any]:
    return {"key": target.key, "document": encode(target)}


def task_row(task: Task) -> dict[str, Any]:
    return {
        "key": task.key,
        "workload_key": task.workload.key,
        "target_key": task.target.key,
        "tunable": task.tunable,
    }


def to_task(document: Mapping[str, Any], program: bytes, target: Mapping[str, Any], tunable: bool, weight: int) -> Task:
    workload = decode(Workload, {**document, "program": unpack(program)})
    return Task(workload, decode(Target, target), weight, tunable)


def stored_task(row: RowMapping) -> Task:
    return to_task(row["workload"], row["program"], row["target"], row["tunable"], weight=1)


def as_late(record: Record) -> Record:
    """Return a record that was made for a job which another owner had by then: it is kept and can win nothing."""
    measurement = record.measurement
    return replace(record, measurement=replace(measurement, context={**measurement.context, "late": True}))


def record_row(record: Record, created_at: float) -> dict[str, Any]:
    """Return the row of `records`: the whole record as a document, and beside it what queries ask for."""
    document = encode(record)
    body = record.candidate.body
    del document["candidate"]["body"]
    bare = {name: part for name, part in document.items() if name != "host"}  # as it is exported
    measurement, verification = record.measurement, record.measurement.verification
    counts = not measurement.context.get("late")
    return {
        "digest": digest(canonical_json(bare), body.encode("utf-8", "surrogatepass"), repr(created_at)),
        "task_key": record.candidate.task_key,
        "candidate_key": record.candidate.key,
        "origin": record.candidate.origin.value,
        "mode": measurement.mode.value,
        "outcome": measurement.outcome.value,
        "latency_s": rankable_latency(measurement.latency_s),
        "rank_s": rank_of(measurement) if counts else None,
        "deliverable": counts
        and measurement.outcome is Outcome.OK
        and verification is not None
        and verification.deliverable,
        "rejected": measurement.outcome is Outcome.WRONG_RESULT
        or (verification is not None and not verification.passed),
        **provenance_row(record.provenance),
        "job_id": record.job_id,
        "created_at": created_at,
        "body": pack(body),
        "document": document,
        "imported": False,
    }


def provenance_row(provenance: Provenance) -> dict[str, str]:
    return {name: getattr(provenance, name) for name in CONDITIONS}


def to_record(row: RowMapping) -> Record:
    document, measurement = row["document"], dict(row["document"]["measurement"])
    if measurement.get("verification"):
        measurement["verification"] = {"version": 0, **measurement["verification"]}
    candidate = {**document["candidate"], "body": unpack(row["body"])}
    return decode(Record, {**document, "candidate": candidate, "measurement": measurement})


_SENTENCES = {
    "target": "measured for another target ({found})",
    "dialect": "of the dialect {found}",
    "compiler": "of another compiler ({found})",
    "device": "measured on another device ({found})",
    "settings": "measured with other settings ({found})",
    "imported": "imported from another store, and not measured here",
    "failed": "ended as {found}",
    "unverified": "whose numerics were not fully checked",
    "outdone": "of candidates that gave a wrong result, failed their final or had no usable timing",
}


@dataclass(frozen=True, slots=True)
class Skipped:
    """`count` records that were not used. `reason` is the first thing that differs, `found` its value in these
    records."""

    reason: str
    found: str
    count: int

    def __str__(self) -> str:
        noun = "record" if self.count == 1 else "records"
        return f"{self.count} {noun} {_SENTENCES[self.reason].format(found=self.found)}"


def classify(rows: Iterable[Mapping[str, Any]], task_key: str, wanted: Provenance) -> list[Skipped]:
    counts: Counter[tuple[str, str]] = Counter()
    for row in rows:
        counts[_reason(row, task_key, wanted)] += row["count"]
    found = [Skipped(reason, value, count) for (reason, value), count in counts.items()]
    return sorted(found, key=lambda item: (-item.count, item.reason, item.found))


def _reason(row: Mapping[str, Any], task_key: str, wanted: Provenance) -> tuple[str, str]:
    if row["task_key"] != task_key:
        return "target", row["target_key"]
    differing: dict[str, Any] = {
        name: row[name] for name in ("dialect", "compiler", "device", "settings") if row[name] != getattr(wanted, name)
    }
    if differing:
        return next(iter(differing.items()))
    if row["imported"]:
        return "imported", ""
    if row["outcome"] != Outcome.OK:
        return "failed", row["outcome"]
    return ("outdone", "") if row["deliverable"] else ("unverified", "")
