"""How fast a network is beside ONNX Runtime, by turns in which both were timed."""

import math
from collections.abc import Sequence
from statistics import mean, median, stdev

from tunery.domain.request import Speed

FEWEST_TURNS, MOST_TURNS = 3, 24
_T_QUANTILES = (
    *(4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18),
    *(2.16, 2.14, 2.13, 2.12, 2.11, 2.10, 2.09, 2.09, 2.08, 2.07, 2.07),
)
"""Those of 97.5 % of Student's t distribution, for 3 turns and more."""
Turn = tuple[float, float]
"""What a compiled network and ONNX Runtime take in one turn, in seconds: medians of a few runs."""


def mean_interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % confidence interval of the geometric mean of three ratios and more.

    >>> [round(bound, 3) for bound in mean_interval([0.9, 0.91, 0.92])]
    [0.885, 0.935]
    """
    logs = [math.log(ratio) for ratio in ratios]
    reach = _T_QUANTILES[len(logs) - FEWEST_TURNS] * stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean(logs) - reach), math.exp(mean(logs) + reach)


def speed_of(turns: Sequence[Turn], threads: int) -> Speed:
    """Return how fast a network is beside ONNX Runtime, whose interval holds the median that decides."""
    ratios = ratios_of(turns)
    low, high = mean_interval(ratios) if len(ratios) >= FEWEST_TURNS else (min(ratios), max(ratios))
    ratio = median(ratios)
    return Speed(1 / ratio, 1 / max(high, ratio), 1 / min(low, ratio), len(turns), threads)


def ratios_of(turns: Sequence[Turn]) -> list[float]:
    return [ours_s / theirs_s for ours_s, theirs_s in turns]
