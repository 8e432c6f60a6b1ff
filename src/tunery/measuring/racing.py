"""When to stop sampling a candidate: a pure rule on its samples (idea: Raced Profiles, LCTES 2009).

Let m be the incumbent's median, and S(e) the probability that one run lies more than the relative excess e above its
own median. A candidate that is no slower than the incumbent shows n runs that are all so far above m that S(e) is at
most t for each, with a probability of at most

    t · max(t, persistence)^(n-1)

where `persistence` is the probability that a disturbed run is followed by another. If that is below the share of the
error probability that this look has, the candidate is abandoned. For S we take 0.5·(1+e/noise)^-2: at e=0 it is the
sign test, which needs no assumption; the quadratic tail is heavier than any noise a quiet machine shows.

The runs are the one that warms up, which verification needs anyway, and the samples. Warm-up and first sample find
colder caches: they take 1+shift times as long in the median, with a wider noise of their own (`Cold`), and e is their
excess over m·(1+shift). One whose noise is over twice that of warm samples stands for itself only: among others, it
would hide what they say. The first look has half of the error probability, since most losers end there, the others have
equal parts of the rest. So a race abandons a true winner with a probability of at most `error`, as long as the S bound
the noise. Shifts, noise and persistence are learned from earlier races (`tunery.measuring.noise`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tunery.domain import median_interval

_OPENING = 0.5
"""Of the error probability, for the first look."""

_WIDE = 2.0


class RaceVerdict(StrEnum):
    """What to do after the latest sample."""

    CONTINUE = "continue"
    ABANDON = "abandon"
    ENOUGH = "enough"


@dataclass(frozen=True, slots=True)
class Cold:
    """A run on cold caches: it takes 1 + `shift` times a warm one in the median, `noise` is the scale of its tail."""

    shift: float
    noise: float


_UNKNOWN = Cold(0.25, 0.05)
"""What a first sample may show before any was seen; it stands for itself only."""


@dataclass(frozen=True, slots=True)
class Rule:
    """`error` bounds how often a candidate that is no slower than the incumbent is abandoned. `precision` is the half
    width of the median's confidence interval (at `confidence`) that counts as tight. The caps are `max_samples` and
    `max_s` seconds of timed running, the latter not before `min_samples`, unless they took four times as long. `noise`
    and `persistence` describe the machine, `warm_up` and `first` its cold runs (module docstring): while nothing is
    known of them, a warm-up is no evidence, and a first sample little. `drift` is how far the machine's speed may have
    moved since the incumbent was measured."""

    error: float = 0.01
    precision: float = 0.01
    confidence: float = 0.95
    min_samples: int = 3
    max_samples: int = 10
    max_s: float = 0.05
    noise: float = 0.03
    persistence: float = 0.3
    drift: float = 0.01
    first: Cold | None = None
    warm_up: Cold | None = None


def decide(
    samples: Sequence[float],
    incumbent: float | None,
    rule: Rule,
    spent_s: float | None = None,
    warm_up_s: float | None = None,
) -> RaceVerdict:
    """Return what to do after these samples (seconds for one execution each) against the incumbent's median latency.

    `spent_s` is the time the samples took where each of them looped over several executions; `warm_up_s` what the run
    that came before them took.

    >>> decide([2.0e-3], 1.0e-3, Rule())
    <RaceVerdict.ABANDON: 'abandon'>
    """
    if incumbent is not None and _hopeless(samples, incumbent, rule, warm_up_s):
        return RaceVerdict.ABANDON
    if not samples:
        return RaceVerdict.CONTINUE
    n, spent = len(samples), sum(samples) if spent_s is None else spent_s
    if n >= rule.max_samples or spent >= 4 * rule.max_s or (spent >= rule.max_s and n >= rule.min_samples):
        return RaceVerdict.ENOUGH
    interval = median_interval(samples, rule.confidence)
    if interval is not None and interval[1] - interval[0] <= 2 * rule.precision * interval[0]:
        return RaceVerdict.ENOUGH
    return RaceVerdict.CONTINUE


def margin(runs: int, share: float, rule: Rule, noise: float) -> float:
    """Return the excess over the incumbent that each of `runs` runs must show, this one with such a noise. `share` is
    the part of the error probability that may be spent."""
    # max(t, p)^(n-1) has two branches: try the one where the disturbance is rarer than its persistence first.
    tail = share * rule.error / rule.persistence ** (runs - 1) if rule.persistence > 0 else math.inf
    if tail > rule.persistence:
        tail = (share * rule.error) ** (1 / runs)
    return 0.0 if tail >= 0.5 else noise * (math.sqrt(0.5 / tail) - 1)


def _hopeless(samples: Sequence[float], incumbent: float, rule: Rule, warm_up_s: float | None) -> bool:
    warm_up = None if warm_up_s is None else rule.warm_up
    first = rule.first or (_UNKNOWN if len(samples) == 1 else None)
    cold = [(warm_up_s, warm_up), (samples[0] if samples else None, first)]
    known = [(seconds, one) for seconds, one in cold if seconds is not None and one is not None]
    opening = len(samples) == (0 if warm_up else 1)
    if not opening:
        known = [(seconds, one) for seconds, one in known if one.noise <= _WIDE * rule.noise]
    runs = [(seconds / (1 + one.shift), one.noise) for seconds, one in known]
    runs += [(seconds, rule.noise) for seconds in samples[1:]]
    share = _OPENING if opening else (1 - _OPENING) / rule.max_samples
    excesses = [(seconds / incumbent / (1 + rule.drift) - 1, noise) for seconds, noise in runs]
    return bool(runs) and all(e > 0 and e > margin(len(runs), share, rule, noise) for e, noise in excesses)
