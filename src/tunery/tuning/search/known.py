"""What is known of one task's candidates: the latest result of each, and what its proposer has not heard yet."""

import math
from collections.abc import KeysView, Sequence

from tunery.dialects import Observation
from tunery.domain import Mode, Origin, Outcome, Record

_RAN = frozenset({Outcome.OK, Outcome.ABANDONED})


class KnownCandidates:
    """One result for each candidate."""

    def __init__(self) -> None:
        self._told: dict[str, Observation] = {}
        self._unheard: dict[str, Observation] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._told

    def __len__(self) -> int:
        return len(self._told)

    def keys(self) -> KeysView[str]:
        return self._told.keys()

    def get(self, key: str) -> Observation | None:
        return self._told.get(key)

    @property
    def default(self) -> Observation | None:
        return next((told for told in self._told.values() if told.candidate.origin is Origin.BASELINE), None)

    def fastest_s(self) -> float | None:
        """Return the latency to beat, measured alone or beside others; None if nothing ran right yet."""
        ran = (one.latency_s for one in self._told.values() if one.outcome in _RAN and one.latency_s)
        return min(ran, default=None)

    def best_s(self) -> float | None:
        ended = (one.latency_s for one in self._told.values() if one.outcome is Outcome.OK and one.latency_s)
        return min(ended, default=None)

    def near_best(self, drift: float) -> list[str]:
        bound_s = (self.best_s() or 0.0) * (1 + drift)
        ran = [t for t in self._told.values() if t.outcome in _RAN and t.latency_s and t.latency_s <= bound_s]
        trials = [told for told in ran if told.candidate.origin is not Origin.BASELINE]
        return [told.candidate.key for told in sorted(trials, key=lambda told: told.latency_s or 0.0)]

    @property
    def any_ended(self) -> bool:
        """Whether a candidate besides the compiler's default was measured to the end: there is a finalist."""
        return any(t.outcome is Outcome.OK and t.candidate.origin is not Origin.BASELINE for t in self._told.values())

    @property
    def any_ran(self) -> bool:
        """Whether a candidate besides the compiler's default ran right, in this job or before."""
        return any(t.outcome in _RAN and t.candidate.origin is not Origin.BASELINE for t in self._told.values())

    def remember(self, told: Observation) -> None:
        self._told[told.candidate.key] = told

    def served(self, told: Observation) -> None:
        """Take in what another job has measured: the proposer is to hear it, and nobody here is charged for it."""
        self._told[told.candidate.key] = self._unheard[told.candidate.key] = told

    def keep(self, told: Observation, *, tell: bool = True) -> bool:
        """Return whether it is the candidate's first result; `tell` says that the proposer is to hear it."""
        key, before = told.candidate.key, self._told.get(told.candidate.key)
        self._told[key] = told
        if tell:
            self._unheard[key] = told
        return before is None

    def consistent(self) -> bool:
        return self._unheard.keys() <= self._told.keys()

    def unheard(self) -> list[Observation]:
        """Return what the proposer has not heard, oldest first, and take it as heard."""
        news, self._unheard = list(self._unheard.values()), {}
        return news

    def opening(self) -> list[Observation]:
        """Return what a new proposer is opened with, fastest first. What was filtered has no row worth a replay, nor
        anything to teach a model: it is left for it to hear."""
        self._unheard = {key: told for key, told in self._told.items() if told.outcome is Outcome.FILTERED}
        history = [told for told in self._told.values() if told.outcome is not Outcome.FILTERED]
        # Rows are asked for the best and an even share of the rest: replaying all would take minutes.
        return sorted(history, key=lambda told: told.latency_s or math.inf)


def tried(records: Sequence[Record], job_id: str) -> dict[str, Outcome]:
    return {
        record.candidate.key: record.measurement.outcome
        for record in records
        if record.job_id == job_id
        and record.candidate.origin is not Origin.BASELINE
        and record.measurement.mode is not Mode.FINAL
    }
