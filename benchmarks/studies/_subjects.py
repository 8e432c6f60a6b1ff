"""Real tasks with many built candidates: proposed and built once, measured by every procedure of a study."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from studies._kept import Kept
from tunery._errors import DialectError, EngineError, WorkError
from tunery.domain import Artifact, Candidate, Task
from tunery.domain.request import Request
from tunery.engines import Role
from tunery.runtime.calibrate import Entrant
from tunery.runtime.runtime import Runtime
from tunery.store import AsyncStore
from tunery.tuning.work import Work

JOB = "study"
_PROPOSE_DEADLINE_S, _BUILD_DEADLINE_S = 600.0, 60.0
_CHUNK = 8


@dataclass(frozen=True, slots=True)
class Subject:
    """One task, its unscheduled program, and its candidates, all built."""

    task: Task
    reference: Entrant
    entrants: tuple[Entrant, ...]

    @property
    def name(self) -> str:
        """The task as tables call it."""
        shape = "x".join(str(size) for size in self.task.workload.output_specs[0].shape)
        return f"{self.task.workload.kind} {shape}"


async def prepare(
    runtime: Runtime,
    store: AsyncStore,
    wanted: Sequence[tuple[Request, str]],
    count: int,
    say: Callable[[str], None],
    kept: Kept,
) -> list[Subject]:
    """Return the heaviest task of each wanted (request, kind), with `count` candidates drawn from its design space.

    They are as a search has them that knows nothing yet: what one proposes that has learned lies close together.
    What `kept` holds of an interrupted run is not proposed again.

    Raises:
        UsageError: a model is wrong.
        WorkError: a model has no tunable task of the kind, or its reference does not build.
    """
    runtime.dispatch.submit(JOB)
    tasks = []
    for request, kind in wanted:
        say(f"extracting the {kind} tasks of {request.model}")
        imported = await Work(runtime, store, request, JOB).model()
        found = next((t for t in imported.tasks if t.workload.kind == kind and t.tunable), None)
        if found is None:
            raise WorkError(f"{request.model} has no tunable task of kind {kind}; choose another network or kind")
        tasks.append(found)
    say(f"proposing and building {count} candidates for each of {len(tasks)} tasks")
    subjects = await asyncio.gather(*(_subject(runtime, task, count, kept) for task in tasks))
    runtime.dispatch.end(JOB)
    return list(subjects)


async def _subject(runtime: Runtime, task: Task, count: int, kept: Kept) -> Subject:
    candidates = kept.candidates(task.key)
    if not candidates:
        candidates = await _propose(runtime, task, count)
        kept.keep_candidates(task.key, candidates)
    async with runtime.stage(JOB, "build", Role.BUILDER) as grant:
        yardstick, _ = await runtime.call(grant.worker, "baselines", task, deadline_s=_BUILD_DEADLINE_S)
        reference = await runtime.call(grant.worker, "build", task, yardstick, deadline_s=_BUILD_DEADLINE_S)
    chunks = [candidates[i : i + _CHUNK] for i in range(0, len(candidates), _CHUNK)]
    built = await asyncio.gather(*(_build(runtime, task, chunk) for chunk in chunks))
    entrants = tuple(entrant for part in built for entrant in part)
    if not entrants:
        raise WorkError(f"no candidate of {task.workload.name} builds")
    return Subject(task, (yardstick, reference), entrants)


async def _propose(runtime: Runtime, task: Task, count: int) -> list[Candidate]:
    candidates: dict[str, Candidate] = {}
    async with runtime.stage(JOB, "propose", Role.PROPOSER) as grant:
        await runtime.call(grant.worker, "open", task, [], None, 0, deadline_s=_PROPOSE_DEADLINE_S)
        while len(candidates) < count:
            left = min(64, count - len(candidates))
            proposal = await runtime.call(grant.worker, "propose", task.key, left, [], deadline_s=_PROPOSE_DEADLINE_S)
            before = len(candidates)
            for candidate in proposal.candidates:
                candidates.setdefault(candidate.key, candidate)
            if len(candidates) == before:
                break
    return list(candidates.values())


async def _build(runtime: Runtime, task: Task, chunk: Sequence[Candidate]) -> list[Entrant]:
    built: list[Entrant] = []
    async with runtime.stage(JOB, "build", Role.BUILDER, size=len(chunk)) as grant:
        for candidate in chunk:
            try:
                artifact: Artifact = await runtime.call(
                    grant.worker, "build", task, candidate, deadline_s=_BUILD_DEADLINE_S
                )
            except (DialectError, EngineError):
                continue
            built.append((candidate, artifact))
    return built
