"""Which candidates go to the finals, and which of them wins: pure, and the same for the same records."""

from collections.abc import Sequence

from tunery.domain import Candidate, Measurement, Mode, Origin, Outcome, Record
from tunery.measure.racing import median_interval

RACE_DRIFT = 0.03
"""How far the machine's speed may have moved between two races: finalists are this much wider than their intervals."""


def finalists(records: Sequence[Record], limit: int, drift: float = RACE_DRIFT) -> list[Candidate]:
    """Return the candidates of one task that their race samples do not separate from the best, at most `limit`.

    A candidate is separated when the interval of its median lies above the best's by more than `drift`. Several
    records of one candidate count as one with all their samples. Fastest first, by key where equal; only races whose
    outcome is ok count, of the provenance the caller chose. Of a contaminated race only the smallest sample says how
    fast the candidate may be.
    """
    samples: dict[str, list[float]] = {}
    lowest: dict[str, float] = {}
    candidates: dict[str, Candidate] = {}
    for record in records:
        if record.measurement.outcome is Outcome.OK and record.measurement.mode is Mode.RACE:
            candidates.setdefault(record.candidate.key, record.candidate)
            samples.setdefault(record.candidate.key, []).extend(record.measurement.samples_s)
            if record.measurement.context.get("contaminated"):
                lowest[record.candidate.key] = min(record.measurement.samples_s, default=0.0)
    intervals = {key: _interval(taken) for key, taken in samples.items() if taken}
    if not intervals:
        return []
    ranked = sorted(intervals, key=lambda key: (intervals[key][1], key))
    bound = intervals[ranked[0]][2] * (1 + drift)
    return [candidates[key] for key in ranked if min(intervals[key][0], lowest.get(key, bound + 1)) <= bound][:limit]


def winner(candidates: Sequence[Candidate], measurements: Sequence[Measurement]) -> int | None:
    """Return the index of the finalist to deliver, None if there is none that may be delivered.

    Only those count that ran in the finals, ended ok and are fully verified. All whose interval of the median overlaps
    that of the fastest are tied with it; a tie goes to the baseline if it is among them, else to the smallest
    candidate key, so the same measurements give the same choice in any order.
    """
    intervals = {
        i: _interval(measurement.samples_s) for i, measurement in enumerate(measurements) if _eligible(measurement)
    }
    if not intervals:
        return None
    best = min(intervals, key=lambda i: (intervals[i][1], candidates[i].key))
    tied = [i for i in intervals if intervals[i][0] <= intervals[best][2]]
    return min(tied, key=lambda i: (candidates[i].origin is not Origin.BASELINE, candidates[i].key))


def _eligible(measurement: Measurement) -> bool:
    verified = measurement.verification is not None and measurement.verification.deliverable
    return (
        verified
        and measurement.outcome is Outcome.OK
        and measurement.mode is Mode.FINAL
        and bool(measurement.samples_s)
    )


def _interval(samples: Sequence[float]) -> tuple[float, float, float]:
    """Return low end, median and high end; the full range where the samples are too few for an interval."""
    ordered = sorted(samples)
    half = len(ordered) // 2
    middle = ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
    low, high = median_interval(samples) or (ordered[0], ordered[-1])
    return low, middle, high
