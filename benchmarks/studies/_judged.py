"""What each arm's kernels are worth: the winners of all arms timed in turns, and each arm's way there by that measure.

Finals of two runs are minutes apart, and the machine's speed moves by some per cent meanwhile. So for each task the
winners of all arms are timed once more in the same rounds; by the ratio to what a run's own finals held, its earlier
moments are corrected too.
"""

import asyncio
import bisect
import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from tunery._errors import DialectError, EngineError
from tunery.domain import Artifact, Candidate, Mode, Origin, Outcome, Record, Task
from tunery.domain.request import Request
from tunery.engines import Role
from tunery.runtime.opening import open_runtime
from tunery.runtime.runtime import Runtime
from tunery.runtime.spec import RuntimeSpec
from tunery.tuning.search.finals import ROUNDS

_JOB = "study"
_BUILD_DEADLINE_S, _FINALS_DEADLINE_S = 60.0, 300.0


@dataclass(frozen=True, slots=True)
class Way:
    """One task in a run: after how many of the job's trials which latency was at hand, as the finals held it.

    `winner` is the plain candidate that the run ends with, {} for what cannot be tuned; `proven`: finals held it.
    """

    task_key: str
    weight: int
    steps: tuple[tuple[int, float], ...]
    winner: Mapping[str, Any] = field(default_factory=dict)
    proven: bool = False

    @property
    def final_s(self) -> float:
        """The latency in the end, infinite where nothing ran."""
        return self.steps[-1][1] if self.steps else math.inf

    def at(self, trials: int) -> float:
        """Return the latency that was at hand after so many trials, infinite before the first."""
        number = bisect.bisect_right(self.steps, trials, key=lambda step: step[0])
        return self.steps[number - 1][1] if number else math.inf


def ways(tasks: Sequence[Task], records: Sequence[Record], best: Mapping[str, str | None]) -> tuple[Way, ...]:
    """Return each task's way by a run's records, oldest first; `best` are the candidates that its tasks end with.

    A candidate counts from its trial on with what the finals held. One that was in none counts with its race, times
    what the finals made of the winner's.
    """
    born: dict[str, dict[str, int]] = {task.key: {} for task in tasks}
    raced: dict[str, dict[str, float]] = {task.key: {} for task in tasks}
    held: dict[str, dict[str, float]] = {task.key: {} for task in tasks}
    found: dict[tuple[str, str], Candidate] = {}
    trials = 0
    for record in records:
        candidate, measured = record.candidate, record.measurement
        task_key, key = candidate.task_key, candidate.key
        if measured.outcome is Outcome.FILTERED or task_key not in born:
            continue
        found[task_key, key] = candidate
        if key not in born[task_key]:
            trials += candidate.origin is not Origin.BASELINE
            born[task_key][key] = 0 if candidate.origin is Origin.BASELINE else trials
        right = measured.outcome is Outcome.OK and measured.latency_s
        if measured.mode is Mode.FINAL:
            held[task_key][key] = median(measured.paced_s) if right else math.inf
        elif right and measured.latency_s:
            raced[task_key][key] = measured.latency_s
    return tuple(
        _way(task, born[task.key], raced[task.key], held[task.key], found, best.get(task.key)) for task in tasks
    )


def _way(
    task: Task,
    born: Mapping[str, int],
    raced: Mapping[str, float],
    held: Mapping[str, float],
    found: Mapping[tuple[str, str], Candidate],
    best: str | None,
) -> Way:
    values = {key: value for key, value in held.items() if math.isfinite(value)} or dict(raced)
    if not values:
        return Way(task.key, task.weight, ())
    winner = best if best in values else min(values, key=lambda key: (values[key], key))
    ratio = values[winner] / raced.get(winner, values[winner])
    worth = {key: held.get(key, ratio * raced.get(key, math.inf)) for key in born}
    steps: list[tuple[int, float]] = []
    for key in sorted(born, key=lambda key: (born[key], key)):
        latency_s = max(worth[key], values[winner])  # what ties with the winner is no better
        if math.isfinite(latency_s) and (not steps or latency_s < steps[-1][1]):
            steps.append((born[key], latency_s))
    plain = asdict(found[task.key, winner]) if task.tunable else {}
    return Way(task.key, task.weight, tuple(steps), plain, winner in held)


def judge(request: Request, tasks: Sequence[Task], runs: Mapping[str, Sequence[Way]]) -> dict[str, dict[str, float]]:
    """Return, by task and arm, the latency of the arm's winner; all winners of a task are timed in the same rounds.

    What does not build or run takes for ever. A task that could not be timed at all is left out.
    """
    with open_runtime(RuntimeSpec.of(request)) as runtime:
        return asyncio.run(_judge(runtime, tasks, runs))


async def _judge(
    runtime: Runtime, tasks: Sequence[Task], runs: Mapping[str, Sequence[Way]]
) -> dict[str, dict[str, float]]:
    runtime.dispatch.submit(_JOB)
    arms = {
        task.key: {
            arm: Candidate(**{**way.winner, "origin": Origin(way.winner["origin"])})
            for arm, found in runs.items()
            for way in found
            if way.task_key == task.key and way.winner
        }
        for task in tasks
    }
    tunable = [task for task in tasks if arms[task.key]]
    built = await asyncio.gather(*(_built(runtime, task, arms[task.key].values()) for task in tunable))
    judged: dict[str, dict[str, float]] = {}
    for task, kit in zip(tunable, built, strict=True):  # one by one: nothing is built beside
        if kit is not None and (latency_s := await _timed(runtime, task, *kit)):
            judged[task.key] = {arm: latency_s.get(one.key, math.inf) for arm, one in arms[task.key].items()}
    runtime.dispatch.end(_JOB)
    return judged


async def _built(
    runtime: Runtime, task: Task, winners: Collection[Candidate]
) -> tuple[Artifact, list[tuple[Candidate, Artifact]]] | None:
    entrants: list[tuple[Candidate, Artifact]] = []
    async with runtime.stage(_JOB, "build", Role.BUILDER, size=len(winners)) as grant:
        try:
            yardstick, _ = await runtime.call(grant.worker, "baselines", task, deadline_s=_BUILD_DEADLINE_S)
            reference = await runtime.call(grant.worker, "build", task, yardstick, deadline_s=_BUILD_DEADLINE_S)
        except (DialectError, EngineError):
            return None
        for candidate in {one.key: one for one in winners}.values():
            with suppress(DialectError, EngineError):
                built = await runtime.call(grant.worker, "build", task, candidate, deadline_s=_BUILD_DEADLINE_S)
                entrants.append((candidate, built))
    return reference, entrants


async def _timed(
    runtime: Runtime, task: Task, reference: Artifact, entrants: Sequence[tuple[Candidate, Artifact]]
) -> dict[str, float]:
    async with runtime.stage(_JOB, "finals", Role.MEASURER, size=len(entrants)) as grant:
        try:  # nobody is left out early: all are to be known well
            results = await runtime.call(
                grant.worker, "finals", task, [a for _, a in entrants], [c for c, _ in entrants], reference, ROUNDS, 0,
                deadline_s=_FINALS_DEADLINE_S,
            )  # fmt: skip
        except EngineError:
            return {}
    return {
        candidate.key: median(result.paced_s)
        for (candidate, _), result in zip(entrants, results, strict=True)
        if result.outcome is Outcome.OK and result.samples_s
    }
