"""Real tasks with many built candidates: found and built once, measured by every procedure of a study."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tunery._errors import DialectError, EngineError, WorkError
from tunery.domain import Artifact, Budget, Candidate, Mode, Origin, Outcome, Task
from tunery.engines import Role
from tunery.jobs import Request, extract
from tunery.jobs.runtime import Runtime
from tunery.jobs.session import tune_tasks
from tunery.jobs.slots import Entrant
from tunery.store import open_store
from tunery.studies._kept import Kept

JOB = "study"
_BUILD_DEADLINE_S = 60.0
_CHUNK = 8
_BUILT = frozenset({Outcome.OK, Outcome.ABANDONED})


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


def choose(
    wanted: Sequence[tuple[Request, str]], count: int, kept: Kept, say: Callable[[str], None]
) -> list[tuple[Task, list[Candidate]]]:
    """Return the heaviest task of each wanted (request, kind), with what a job of `count` trials tries, in order.

    The job starts cold, so these are candidates as a search has them: drawn, guided by a model, bred from the best.
    What `kept` holds of an interrupted run is not tuned again.

    Raises:
        UsageError: a model is wrong.
        WorkError: a model has no tunable task of the kind.
    """
    found = []
    for request, kind in wanted:
        say(f"extracting {request.model}")
        cold = replace(request, store=str(kept.directory / "tuned.db"), budget=Budget(trials=count))
        task = next((t for t in extract(cold).tasks if t.workload.kind == kind and t.tunable), None)
        if task is None:
            raise WorkError(f"{request.model} has no tunable task of kind {kind}; choose another network or kind")
        candidates = kept.candidates(task.key)
        if not candidates:
            say(f"tuning {task.workload.kind} with {count} trials: they are the candidates")
            candidates = _tried(cold, task)
            kept.keep_candidates(task.key, candidates)
        found.append((task, candidates))
    return found


def _tried(request: Request, task: Task) -> list[Candidate]:
    tune_tasks(request, [task])
    with open_store(request.store) as store:
        records = store.records(task.key, modes=[Mode.RACE, Mode.SHARED])
    tried = [r for r in records if r.candidate.origin is Origin.SEARCH and r.measurement.outcome in _BUILT]
    return list({record.candidate.key: record.candidate for record in tried}.values())


async def build(runtime: Runtime, chosen: Sequence[tuple[Task, Sequence[Candidate]]]) -> list[Subject]:
    """Build the tasks' candidates; what was built before is not built again.

    Raises:
        WorkError: no candidate of a task builds.
    """
    runtime.submit(JOB)
    subjects = await asyncio.gather(*(_subject(runtime, task, candidates) for task, candidates in chosen))
    runtime.end(JOB)
    return list(subjects)


async def _subject(runtime: Runtime, task: Task, candidates: Sequence[Candidate]) -> Subject:
    async with runtime.stage(JOB, "build", Role.BUILDER) as grant:
        yardstick, _ = await runtime.call(grant.worker, "yardsticks", task, deadline_s=_BUILD_DEADLINE_S)
        reference = await runtime.call(grant.worker, "build", task, yardstick, deadline_s=_BUILD_DEADLINE_S)
    chunks = [candidates[i : i + _CHUNK] for i in range(0, len(candidates), _CHUNK)]
    built = await asyncio.gather(*(_build(runtime, task, chunk) for chunk in chunks))
    entrants = tuple(entrant for part in built for entrant in part)
    if not entrants:
        raise WorkError(f"no candidate of {task.workload.name} builds")
    return Subject(task, (yardstick, reference), entrants)


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
