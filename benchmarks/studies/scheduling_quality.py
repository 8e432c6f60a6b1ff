"""What the strategies have found, re-timed: every run's winners of a task beside one another, alone on the machine."""

import asyncio
import math
import statistics
from collections.abc import Callable, Sequence

from studies.scheduling_runs import Run
from tunery.domain import Candidate, Outcome, Task
from tunery.domain.request import Request
from tunery.engines import Role
from tunery.runtime.importing import ImportedModel
from tunery.runtime.opening import open_runtime
from tunery.runtime.runtime import Runtime
from tunery.runtime.spec import RuntimeSpec

_BUILD_DEADLINE_S, _DEADLINE_S = 120.0, 900.0
_ROUNDS = 15

Latencies = dict[tuple[str, int, str], float]
"""Seconds by strategy, repeat and task."""


def retime(
    request: Request, imported: Sequence[ImportedModel], runs: Sequence[Run], say: Callable[[str], None]
) -> Latencies:
    """Time the winners of all runs, interleaved task by task; the same candidate found twice is timed once."""
    tasks = {task.key: task for model in imported for task in model.tasks}

    async def all_of_them() -> Latencies:
        found: Latencies = {}
        with open_runtime(RuntimeSpec.of(request)) as runtime:
            for number, task in enumerate(tasks.values(), 1):
                say(f"timing winners of task {number} of {len(tasks)}")
                winners = {run.best[task.key][0].key: run.best[task.key][0] for run in runs if task.key in run.best}
                seconds = await _time(runtime, task, list(winners.values()))
                for run in runs:
                    if task.key in run.best:
                        found[run.strategy, run.repeat, task.key] = seconds[run.best[task.key][0].key]
        return found

    return asyncio.run(all_of_them())


async def _time(runtime: Runtime, task: Task, candidates: Sequence[Candidate]) -> dict[str, float]:
    builder, measurer = runtime.workers(Role.BUILDER)[0], runtime.workers(Role.MEASURER)[0]
    reference, _ = await runtime.call(builder, "baselines", task, deadline_s=_BUILD_DEADLINE_S)
    built = [
        await runtime.call(builder, "build", task, one, deadline_s=_BUILD_DEADLINE_S)
        for one in (reference, *candidates)
    ]
    measured = await runtime.call(
        measurer, "finals", task, built[1:], list(candidates), built[0], _ROUNDS, deadline_s=_DEADLINE_S
    )
    return {
        candidate.key: one.latency_s if one.outcome is Outcome.OK and one.latency_s else math.nan
        for candidate, one in zip(candidates, measured, strict=True)
    }


def against_sequential(runs: Sequence[Run], seconds: Latencies, imported: Sequence[ImportedModel]) -> dict[str, float]:
    """Return each strategy's tuned latency over that of `sequential`: the geometric mean over networks and repeats.

    A network's latency is the sum of its tasks by their call sites; under 1 is faster.
    """
    ratios: dict[str, list[float]] = {run.strategy: [] for run in runs}
    for run in runs:
        for model in imported:
            mine, theirs = (
                sum(t.weight * seconds.get((who, run.repeat, t.key), math.nan) for t in model.tasks)
                for who in (run.strategy, "sequential")
            )
            if math.isfinite(mine) and math.isfinite(theirs):
                ratios[run.strategy].append(mine / theirs)
    return {who: statistics.geometric_mean(each) if each else math.nan for who, each in ratios.items()}
