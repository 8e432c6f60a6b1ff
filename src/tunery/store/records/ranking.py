"""Which of a task's records answer "the best known candidate", and which survive pruning: pure functions."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from tunery.domain import Contender, Measurement, Mode, Origin, Outcome, best_first, interval
from tunery.domain.measurement import CLOSE, CLOSE_BASELINE

MODES = (Mode.FINAL, Mode.RACE, Mode.SHARED)
"""From those that outrank all others to those that are outranked by all."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What ranking needs to know of one record. `rank_s` is its place among those of its mode: a final's median at its
    rounds' pace, else the latency. `samples_s` are those of a final; without them its place stands for all of them."""

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
    latency_s = rankable_latency(measurement.latency_s)
    if latency_s is None or measurement.mode is not Mode.FINAL:
        return latency_s
    return rankable_latency(interval(measurement.paced_s)[1]) or latency_s


def ranked(entries: Iterable[Entry], *, verified: bool = True, origin: Origin | None = None) -> list[Entry]:
    """Return one entry per candidate that may be used, best first; `entries` come oldest first. Finals outrank races,
    and races alone those beside others. Among finals `tunery.domain.best_first` decides, among the rest latency, then
    the candidate's key. The latest final is a candidate's latency; a candidate that ever computed a wrong result, or
    whose latest final failed, is out."""
    found = [entry for entry in verdicts(entries, verified=verified) if origin in {None, entry.origin}]
    finals = [entry for entry in found if entry.mode == Mode.FINAL]
    contenders = [
        Contender(entry.candidate_key, entry.samples_s or (_latency(entry),), entry.origin == Origin.BASELINE)
        for entry in finals
    ]
    order = [finals[i] for i in best_first(contenders)]
    return order + sorted((entry for entry in found if entry.mode != Mode.FINAL), key=_order)


def verdicts(entries: Iterable[Entry], *, verified: bool = True) -> list[Entry]:
    """Return the entry that stands for each candidate that may be used, in no order; `entries` come oldest first."""
    histories: dict[str, list[Entry]] = {}
    for entry in entries:
        histories.setdefault(entry.candidate_key, []).append(entry)
    found = (_verdict(history, verified) for history in histories.values())
    return [entry for entry in found if entry is not None]


def tied(entries: Iterable[Entry], origin: Origin | None = None) -> list[Entry]:
    """Return the finals whose samples decide which is the best: those near the fastest; none where it is alone."""
    finals = [e for e in verdicts(entries) if e.mode == Mode.FINAL and origin in {None, e.origin}]
    fastest_s = min(map(_latency, finals), default=math.inf)
    closeness = {Origin.BASELINE.value: CLOSE_BASELINE}
    near = [e for e in finals if _latency(e) <= fastest_s * (1 + closeness.get(e.origin, CLOSE))]
    return near if len(near) > 1 else []


def certain(order: Sequence[Entry], unread_s: Mapping[Mode, float]) -> list[Entry]:
    """Return the part of a ranking that no other record changes; `unread_s` has for each mode the least `rank_s` of
    records that were not read."""
    found: list[Entry] = []
    for mode in MODES:
        part, unread = [entry for entry in order if entry.mode == mode], unread_s[mode]
        fastest_s = min(map(_latency, part), default=0.0)
        if mode is Mode.FINAL and unread <= fastest_s * (1 + CLOSE_BASELINE):
            break  # one of the others may be tied with the fastest
        found += takewhile(lambda entry: _latency(entry) < unread, part)  # noqa: B023 - used at once
        if unread < math.inf:
            break
    return found


def kept(entries: Sequence[Entry], keep: int) -> set[int]:
    """Verified candidates come first; unverified ones fill what is left. Wrong results survive too, or a candidate that
    is known to be wrong could come back and win."""
    order = [entry.candidate_key for entry in (*ranked(entries), *ranked(entries, verified=False))]
    chosen = set(list(dict.fromkeys(order))[:keep])
    finals = [entry for entry in ranked(entries) if entry.mode == Mode.FINAL]
    if keep and finals:  # what is tied is tied with the fastest, which need not come first
        chosen.add(min(finals, key=_order).candidate_key)
    chosen |= {entry.candidate_key for entry in entries if entry.origin == Origin.BASELINE}
    return {entry.row_id for entry in entries if entry.rejected or entry.candidate_key in chosen}


def _verdict(history: Sequence[Entry], verified: bool) -> Entry | None:
    if any(entry.rejected for entry in history):
        return None  # one wrong result outweighs any number of right ones
    finals = [entry for entry in history if entry.mode == Mode.FINAL]
    if finals and finals[-1].outcome != Outcome.OK:
        return None
    for group in (finals, history):
        timed = [entry for entry in group if entry.outcome == Outcome.OK and entry.latency_s is not None]
        usable = [entry for entry in timed if entry.deliverable or not verified]
        if usable:
            return usable[-1]
    return None


def _latency(entry: Entry) -> float:
    place = entry.rank_s if entry.rank_s is not None else entry.latency_s
    return math.inf if place is None else place


def _order(entry: Entry) -> tuple[bool, float, str]:
    return entry.mode == Mode.SHARED, _latency(entry), entry.candidate_key
