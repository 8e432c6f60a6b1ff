"""What is known of one task's candidates: the latest result of each, and what its proposer has not heard yet."""

import math
from collections.abc import KeysView, Sequence

from tunery.dialects import Observation
from tunery.domain import Mode, Origin, Outcome, Record

_RAN = frozenset({Outcome.OK, Outcome.ABANDONED})


class KnownCandidates:
    """One result for each candidate."""

    def __init__(self) -> None:
        self._results: dict[str, Observation] = {}
        self._unheard: dict[str, Observation] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._results

    def __len__(self) -> int:
        return len(self._results)

    def keys(self) -> KeysView[str]:
        return self._results.keys()

    def get(self, key: str) -> Observation | None:
        return self._results.get(key)

    @property
    def default(self) -> Observation | None:
        return next((known for known in self._results.values() if not _is_trial(known)), None)

    def fastest_s(self) -> float | None:
        """Return the latency to beat, measured alone or beside others; None if nothing ran right yet."""
        return min((known.latency_s for known in self._ran() if known.latency_s), default=None)

    def best_s(self) -> float | None:
        ended = (known.latency_s for known in self._ran() if known.outcome is Outcome.OK and known.latency_s)
        return min(ended, default=None)

    def near_best(self, drift: float) -> list[str]:
        bound_s = (self.best_s() or 0.0) * (1 + drift)
        near = [known for known in self._ran() if _is_trial(known) and 0.0 < (known.latency_s or 0.0) <= bound_s]
        return [known.candidate.key for known in sorted(near, key=lambda known: known.latency_s or 0.0)]

    @property
    def any_ended(self) -> bool:
        """Whether a candidate besides the compiler's default was measured to the end: there is a finalist."""
        return any(known.outcome is Outcome.OK and _is_trial(known) for known in self._results.values())

    @property
    def any_ran(self) -> bool:
        """Whether a candidate besides the compiler's default ran right, in this job or before."""
        return any(map(_is_trial, self._ran()))

    def _ran(self) -> list[Observation]:
        return [known for known in self._results.values() if known.outcome in _RAN]

    def remember(self, result: Observation) -> None:
        self._results[result.candidate.key] = result

    def served(self, result: Observation) -> None:
        """Take in what another job has measured: the proposer is to hear it, and nobody here is charged for it."""
        self._results[result.candidate.key] = self._unheard[result.candidate.key] = result

    def keep(self, result: Observation, *, tell: bool = True) -> bool:
        """Return whether it is the candidate's first result; `tell` says that the proposer is to hear it."""
        key, before = result.candidate.key, self._results.get(result.candidate.key)
        self._results[key] = result
        if tell:
            self._unheard[key] = result
        return before is None

    def unheard(self) -> list[Observation]:
        """Return what the proposer has not heard, oldest first, and take it as heard."""
        news, self._unheard = list(self._unheard.values()), {}
        return news

    def opening(self) -> list[Observation]:
        """Return what a new proposer is opened with, fastest first. What was filtered has no row worth a replay, nor
        anything to teach a model: it is left for it to hear."""
        self._unheard = {key: result for key, result in self._results.items() if result.outcome is Outcome.FILTERED}
        history = [result for result in self._results.values() if result.outcome is not Outcome.FILTERED]
        # Rows are asked for the best and an even share of the rest: replaying all would take minutes.
        return sorted(history, key=lambda result: result.latency_s or math.inf)


def _is_trial(result: Observation) -> bool:
    return result.candidate.origin is not Origin.BASELINE


def tried(records: Sequence[Record], job_id: str) -> dict[str, Outcome]:
    return {
        record.candidate.key: record.measurement.outcome
        for record in records
        if record.job_id == job_id
        and record.candidate.origin is not Origin.BASELINE
        and record.measurement.mode is not Mode.FINAL
    }
