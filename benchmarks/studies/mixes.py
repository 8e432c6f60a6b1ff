"""Makespan over its lower bound, by strategy, over many random mixes: the simulated half of the scheduling study."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import mean, median

from mock_jobs import Mix, UnitSeconds, gpu_mix
from rival_strategies import STRATEGIES
from simulator import GanttRow, SimulationResult, simulate

MakeMix = Callable[[int, Sequence[UnitSeconds]], Mix]
"""Makes the mix of a seed, whose tasks are of the given sorts."""


@dataclass(frozen=True, slots=True)
class MixResult:
    """One mix under one strategy.

    `mean_finish_s` is the mean over jobs of the time from arrival to end, `owner_wait_s` the longest time in which an
    owner had stages ready and none of them was started.
    """

    seed: int
    strategy: str
    makespan_s: float
    bound_s: float
    idle: float
    mean_finish_s: float
    owner_wait_s: float


@dataclass(frozen=True, slots=True)
class Summary:
    """One strategy over all mixes; `ratio` is makespan over lower bound, `of_greedy` over greedy's makespan.

    `finish_of_greedy` is the mean job's end over greedy's; owners' longest waits are parts of the lower bound.
    """

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
    owner_wait_median: float
    owner_wait_worst: float


def simulate_mixes(
    seeds: Iterable[int],
    strategies: Sequence[str] = tuple(STRATEGIES),
    *,
    make: MakeMix = gpu_mix,
    recorded: Sequence[UnitSeconds] = (),
) -> list[MixResult]:
    """Run every strategy on the mix of every seed; its tasks are of the `recorded` sorts where there are any."""
    results = []
    for seed in seeds:
        mix = make(seed, recorded)
        for strategy in strategies:
            run = simulate(mix, strategy)
            waits = [run.finished_s[job.job_id] - job.at_s for job in mix.jobs]
            wait_s = longest_owner_wait_s(mix, run)
            results.append(MixResult(seed, strategy, run.makespan_s, run.bound_s, run.idle, mean(waits), wait_s))
    return results


def longest_owner_wait_s(mix: Mix, run: SimulationResult) -> float:
    """Return the longest time in which an owner had stages ready and none of them was started."""
    owners = {job.job_id: job.owner or job.job_id for job in mix.jobs}
    rows: dict[str, list[GanttRow]] = {}
    for row in run.gantt:
        rows.setdefault(owners[row.job_id], []).append(row)
    longest_s = 0.0
    for mine in rows.values():
        mine.sort(key=lambda row: row.start_s)
        # From the last start, or from when the first of those that are not started yet was ready.
        ready_s = list(accumulate((row.ready_s for row in reversed(mine)), min))[::-1]
        before_s = -math.inf
        for row, since_s in zip(mine, ready_s, strict=True):
            longest_s = max(longest_s, row.start_s - max(before_s, since_s))
            before_s = row.start_s
    return longest_s


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
        waits = [run.owner_wait_s / run.bound_s for run in runs]
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
                median(waits),
                max(waits),
            )
        )
    return summaries
