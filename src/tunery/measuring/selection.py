"""Which candidates go to the finals, and which of them wins: pure, and the same for the same records."""

from collections.abc import Sequence

from tunery.domain import Candidate, Contender, Measurement, Mode, Origin, Outcome, Record, best_first, interval

RACE_DRIFT = 0.1
"""How much slower than the best in a race a winner of the finals may be: finalists are this much wider than their
intervals. The machine's speed moves by 3 % between two races, and weights that come from memory change the order
(decision 007).
"""

_RACED = {Outcome.OK, Outcome.ABANDONED}


def finalists(records: Sequence[Record], limit: int, drift: float = RACE_DRIFT) -> list[Candidate]:
    """Return the candidates of one task that their race samples do not separate from the best, at most `limit`. A
    candidate is separated when the interval of its median lies above the best's by more than `drift`. Several records
    of one candidate count as one with all their samples; where it was raced alone, what was timed beside others is left
    out. Fastest first, by key where equal; of the provenance the caller chose. Abandoned ones count too: a race gives
    up against an incumbent timed at another moment, for less than `drift` perhaps. Of a contaminated race only the
    smallest sample says how fast the candidate may be, and of a shared one the samples less the deviation that sharing
    was seen to cause."""
    raced: dict[str, list[Record]] = {}
    for record in records:
        measurement = record.measurement
        if measurement.outcome in _RACED and measurement.mode is not Mode.FINAL and measurement.samples_s:
            raced.setdefault(record.candidate.key, []).append(record)
    intervals = {key: _race_interval(found) for key, found in raced.items()}
    ranked = sorted(intervals, key=lambda key: (intervals[key][1], key))
    best = next((key for key in ranked if any(r.measurement.outcome is Outcome.OK for r in raced[key])), None)
    if best is None:
        return []
    bound = intervals[best][2] * (1 + drift)
    return [raced[key][0].candidate for key in ranked if intervals[key][0] <= bound][:limit]


def winner(candidates: Sequence[Candidate], measurements: Sequence[Measurement]) -> int | None:
    """Return the index of the finalist to deliver, None if there is none that may be delivered. Only those count that
    ran in the finals, ended ok and are fully verified; among them `best_first` decides, as it does when a store is
    asked."""
    eligible = [i for i, measurement in enumerate(measurements) if _eligible(measurement)]
    order = best_first([
        Contender(candidates[i].key, measurements[i].paced_s, candidates[i].origin is Origin.BASELINE)
        for i in eligible
    ])  # fmt: skip
    return eligible[order[0]] if order else None


def _race_interval(records: Sequence[Record]) -> tuple[float, float, float]:
    alone = [record for record in records if record.measurement.mode is Mode.RACE]
    counted = [record.measurement for record in alone or records]
    low, middle, high = interval([sample for measurement in counted for sample in measurement.samples_s])
    for measurement in counted:
        if measurement.context.get("contaminated"):
            low = min(low, *measurement.samples_s)
    if not alone:
        low /= 1 + max(float(measurement.context.get("deviation", 0.0)) for measurement in counted)
    return low, middle, high


def _eligible(measurement: Measurement) -> bool:
    verified = measurement.verification is not None and measurement.verification.deliverable
    return (
        verified
        and measurement.outcome is Outcome.OK
        and measurement.mode is Mode.FINAL
        and bool(measurement.samples_s)
    )
