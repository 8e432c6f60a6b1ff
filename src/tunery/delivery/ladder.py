"""Which implementation is delivered for each task, and on what evidence."""

from collections.abc import Sequence
from dataclasses import dataclass

from tunery.domain import Artifact, Choice, Mode, Origin, Outcome, Provenance, Record, Rung, Task
from tunery.domain.request import TaskShare
from tunery.measuring.inputs import size_bytes
from tunery.store import Skipped, Store

_RUN = frozenset({Outcome.OK, Outcome.ABANDONED})
_NOT_BASELINE = frozenset(Origin) - {Origin.BASELINE}


@dataclass(frozen=True, slots=True)
class KnownTask:
    """What is delivered for a task, and on what evidence.

    `skipped` are its records that were not used, with the reason. `untried`: it is tunable, and nothing but the
    compiler's default was measured. `refused` says why no prediction of the cost model was good enough to be used;
    `measured` candidates were timed for this answer; `part` is what was compiled of a predicted candidate.
    """

    task: Task
    choice: Choice
    skipped: tuple[Skipped, ...] = ()
    untried: bool = False
    refused: str = ""
    measured: int = 0
    part: Artifact | None = None

    @property
    def open(self) -> bool:
        """Whether a prediction is better than what was measured."""
        return self.untried or self.choice.candidate is None

    @property
    def predicted(self) -> bool:
        """Whether what is delivered was not measured."""
        return self.choice.rung is Rung.ZERO_SHOT

    @property
    def untuned(self) -> bool:
        """Whether it could be tuned, and was neither searched nor predicted."""
        return self.task.tunable and self.open and not self.predicted

    def covered(self, used: str | None) -> tuple[str, str | None]:
        """Return the rung that a compiled file has, which `used` this candidate: None where the default took over."""
        return (self.choice.rung if used else Rung.DEFAULT).value, used

    @property
    def share(self) -> TaskShare:
        """The task's part in its network, with what it is known to take."""
        workload = self.task.workload
        return TaskShare(
            workload.name, workload.key, workload.kind, self.task.weight, workload.flop, self.choice.latency_s,
            size_bytes(workload.arguments),
        )  # fmt: skip


def choose(store: Store, tasks: Sequence[Task], provenance: Provenance) -> tuple[KnownTask, ...]:
    """Return the best verified record of each task, made under exactly these conditions, or the compiler's default."""
    return tuple(_choose(store, task, provenance) for task in tasks)


def _choose(store: Store, task: Task, provenance: Provenance) -> KnownTask:
    best, baseline = _best(store, task, provenance), _best(store, task, provenance, Origin.BASELINE)
    if best is None:
        return KnownTask(task, Choice(task.key, Rung.DEFAULT), tuple(store.skipped(task, provenance)))
    baseline_s = None if best == baseline else _untuned_s(store, task, provenance)
    baseline_s = baseline_s or (baseline.measurement.latency_s if baseline else None)
    choice = Choice(task.key, Rung.EXACT, best.candidate, best.measurement.latency_s, baseline_s)
    untried = task.tunable and best == baseline and not _tried(store, task, provenance)
    return KnownTask(task, choice, untried=untried)


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
