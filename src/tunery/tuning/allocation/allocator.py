"""Which task gets the next batch: the largest expected weighted gain per unit of what the user wants to spend least."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tunery.accounting.meter import Plan
from tunery.accounting.prices import Prices

SHAPE = 0.5
_PRIOR_A, _PRIOR_X = 12.0, 1.5
"""Seven per cent a doubling, and many doublings to outweigh it: tasks that had gained in their last one won 3 to 9 % in
the next, and those that had not 5 to 11 % (decision 011)."""
_MEMORY = 0.5


@dataclass(frozen=True, slots=True)
class Gain:
    """What is believed of one task: `trials` spent, `best_s` reached, and the posterior's two parameters. The logarithm
    of a task's best latency falls with the logarithm of its trials, in jumps: most batches bring nothing, some bring
    much. We take it as a gamma process over doublings of trials, with `SHAPE` a doubling and an unknown scale, whose
    inverse has a gamma prior. That is conjugate: after improvements of x in all over t doublings, the improvement over
    d more doublings is distributed as (prior_x + x) times a beta-prime variable of parameters (SHAPE·d, prior_a +
    SHAPE·t). What was seen long ago counts less: by half with each doubling since. `limit` bounds the improvement (a
    natural logarithm): no program runs faster than the machine."""

    trials: int
    best_s: float
    a: float
    x: float
    limit: float = math.inf

    def doublings(self, more: float) -> float:
        return math.log2(1 + more / max(self.trials, 1))

    def expected(self, more: float) -> float:
        """Return the expected logarithm of the speed-up by `more` trials, which closes in on the limit."""
        mean = SHAPE * self.doublings(more) * self.x / (self.a - 1)
        return mean if math.isinf(self.limit) else self.limit * -math.expm1(-mean / self.limit)

    def expected_s(self, more: float) -> float:
        return self.best_s * -math.expm1(-self.expected(more))

    def draw(self, more: float, count: int, random: np.random.Generator) -> npt.NDArray[np.float64]:
        if more <= 0:
            return np.full(count, self.best_s)
        part = random.beta(SHAPE * self.doublings(more), self.a, count)
        improvement: npt.NDArray[np.float64] = np.minimum(self.x * part / np.maximum(1 - part, 1e-12), self.limit)
        return self.best_s * np.exp(-improvement)


def believe(trials: Sequence[int], best_s: Sequence[float | None], floor_s: float = 0.0) -> Gain | None:
    """Return the belief after batches of `trials` each. `floor_s` is the least latency thinkable (0: unknown); even at
    the floor 2 % are left, for it is only believed."""
    counts = np.cumsum(np.maximum(trials, 1))
    seen = [(int(n), best) for n, best in zip(counts, best_s, strict=True) if best is not None and best > 0]
    if not seen:
        return None
    now, best = seen[-1]
    x = t = 0.0
    for (before, was), (after, became) in pairwise(seen):
        weight = _MEMORY ** math.log2(now / after)
        t += weight * math.log2(after / before)
        x += weight * max(math.log(was / became), 0.0)
    limit = max(math.log(best / floor_s), 0.02) if floor_s > 0 else math.inf
    return Gain(now, best, _PRIOR_A + SHAPE * t, _PRIOR_X + x, limit)


_WINDOW = 3
_PREEMPTED_BELOW = 0.1
_PRIOR_TRIALS = 8
"""A task's own trials count as much as this many of the average of all: one slow build among the first four candidates
must not make a task look dear for ever."""
_AT_ONCE = 2
"""Batches of one task in flight: the next is proposed while the one before it is measured."""
_HEADROOM = 1.05
"""How much faster than the highest arithmetic rate seen so far a task may run: the true peak is not known."""


class Unit(StrEnum):
    """What a gain is weighed against."""

    TIME = "time"
    MONEY = "money"
    ENERGY = "energy"


def unit_of(limits: Plan) -> Unit:
    """Return the unit of a job's limits; of several the scarcer kind: energy, then money, then time."""
    if limits.joules is not None:
        return Unit.ENERGY
    return Unit.MONEY if limits.money is not None else Unit.TIME


@dataclass(frozen=True, slots=True)
class Cost:
    """What a batch took: core-seconds that workers were held for (busy or not), and joules."""

    held_core_s: float
    joules: float = 0.0

    def amount(self, unit: Unit, prices: Prices | None) -> float:
        """Return the cost in a unit; a thousandth of a second is the least, so that nothing is free."""
        if unit is Unit.ENERGY and self.joules > 0:
            return self.joules
        if unit is Unit.MONEY and prices is not None:
            amount = prices.of_machine(self.held_core_s) + prices.of_energy(self.joules)
            if amount > 0:
                return amount
        return max(self.held_core_s, 1e-3)


