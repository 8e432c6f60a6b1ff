"""Which of a task's records answer "the best known candidate", and which survive pruning: pure functions."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tunery.domain import Contender, Measurement, Mode, Origin, Outcome, best_first, interval


@dataclass(frozen=True, slots=True)
class Entry:
    """What ranking needs to know of one record; all entries of a call share task and provenance.

    `rank_s` is its place among those of its mode: a final's median at its rounds' pace, else the latency. `samples_s`
    are those of a final, at their rounds' pace; without them its latency stands for all of them.
    """

    row_id: int
    candidate_key: str
    origin: str
    mode: str
    outcome: str
    latency_s: float | None
    deliverable: bool
    rejected: bool
    rank_s: float | None = None
    samples_s: tuple[float, ...] = ()


def rankable_latency(latency_s: float | None) -> float | None:
    """Return the latency if it can win anything: a clock that gave zero, a negative or no number measured nothing."""
    return latency_s if latency_s is not None and math.isfinite(latency_s) and latency_s > 0 else None


def rank_of(measurement: Measurement) -> float | None:
    """Return the `rank_s` of a record's entry; None if it can win nothing."""
    latency_s = rankable_latency(measurement.latency_s)
    if latency_s is None or measurement.mode is not Mode.FINAL:
        return latency_s
    return rankable_latency(interval(measurement.paced_s)[1]) or latency_s


def ranked(entries: Iterable[Entry], *, verified: bool = True) -> list[Entry]:
    """Return one entry per candidate that may be used, best first; `entries` come oldest first.

    Finals outrank races, and races alone those beside others. Among finals `tunery.domain.best_first` decides (ties
    included), among the rest latency, then the candidate's key. The latest final is a candidate's latency; a candidate
    that ever computed a wrong result, or whose latest final failed, is out. Without `verified`, records that nobody
    checked count too.
    """
    found = verdicts(entries, verified=verified)
    finals = finals_in_order([entry for entry in found if entry.mode == Mode.FINAL])
    return finals + sorted((entry for entry in found if entry.mode != Mode.FINAL), key=_order)


def verdicts(entries: Iterable[Entry], *, verified: bool = True) -> list[Entry]:
    """Return the entry that stands for each candidate that may be used, in no order; `entries` come oldest first."""
    found = (_verdict(history, verified) for history in _by_candidate(entries).values())
    return [entry for entry in found if entry is not None]


def finals_in_order(finals: Sequence[Entry]) -> list[Entry]:
    """Return finals of different candidates, best first."""
    return [finals[i] for i in best_first([_contender(entry) for entry in finals])]


def kept(entries: Sequence[Entry], keep: int) -> set[int]:
    """Return the row ids that survive pruning: all records of the `keep` best candidates and of the baselines.

    Verified candidates come first; unverified ones fill what is left. Wrong results survive too, or a candidate that is
    known to be wrong could come back and win.
    """
    order = [entry.candidate_key for entry in (*ranked(entries), *ranked(entries, verified=False))]
    chosen = set(list(dict.fromkeys(order))[:keep])
    finals = [entry for entry in ranked(entries) if entry.mode == Mode.FINAL]
    if keep and finals:  # what is tied is tied with the fastest, which need not come first
        chosen.add(min(finals, key=_by_median).candidate_key)
    chosen |= {entry.candidate_key for entry in entries if entry.origin == Origin.BASELINE}
    return {entry.row_id for entry in entries if entry.rejected or entry.candidate_key in chosen}


def _by_candidate(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    histories: dict[str, list[Entry]] = {}
    for entry in entries:
        histories.setdefault(entry.candidate_key, []).append(entry)
    return histories


def _verdict(history: Sequence[Entry], verified: bool) -> Entry | None:
    if any(entry.rejected for entry in history):
        return None  # one wrong result outweighs any number of right ones
    finals = [entry for entry in history if entry.mode == Mode.FINAL]
    if finals and finals[-1].outcome != Outcome.OK:
        return None
    for group in (finals, history):
        usable = [entry for entry in group if _usable(entry, verified)]
        if usable:
            return usable[-1]
    return None


def _usable(entry: Entry, verified: bool) -> bool:
    return entry.outcome == Outcome.OK and entry.latency_s is not None and (entry.deliverable or not verified)


def _contender(entry: Entry) -> Contender:
    return Contender(entry.candidate_key, entry.samples_s or (_latency(entry),), entry.origin == Origin.BASELINE)


def _by_median(entry: Entry) -> tuple[float, str]:
    return _latency(entry), entry.candidate_key


def _latency(entry: Entry) -> float:
    return math.inf if entry.latency_s is None else entry.latency_s


def _order(entry: Entry) -> tuple[bool, float, str]:
    return entry.mode == Mode.SHARED, _latency(entry), entry.candidate_key
