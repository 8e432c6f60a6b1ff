"""Which implementation is delivered for each task, and on what evidence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tunery.domain import Choice, Origin, Provenance, Rung, Task
from tunery.store import Skipped, Store


@dataclass(frozen=True, slots=True)
class Known:
    """One choice per task, in their order, and per task key the records that were not used, with the reason.

    `refused` says of tasks, by their keys, why no prediction of the cost model was good enough to be used.
    """

    choices: tuple[Choice, ...]
    skipped: tuple[tuple[str, Skipped], ...]
    refused: Mapping[str, str] = field(default_factory=dict)


def choose(store: Store, tasks: Sequence[Task], provenance: Provenance) -> Known:
    """Return the best verified record of each task, made under exactly these conditions, or the compiler's default."""
    choices: list[Choice] = []
    skipped: list[tuple[str, Skipped]] = []
    for task in tasks:
        ranked = store.best(task.key, provenance, limit=None)
        baseline = next((r for r in ranked if r.candidate.origin is Origin.BASELINE), None)
        baseline_s = baseline.measurement.latency_s if baseline else None
        if ranked:
            best = ranked[0]
            choices.append(Choice(task.key, Rung.EXACT, best.candidate, best.measurement.latency_s, baseline_s))
            continue
        choices.append(Choice(task.key, Rung.DEFAULT))
        skipped.extend((task.key, reason) for reason in store.skipped(task, provenance))
    return Known(tuple(choices), tuple(skipped))
