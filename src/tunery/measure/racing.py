"""When to stop sampling a candidate: a pure rule on its samples (idea: Raced Profiles, LCTES 2009).

Let m be the incumbent's median, and S(e) the probability that one sample lies more than the relative excess e above its
own median. A candidate that is no slower than the incumbent shows n samples that are all above m·(1+e) with at most

    S(e) · max(S(e), persistence)^(n-1)

where `persistence` is the probability that a disturbed sample is followed by another. If that is below the n-th share
error/(n(n+1)) of the error probability, the candidate is abandoned; the shares sum to `error` over any number of looks,
so the whole race abandons a true winner with at most that probability, as long as S bounds the noise. For S we take
0.5·(1+e/noise)^-2: at e=0 it is the sign test, which needs no assumption; the quadratic tail is heavier than any noise
a quiet machine shows. `noise` and `persistence` are learned from completed races (`tunery.measure.noise`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tunery.domain import median_interval


class Verdict(StrEnum):
    """What to do after the latest sample."""

    CONTINUE = "continue"
    ABANDON = "abandon"
    ENOUGH = "enough"


@dataclass(frozen=True, slots=True)
class Rule:
    """`error` bounds how often a candidate that is no slower than the incumbent is abandoned.

    `precision` is the half width of the median's confidence interval (at `confidence`) that counts as tight. The caps
    are `max_samples` and `max_s` seconds of timed running, the latter not before `min_samples`, unless they took four
    times as long. `noise` and `persistence` describe the machine (module docstring); `drift` is how far its speed may
    have moved since the incumbent was measured.
    """

    error: float = 0.01
    precision: float = 0.01
    confidence: float = 0.95
    min_samples: int = 3
    max_samples: int = 10
    max_s: float = 0.05
    noise: float = 0.03
    persistence: float = 0.3
    drift: float = 0.01


def decide(samples: Sequence[float], incumbent: float | None, rule: Rule, spent_s: float | None = None) -> Verdict:
    """Return what to do after these samples (seconds for one execution each) against the incumbent's median latency.

    `spent_s` is the time the samples took where each of them looped over several executions.

    >>> decide([2.0e-3], 1.0e-3, Rule())
    <Verdict.ABANDON: 'abandon'>
    """
    if not samples:
        return Verdict.CONTINUE
    if incumbent is not None and _hopeless(samples, incumbent, rule):
        return Verdict.ABANDON
    n, spent = len(samples), sum(samples) if spent_s is None else spent_s
    if n >= rule.max_samples or spent >= 4 * rule.max_s or (spent >= rule.max_s and n >= rule.min_samples):
        return Verdict.ENOUGH
    interval = median_interval(samples, rule.confidence)
    if interval is not None and interval[1] - interval[0] <= 2 * rule.precision * interval[0]:
        return Verdict.ENOUGH
    return Verdict.CONTINUE


def margin(n: int, rule: Rule) -> float:
    """Return the relative excess over the incumbent that all of `n` samples must show before it is given up."""
    share = rule.error / (n * (n + 1))
    # max(S, p)^(n-1) has two branches: try the one where the disturbance is rarer than its persistence first.
    tail = share / rule.persistence ** (n - 1) if rule.persistence > 0 else math.inf
    if tail > rule.persistence:
        tail = share ** (1 / n)
    return 0.0 if tail >= 0.5 else rule.noise * (math.sqrt(0.5 / tail) - 1)


def _hopeless(samples: Sequence[float], incumbent: float, rule: Rule) -> bool:
    excess = min(samples) / incumbent / (1 + rule.drift) - 1
    return excess > 0 and excess > margin(len(samples), rule)
