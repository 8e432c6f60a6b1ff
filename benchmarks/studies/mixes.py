"""Makespan over its lower bound, by strategy, over many random mixes: the simulated half of the scheduling study."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, median

from tunery.scheduling.mock import Mix, UnitSeconds, gpu_mix
from tunery.scheduling.simulator import simulate
from tunery.scheduling.strategies import STRATEGIES


@dataclass(frozen=True, slots=True)
class MixResult:
    """One mix under one strategy; `mean_finish_s` is the mean over jobs of the time from arrival to end."""

    seed: int
    strategy: str
    makespan_s: float
    bound_s: float
    idle: float
    mean_finish_s: float


@dataclass(frozen=True, slots=True)
class Summary:
    """One strategy over all mixes; `ratio` is makespan over lower bound, `of_greedy` over greedy's makespan."""

    strategy: str
    mixes: int
    ratio_median: float
    ratio_p90: float
    ratio_worst: float
    idle_mean: float
    of_greedy_median: float
    of_greedy_worst: float
    above_greedy: int
    finish_of_greedy: float


def simulate_mixes(
    seeds: Iterable[int],
    strategies: Sequence[str] = tuple(STRATEGIES),
    *,
    make: Callable[[int, Sequence[UnitSeconds]], Mix] = gpu_mix,
    recorded: Sequence[UnitSeconds] = (),
) -> list[MixResult]:
    """Run every strategy on the mix of every seed; its tasks are of the `recorded` sorts where there are any."""
    results = []
    for seed in seeds:
        mix = make(seed, recorded)
        for strategy in strategies:
            run = simulate(mix, strategy)
            waits = [run.finished_s[job.job_id] - job.at_s for job in mix.jobs]
            results.append(MixResult(seed, strategy, run.makespan_s, run.bound_s, run.idle, mean(waits)))
    return results


def summarize(results: Iterable[MixResult], margin: float = 0.02) -> list[Summary]:
    """Summarize per strategy; `above_greedy` counts mixes where it took more than `margin` longer than greedy."""
    by_strategy: dict[str, list[MixResult]] = {}
    for result in results:
        by_strategy.setdefault(result.strategy, []).append(result)
    greedy = {result.seed: result for result in by_strategy.get("greedy", [])}
    summaries = []
    for strategy, runs in by_strategy.items():
        ratios = sorted(run.makespan_s / run.bound_s for run in runs)
        versus = [run.makespan_s / greedy[run.seed].makespan_s for run in runs if run.seed in greedy] or [math.nan]
        finish = [run.mean_finish_s / greedy[run.seed].mean_finish_s for run in runs if run.seed in greedy] or [
            math.nan
        ]
        summaries.append(
            Summary(
                strategy,
                len(runs),
                median(ratios),
                ratios[int(0.9 * (len(ratios) - 1))],
                ratios[-1],
                mean(run.idle for run in runs),
                median(versus),
                max(versus),
                sum(value > 1 + margin for value in versus),
                mean(finish),
            )
        )
    return summaries
