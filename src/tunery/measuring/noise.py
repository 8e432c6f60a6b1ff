"""What the machine's noise looks like, learned from earlier races: between warm samples, and of cold runs."""

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median

from tunery.measuring.racing import Cold, Rule

_POOL = 1000
_TRUSTED = 64
_LEAST_SAMPLES = 5
_FLOOR = 0.005
_QUANTILES = (0.1, 0.05, 0.02, 0.01)
_LEAST_BEYOND = 3
_COLD_POOL, _COLD_LEAST, _COLD_TRUSTED = 200, 16, 48
_COLD_NOISE = 0.05
_LEAST_PERSISTENCE = 0.2
_NEAR = 2.0
_TASKS = 256


@dataclass(slots=True)
class _ColdRuns:
    """One task's cold runs: their excess over the median of the same race's warm samples."""

    warm_up: deque[float] = field(default_factory=lambda: deque(maxlen=_COLD_POOL))
    first: deque[float] = field(default_factory=lambda: deque(maxlen=_COLD_POOL))


class Noise:
    """Learns a rule's `noise` and `persistence` for all tasks together, and its `warm_up` and `first` for each task.
    The scale of a noise is the smallest for which the rule's tail bounds the observed one at several quantiles. That of
    warm samples comes from the latest excesses over the median of their own race; it only widens the prior until 64
    samples are known, and never falls under 0.5 %. A task's cold runs are known from 16 races on, taken for noisier
    than 5 % until there are 48, and never for less noisy than warm ones."""

    def __init__(self) -> None:
        self._races: deque[tuple[float, ...]] = deque()
        self._size = 0
        self._cold: OrderedDict[str, _ColdRuns] = OrderedDict()

    def learn(self, samples: Sequence[float]) -> None:
        warm = samples[1:]
        if len(samples) < _LEAST_SAMPLES:
            return
        middle = median(warm)
        self._races.append(tuple(sample / middle - 1 for sample in warm))
        self._size += len(warm)
        while self._size > _POOL and len(self._races) > 1:
            self._size -= len(self._races.popleft())

    def learn_cold(self, task_key: str, warm_up_s: float, samples: Sequence[float], incumbent_s: float | None) -> None:
        """Take in how much longer a race's cold runs took, if its candidate is nearly as fast as the incumbent. What is
        added to a cold run depends on the data more than on the kernel, so slow ones say too little."""
        runs = self._cold.setdefault(task_key, _ColdRuns())
        self._cold.move_to_end(task_key)
        if len(self._cold) > _TASKS:
            self._cold.popitem(last=False)
        first, *warm = samples
        known = _known(runs.first)
        settled_s = median(warm) if warm else first / (1 + (known.shift if known else 0.0))
        if incumbent_s is not None and settled_s > _NEAR * incumbent_s:
            return
        unit_s = min(settled_s, incumbent_s or settled_s)
        runs.warm_up.append((warm_up_s - settled_s) / unit_s)
        if len(warm) > 1:
            runs.first.append((first - settled_s) / unit_s)

    def rule(self, prior: Rule, task_key: str = "") -> Rule:
        rule = prior
        if self._size:
            scale = _scale([e for race in self._races for e in race])
            if self._size < _TRUSTED:
                rule = replace(prior, noise=max(prior.noise, scale))
            else:
                persistence = self._persistence(scale, prior.persistence)
                rule = replace(prior, noise=max(_FLOOR, scale), persistence=persistence)
        runs = self._cold.get(task_key, _ColdRuns())
        return replace(rule, first=_known(runs.first, rule.noise), warm_up=_known(runs.warm_up, rule.noise))

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
        return max(_LEAST_PERSISTENCE, again / seen)


def _scale(values: Sequence[float]) -> float:
    excess = sorted(values, reverse=True)
    scale = 0.0
    for share in _QUANTILES:
        beyond = int(share * len(excess))
        if beyond >= _LEAST_BEYOND:
            scale = max(scale, excess[beyond] / ((0.5 / share) ** 0.5 - 1))
    return scale


def _known(excess: Sequence[float], least: float = 0.0) -> Cold | None:
    """Return what these excesses say of cold runs, None while they are too few; rare bursts hit few of them."""
    if len(excess) < _COLD_LEAST:
        return None
    shift = max(0.0, median(excess))
    noise = max(_FLOOR, least, _scale([(1 + e) / (1 + shift) - 1 for e in excess]))
    return Cold(shift, noise if len(excess) >= _COLD_TRUSTED else max(noise, _COLD_NOISE))
