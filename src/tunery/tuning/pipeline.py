"""From candidates to records: build them on all builders, race them one after the other, record what they gave. A
search, a collection and a delivery that measures its predictions differ in what they charge and what they do with a
result: that they pass in."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tunery._errors import WorkError
from tunery.domain import Artifact, Candidate, Measurement, Outcome, Task
from tunery.engines import Role
from tunery.runtime.runtime import Reservation
from tunery.tuning.account import PricedCharge
from tunery.tuning.calls import BUILD_DEADLINE_S, Context, call_build, race, stage

OnResult = Callable[[Candidate, Measurement, Sequence[PricedCharge]], Awaitable[object]]
"""Stores what became of a candidate, with what that has cost."""


@dataclass(frozen=True, slots=True)
class BuiltCandidate:
    """A candidate on its way to the measurer, with what its build took of a worker."""

    candidate: Candidate
    artifact: Artifact
    build: Reservation


@dataclass(frozen=True, slots=True)
class Builds:
    """How candidates are built: at most `chunk` of them on one builder, one after the other."""

    deadline_s: float | None = None
    chunk: int = 4  # small enough that the pool ends together
    tries: int = 1


async def build_reference(context: Context, task: Task, deadline_s: float = BUILD_DEADLINE_S) -> Artifact:
    async with stage(context, task, "build", Role.BUILDER) as grant:
        reference, _ = await context.runtime.call(grant.worker, "baselines", task, deadline_s=deadline_s, tries=2)
        built = await call_build(context, task, grant.worker, reference, tries=2)
    await context.charge(task.key, "build", "", grant, 1)
    if isinstance(built, Measurement):
        raise WorkError(f"the unscheduled program does not build: {built.detail}")
    return built


async def build_all(  # noqa: PLR0917 - what a batch of builds needs
    context: Context,
    task: Task,
    candidates: Sequence[Candidate],
    on_failure: OnResult,
    on_built: Callable[[BuiltCandidate], object] = lambda _: None,
    how: Builds = Builds(),
) -> list[BuiltCandidate]:
    """Build candidates and return those that built; `on_failure` hears at once of each other one."""
    built: list[BuiltCandidate] = []

    async def some(candidates: Sequence[Candidate]) -> None:
        async with stage(context, task, "build", Role.BUILDER, len(candidates)) as grant:
            for candidate in candidates:
                result = await call_build(context, task, grant.worker, candidate, how.tries, deadline_s=how.deadline_s)
                used = grant.split()
                if isinstance(result, Measurement):
                    cost = context.bill(task.key, "build", result.outcome.value, used)
                    await on_failure(candidate, replace(result, build_s=used.wall_s), [cost])
                else:
                    built.append(BuiltCandidate(candidate, result, used))
                    on_built(built[-1])

    share = math.ceil(len(candidates) / len(context.runtime.workers(Role.BUILDER)))  # no builder is left without any
    size = max(1, min(how.chunk, share))
    await together([some(candidates[i : i + size]) for i in range(0, len(candidates), size)])
    return built


async def race_in_turn(
    context: Context,
    task: Task,
    built: Sequence[BuiltCandidate],
    reference: Artifact,
    on_result: OnResult,
    *,
    best_s: float | None = None,
) -> list[Measurement]:
    found: list[Measurement] = []
    async with stage(context, task, "measure", Role.MEASURER, len(built)) as grant:
        for one in built:
            measurement = await race(
                context, task, grant.worker, (one.candidate, one.artifact), reference,
                incumbent_s=best_s, baseline_s=1e-3 if found else None,
            )  # fmt: skip
            if measurement.outcome is Outcome.OK and measurement.latency_s:
                best_s = min(measurement.latency_s, best_s or measurement.latency_s)
            found.append(replace(measurement, build_s=one.build.wall_s))
            outcome = measurement.outcome.value
            cost = context.bill(task.key, "measure", outcome, grant.split(), device=True)
            await on_result(one.candidate, found[-1], [cost, context.bill(task.key, "build", outcome, one.build)])
    return found


async def together(steps: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Do all steps at once and return their results; where one fails, the others are over before its error goes on."""
    tasks = [asyncio.ensure_future(step) for step in steps]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
