"""Why records of a workload do not answer a query."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tunery.domain import Outcome, Provenance

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
    """`count` records that were not used. `reason` is the first thing that differs: target, dialect, compiler, device,
    settings, imported, failed, unverified or outdone; `found` is its value in these records.
    """

    reason: str
    found: str
    count: int

    def __str__(self) -> str:
        noun = "record" if self.count == 1 else "records"
        return f"{self.count} {noun} {_SENTENCES[self.reason].format(found=self.found)}"


def classify(rows: Iterable[Mapping[str, Any]], task_key: str, wanted: Provenance) -> list[Skipped]:
    """Sum up rows (a `count` of records with equal columns each), largest count first."""
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
