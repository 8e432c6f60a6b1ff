"""What the machine's noise looks like, learned from races that ran to their end."""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median

from tunery.measure.racing import Rule

_POOL = 1000
_TRUSTED = 64
_LEAST_SAMPLES = 5
_FLOOR = 0.005
_QUANTILES = (0.25, 0.1, 0.05, 0.02, 0.01)
_LEAST_BEYOND = 3


class Noise:
    """Learns `Rule.noise` and `Rule.persistence` from the latest samples' excess over the median of their own race.

    The scale is the smallest for which the rule's tail bounds the observed one at several quantiles; it only widens
    the prior until 64 samples are known, and never falls under 0.5 %.
    """

    def __init__(self) -> None:
        self._races: deque[tuple[float, ...]] = deque()
        self._size = 0

    def learn(self, samples: Sequence[float]) -> None:
        """Take in one race's samples, in the order in which they were taken."""
        if len(samples) < _LEAST_SAMPLES:
            return
        middle = median(samples)
        self._races.append(tuple(sample / middle - 1 for sample in samples))
        self._size += len(samples)
        while self._size > _POOL and len(self._races) > 1:
            self._size -= len(self._races.popleft())

    def rule(self, prior: Rule) -> Rule:
        """Return the rule with what was learned so far."""
        if not self._size:
            return prior
        scale = self._scale()
        if self._size < _TRUSTED:
            return replace(prior, noise=max(prior.noise, scale))
        return replace(prior, noise=max(_FLOOR, scale), persistence=self._persistence(scale, prior.persistence))

    def _scale(self) -> float:
        excess = sorted((e for race in self._races for e in race), reverse=True)
        scale = 0.0
        for share in _QUANTILES:
            beyond = int(share * len(excess))
            if beyond >= _LEAST_BEYOND:
                scale = max(scale, excess[beyond] / ((0.5 / share) ** 0.5 - 1))
        return scale

    def _persistence(self, scale: float, prior: float) -> float:
        """Return how often a disturbed sample is followed by another; the prior counts as ten observations."""
        level = max(_FLOOR, scale)
        seen, again = 10.0, 10.0 * prior
        for race in self._races:
            quiet = sorted(race)[len(race) // 4]  # a burst may cover more than half of a race
            for now, following in pairwise(race):
                if now - quiet > level:
                    seen += 1
                    again += following - quiet > level
        return max(prior, again / seen)
