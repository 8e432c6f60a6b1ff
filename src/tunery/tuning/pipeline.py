"""From candidates to records: build them on all builders, race them one after the other, record what they gave.

A search, a collection and a delivery that measures its predictions differ in what they charge and what they do with a
result: that they pass in.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tunery._errors import WorkError
from tunery.domain import Artifact, Candidate, Measurement, Outcome, Task
from tunery.engines import Role
from tunery.runtime.pools import Reservation
from tunery.tuning.calls import BUILD_DEADLINE_S, call_build, race, stage
from tunery.tuning.context import Context


@dataclass(frozen=True, slots=True)
class BuiltCandidate:
    """A candidate on its way to the measurer, with what its build took of a worker and of a core."""

    candidate: Candidate
    artifact: Artifact
    wall_s: float
    core_s: float = 0.0


@dataclass(slots=True)
class BuiltChunk:
    """What became of the candidates that one builder took at once, in as far as it came to them."""

    built: list[BuiltCandidate] = field(default_factory=list)
    failed: list[tuple[Candidate, Measurement]] = field(default_factory=list)
    grant: Reservation | None = None

    def core_s(self, wall_s: float) -> float:
        """Return the share of the chunk's core-seconds that belongs to a build of `wall_s` seconds."""
        whole_s = sum([one.wall_s for one in self.built] + [failed.build_s for _, failed in self.failed])
        return wall_s * (self.grant.core_s if self.grant else 0.0) / max(whole_s, 1e-9)


@dataclass(frozen=True, slots=True)
class Builds:
    """How candidates are built: `chunk` of them on one builder, one after the other, each tried so often."""

    deadline_s: float = BUILD_DEADLINE_S
    chunk: int = 4  # small enough that the pool ends together
    tries: int = 1


async def build_reference(context: Context, task: Task, deadline_s: float = BUILD_DEADLINE_S) -> Artifact:
    """Build the unscheduled program of a task, which says what is right.

    Raises:
        WorkError: it does not build.
    """
    async with stage(context, task, "build", Role.BUILDER) as grant:
        reference, _ = await context.runtime.call(grant.worker, "yardsticks", task, deadline_s=deadline_s, tries=2)
        built = await call_build(context, task, grant.worker, reference, tries=2)
    if isinstance(built, Measurement):
        raise WorkError(f"the unscheduled program does not build: {built.detail}")
    return built


async def build_all(  # noqa: PLR0917 - what a batch of builds needs
    context: Context,
    task: Task,
    candidates: Sequence[Candidate],
    on_failure: Callable[[Candidate, Measurement], object],
    on_chunk: Callable[[BuiltChunk], object] = lambda _: None,
    how: Builds = Builds(),
) -> list[BuiltCandidate]:
    """Build candidates and return those that built.

    Of each other one `on_failure` hears at once, and `on_chunk` of each chunk when it ends or is cut short.
    """
    built: list[BuiltCandidate] = []

    async def some(candidates: Sequence[Candidate]) -> None:
        chunk, loop = BuiltChunk(), asyncio.get_running_loop()
        try:
            async with stage(context, task, "build", Role.BUILDER, len(candidates)) as chunk.grant:
                for candidate in candidates:
                    started = loop.time()
                    result = await call_build(
                        context, task, chunk.grant.worker, candidate, how.tries, deadline_s=how.deadline_s
                    )
                    took_s = loop.time() - started
                    if isinstance(result, Measurement):
                        failed = replace(result, build_s=took_s)
                        on_failure(candidate, failed)
                        chunk.failed.append((candidate, failed))
                    else:
                        chunk.built.append(BuiltCandidate(candidate, result, took_s))
        finally:  # what has failed is a trial, also if a stop cuts the rest short
            chunk.built = [replace(one, core_s=chunk.core_s(one.wall_s)) for one in chunk.built]
            built.extend(chunk.built)
            on_chunk(chunk)

    await together([some(candidates[i : i + how.chunk]) for i in range(0, len(candidates), how.chunk)])
    return built


async def race_in_turn(
    context: Context,
    task: Task,
    built: Sequence[BuiltCandidate],
    reference: Artifact,
    on_result: Callable[[Candidate, Measurement], object],
    *,
    best_s: float | None = None,
) -> list[Measurement]:
    """Race candidates one after the other on one measurer, each against the best so far; return what each gave."""
    found: list[Measurement] = []
    async with stage(context, task, "measure", Role.MEASURER, len(built)) as grant:
        for one in built:
            measurement = await race(
                context, task, grant.worker, (one.candidate, one.artifact), reference,
                incumbent_s=best_s, baseline_s=1e-3 if found else None,
            )  # fmt: skip
            if measurement.outcome is Outcome.OK and measurement.latency_s:
                best_s = min(measurement.latency_s, best_s or measurement.latency_s)
            found.append(replace(measurement, build_s=one.wall_s))
            on_result(one.candidate, found[-1])
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
