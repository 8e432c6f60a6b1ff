"""What more spending would probably buy: a predicted gain curve with its uncertainty."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tunery.accounting.prices import Prices
from tunery.domain import Prospect
from tunery.tuning.allocation.allocator import Allocator, Cost, Gain, TaskProgress

MULTIPLES = (0.25, 0.5, 1.0, 2.0, 4.0)
_DRAWS = 400
_STEPS = 200


@dataclass(frozen=True, slots=True)
class _Course:
    """One task's place in the prediction: `more` trials at `trial_s` held core-seconds and `trial_j` joules each."""

    gain: Gain
    weight: int
    trial_s: float
    trial_j: float
    more: float = 0.0

    def next_gain_s(self, trials: float) -> float:
        return self.weight * (self.gain.expected_s(self.more + trials) - self.gain.expected_s(self.more))


def outlook(  # noqa: PLR0917 - what the prediction is made of
    standings: Sequence[TaskProgress], fixed_s: float, cores: int, prices: Prices, seed: int = 0, pace: float = 1.0
) -> tuple[Prospect, ...]:
    """Return the predicted latency of the network for shares of the trials spent so far, which go where the expected
    gain per core-second is the largest. Each core-second they hold takes `pace` of the machine's, 1 where all cores are
    kept busy. A trial of a task that has had none takes what it takes elsewhere."""
    allocator = Allocator(list(standings))
    rate, courses = allocator.peak_rate(), []
    trials = max(sum(sum(standing.trials) for standing in standings), 1)
    mean_s = sum(cost.held_core_s for standing in standings for cost in standing.costs) / trials
    mean_j = sum(cost.joules for standing in standings for cost in standing.costs) / trials
    for standing in standings:
        gain = allocator.belief(standing, rate)
        if gain is None:
            return ()
        if standing.exhausted:
            fixed_s += standing.weight * gain.best_s
            continue
        held_s, joules, trials = mean_s, mean_j, sum(standing.trials)
        if trials:
            held_s = sum(cost.held_core_s for cost in standing.costs) / trials
            joules = sum(cost.joules for cost in standing.costs) / trials
        courses.append(_Course(gain, standing.weight, max(pace * held_s, 1e-6), joules))
    if not courses or not mean_s:
        return ()
    spent = max(sum(sum(standing.trials) for standing in standings if not standing.exhausted), 1)
    step = max(1.0, spent * MULTIPLES[-1] / _STEPS)
    prospects, given = [], 0.0
    for multiple in MULTIPLES:
        while given < multiple * spent:
            best = max(range(len(courses)), key=lambda i: courses[i].next_gain_s(step) / courses[i].trial_s)
            courses[best] = replace(courses[best], more=courses[best].more + step)
            given += step
        prospects.append(_prospect(courses, fixed_s, cores, prices, seed))
    return tuple(prospects)


def reaching(standing: TaskProgress, latency_s: float) -> TaskProgress:
    """Return a task's course as one that has reached `latency_s`: all its latencies in this proportion. Races flatter
    whoever wins them, and the finals say by how much."""
    raced_s = standing.latency_s
    if raced_s is not None and raced_s > 0:
        scale = latency_s / raced_s
        return replace(standing, best_s=[None if s is None else scale * s for s in standing.best_s])
    if not standing.batches:
        return replace(standing, best_s=[latency_s], trials=[0], costs=[Cost(0.0)])
    return replace(standing, best_s=[*[None] * (standing.batches - 1), latency_s])


def _prospect(courses: Sequence[_Course], fixed_s: float, cores: int, prices: Prices, seed: int) -> Prospect:
    random = np.random.default_rng(seed)
    total = fixed_s + sum(course.weight * course.gain.draw(course.more, _DRAWS, random) for course in courses)
    low, middle, high = (float(value) for value in np.quantile(total, (0.1, 0.5, 0.9)))
    held_s = sum(course.more * course.trial_s for course in courses)
    joules = sum(course.more * course.trial_j for course in courses)
    money = prices.of_machine(held_s) + prices.of_energy(joules)
    trials = round(sum(course.more for course in courses))
    return Prospect(trials, held_s / cores, joules or None, money, prices.currency, low, middle, high)
