"""Which of several timed candidates is called the best: the one rule, for the finals and for every later question."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

CLOSE = 0.005
"""Within the noise of wide intervals much slower candidates would count as equal: a tie costs at most this share."""
CLOSE_BASELINE = 0.25
"""The same for the compiler's default, which has the benefit of the doubt."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A candidate's key, its samples (seconds for one execution each), and whether it is the compiler's default."""

    key: str
    samples_s: tuple[float, ...]
    baseline: bool = False


def best_first(contenders: Sequence[Contender]) -> list[int]:
    """Return the contenders' indices, best first.

    Those whose interval of the median overlaps that of the fastest are tied with it, if their median lies within half
    a percent too, the baseline's within 25 %. They come first: the baseline, then the others by key; then the rest by
    median, by key where equal. So the same samples give the same order in any order of the contenders, and a candidate
    that cannot be told from the baseline does not replace it.
    """
    intervals = [interval(contender.samples_s) for contender in contenders]
    by_median = sorted(range(len(contenders)), key=lambda i: (intervals[i][1], contenders[i].key))
    if not by_median:
        return []
    _, fastest, reach = intervals[by_median[0]]
    overlap = [i for i in by_median if intervals[i][0] <= reach]
    close = {True: CLOSE_BASELINE, False: CLOSE}
    tied = [i for i in overlap if intervals[i][1] <= fastest * (1 + close[contenders[i].baseline])]
    tied.sort(key=lambda i: (not contenders[i].baseline, contenders[i].key))
    return tied + [i for i in by_median if i not in tied]


def interval(samples: Sequence[float]) -> tuple[float, float, float]:
    """Return low end, median and high end; the full range where the samples are too few for a 95 % interval."""
    ordered = sorted(samples)
    half = len(ordered) // 2
    middle = ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
    low, high = median_interval(samples) or (ordered[0], ordered[-1])
    return low, middle, high


def median_interval(samples: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    rank = _rank(len(samples), confidence)
    if rank == 0:
        return None
    ordered = sorted(samples)
    return ordered[rank - 1], ordered[-rank]


@lru_cache(maxsize=4096)
def _rank(n: int, confidence: float) -> int:
    """Return the largest k for which the k-th smallest and k-th largest of n samples enclose the median."""
    rank, below = 0, 0.0
    while True:
        below += math.comb(n, rank) / 2**n
        if 2 * below > 1 - confidence or rank >= n // 2:
            return rank
        rank += 1