@dataclass
class TaskProgress:
    """What is known of one task, batch by batch: the best latency after each, its trials, what it took."""

    task_key: str
    weight: int
    flop: float
    best_s: list[float | None] = field(default_factory=list)
    trials: list[int] = field(default_factory=list)
    costs: list[Cost] = field(default_factory=list)
    in_flight: int = 0
    trials_in_flight: int = 0
    exhausted: bool = False

    @property
    def batches(self) -> int:
        return len(self.best_s)

    @property
    def latency_s(self) -> float | None:
        return self.best_s[-1] if self.best_s else None

    def ended(self, best_s: float | None, trials: int, cost: Cost) -> None:
        self.best_s.append(best_s)
        self.trials.append(trials)
        self.costs.append(cost)

    def lately(self, unit: Unit, prices: Prices | None) -> tuple[float, int]:
        amount = sum(cost.amount(unit, prices) for cost in self.costs[-_WINDOW:])
        return amount, sum(self.trials[-_WINDOW:])


class Allocator:
    """Chooses tasks by gain per cost; each task first gets one batch, in the given order. A task whose gain per cost is
    less than a tenth of the best one's is preempted: it gets nothing, even while the best are busy, until they have
    fallen to its level. What it has reached keeps counting in the network's latency."""

    def __init__(self, standings: list[TaskProgress], unit: Unit = Unit.TIME, prices: Prices | None = None) -> None:
        self.standings = {standing.task_key: standing for standing in standings}
        self._unit, self._prices = unit, prices

    def next(self, size: int) -> TaskProgress | None:
        alive = [s for s in self.standings.values() if not s.exhausted]
        fresh = [s for s in alive if not s.batches and not s.in_flight]
        if fresh:
            return fresh[0]
        scores = self._scores(alive, size)
        level = _PREEMPTED_BELOW * max(scores.values(), default=0.0)
        paying = [s for s in alive if scores.get(s.task_key, -1.0) >= level]
        ready = [s for s in paying if not s.in_flight] or [s for s in paying if s.in_flight < _AT_ONCE]
        return max(ready, key=lambda s: (scores[s.task_key], s.task_key), default=None)

    def preempted(self, size: int) -> set[str]:
        scores = self._scores([s for s in self.standings.values() if not s.exhausted], size)
        level = _PREEMPTED_BELOW * max(scores.values(), default=0.0)
        return {key for key, score in scores.items() if score < level}

    def peak_rate(self) -> float:
        return max((s.flop / s.latency_s for s in self.standings.values() if s.latency_s), default=0.0)

    def belief(self, standing: TaskProgress, rate: float) -> Gain | None:
        return believe(standing.trials, standing.best_s, standing.flop / (_HEADROOM * rate) if rate > 0 else 0.0)

    def _scores(self, alive: list[TaskProgress], size: int) -> dict[str, float]:
        rate, mean = self.peak_rate(), self.mean_cost()
        return {s.task_key: self.gain_per_cost(s, rate, size, mean) for s in alive if s.batches}

    def mean_cost(self) -> float:
        every = [standing.lately(self._unit, self._prices) for standing in self.standings.values()]
        return sum(amount for amount, _ in every) / max(sum(trials for _, trials in every), 1)

    def trial_cost(self, standing: TaskProgress, mean: float) -> float:
        """Return what a trial of a task probably takes: what its own took lately, drawn to the `mean` over all."""
        amount, trials = standing.lately(self._unit, self._prices)
        return (amount + _PRIOR_TRIALS * mean) / (trials + _PRIOR_TRIALS) or 1.0

    def gain_per_cost(self, standing: TaskProgress, rate: float, size: int, mean_cost: float) -> float:
        gain = self.belief(standing, rate)
        if gain is None:
            # Nothing valid yet: worth a batch now and then, less with each that brought nothing.
            return 1e-9 / (1 + standing.batches)
        return standing.weight * gain.expected_s(size) / (size * self.trial_cost(standing, mean_cost))


class RoundRobin:
    """Gives all tasks the same number of trials, whatever they gain: what trimming is compared with."""

    def __init__(self, standings: list[TaskProgress]) -> None:
        self.standings = standings

    def next(self, size: int) -> TaskProgress | None:  # noqa: ARG002 - the same for any size
        ready = [s for s in self.standings if not s.exhausted and s.in_flight < _AT_ONCE]
        free = [s for s in ready if not s.in_flight] or [s for s in ready if s.batches]
        return min(free, key=lambda s: sum(s.trials) + s.trials_in_flight, default=None)
