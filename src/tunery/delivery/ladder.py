"""Which implementation is delivered for each task, and on what evidence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tunery.domain import Artifact, Choice, Mode, Origin, Outcome, Provenance, Record, Rung, Task
from tunery.store import Skipped, Store

_RUN = frozenset({Outcome.OK, Outcome.ABANDONED})
_NOT_BASELINE = frozenset(Origin) - {Origin.BASELINE}


@dataclass(frozen=True, slots=True)
class KnownTask:
    """One choice per task, in their order, and per task key the records that were not used, with the reason.

    `refused` says of tasks, by their keys, why no prediction of the cost model was good enough to be used. `untried`
    are the keys of tunable tasks of which nothing but the compiler's default was measured. `measured` candidates were
    timed for this answer. `parts` have, by task key, what was compiled of predicted candidates.
    """

    choices: tuple[Choice, ...]
    skipped: tuple[tuple[str, Skipped], ...]
    refused: Mapping[str, str] = field(default_factory=dict)
    untried: frozenset[str] = frozenset()
    measured: int = 0
    parts: Mapping[str, Artifact] = field(default_factory=dict)

    @property
    def open(self) -> frozenset[str]:
        """The keys of tasks for which a prediction is better than what is known."""
        return self.untried | {choice.task_key for choice in self.choices if choice.candidate is None}


def choose(store: Store, tasks: Sequence[Task], provenance: Provenance) -> KnownTask:
    """Return the best verified record of each task, made under exactly these conditions, or the compiler's default."""
    choices: list[Choice] = []
    skipped: list[tuple[str, Skipped]] = []
    untried: set[str] = set()
    for task in tasks:
        best, baseline = _best(store, task, provenance), _best(store, task, provenance, Origin.BASELINE)
        if best is not None:
            baseline_s = None if best == baseline else _untuned_s(store, task, provenance)
            baseline_s = baseline_s or (baseline.measurement.latency_s if baseline else None)
            choices.append(Choice(task.key, Rung.EXACT, best.candidate, best.measurement.latency_s, baseline_s))
            if task.tunable and best == baseline and not _tried(store, task, provenance):
                untried.add(task.key)
            continue
        choices.append(Choice(task.key, Rung.DEFAULT))
        skipped.extend((task.key, reason) for reason in store.skipped(task, provenance))
    return KnownTask(tuple(choices), tuple(skipped), untried=frozenset(untried))


def _best(store: Store, task: Task, provenance: Provenance, origin: Origin | None = None) -> Record | None:
    found = store.best(task.key, provenance, origin=origin)
    return found[0] if found else None


def _untuned_s(store: Store, task: Task, provenance: Provenance) -> float | None:
    """Return the compiler's default in the last finals, timed beside what won; None where there were none.

    A default that loses is not verified to the end there, so of what may be delivered only its first race is known.
    """
    finals = store.records(task.key, provenance=provenance, modes=[Mode.FINAL], origins=[Origin.BASELINE])
    held = [record.measurement.latency_s for record in finals]
    return next((latency_s for latency_s in reversed(held) if latency_s), None)


def _tried(store: Store, task: Task, provenance: Provenance) -> bool:
    """Return whether a candidate of a task's search was run: then the compiler's default has won, or was beaten."""
    return bool(store.records(task.key, provenance=provenance, outcomes=_RUN, origins=_NOT_BASELINE, limit=1))
