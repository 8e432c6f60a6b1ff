"""Single calls to workers for one task, with their deadlines; a candidate's failure is a measurement, not an error."""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace

from tunery._errors import DialectError, EngineError, RemoteError
from tunery.domain import Artifact, Candidate, Measurement, Mode, Outcome, Task
from tunery.engines import Role
from tunery.runtime import failure
from tunery.runtime.runtime import Reservation
from tunery.tuning.context import Context

BUILD_DEADLINE_S = 60.0
RACE_DEADLINE_S, FIRST_RACE_DEADLINE_S = 10.0, 300.0  # naive loops take seconds, and the first race has no yardstick

Entrant = tuple[Candidate, Artifact]


@dataclass(frozen=True, slots=True)
class TaskBaselines:
    """What a task's candidates are compared with: the unscheduled program (right), and the untuned one (fast)."""

    reference: Entrant
    baseline: Entrant


def stage(  # noqa: PLR0917 - the fields of a stage request
    context: Context,
    task: Task,
    kind: str,
    role: Role,
    size: int = 1,
    worker: str | None = None,
    *,
    degree: int = 1,
    runs: bool = False,
) -> AbstractAsyncContextManager[Reservation]:
    return context.runtime.stage(context.job_id, kind, role, task.workload.kind, size, worker, degree, runs=runs)


async def call_build(
    context: Context,
    task: Task,
    worker: str,
    candidate: Candidate,
    tries: int = 1,
    *,
    deadline_s: float | None = None,
) -> Artifact | Measurement:
    """Build a candidate on a worker that is held; return why not if it fails, or takes longer than a build may.

    The artifact is there until it is discarded.
    """
    runtime = context.runtime
    deadline_s = BUILD_DEADLINE_S if deadline_s is None else deadline_s
    try:
        artifact: Artifact = await runtime.make(worker, "build", task, candidate, deadline_s=deadline_s, tries=tries)
    except DialectError as error:
        return Measurement(Outcome.BUILD_FAILED, detail=str(error))
    except RemoteError as error:
        return Measurement(Outcome.BUILD_FAILED, detail=f"{error.kind}: {error}")
    except EngineError as error:
        return failure(error)
    return artifact


async def build_one(context: Context, task: Task, candidate: Candidate) -> Artifact | Measurement:
    async with stage(context, task, "build", Role.BUILDER) as grant:
        result = await call_build(context, task, grant.worker, candidate, tries=2)
    await context.charge(task.key, "build", "", grant, 1)
    return result


async def yardstick_candidates(context: Context, task: Task) -> tuple[Candidate, Candidate]:
    """Return a task's reference and baseline, unbuilt."""
    async with stage(context, task, "build", Role.BUILDER, 0) as grant:
        found: tuple[Candidate, Candidate] = await context.runtime.call(
            grant.worker, "yardsticks", task, deadline_s=BUILD_DEADLINE_S, tries=2
        )
    await context.charge(task.key, "build", "", grant, 0)
    return found


async def race(
    context: Context,
    task: Task,
    worker: str,
    entrant: Entrant,
    reference: Artifact,
    *,
    incumbent_s: float | None,
    baseline_s: float | None,
    degree: int = 1,
    deviation: float = 0.0,
    first_deadline_s: float | None = None,
) -> Measurement:
    """Race a candidate on a measurer that is held, against `incumbent_s`, and check it against the reference.

    `degree` says how many measurements share the device, `deviation` by which share that is expected to slow it.
    Without `baseline_s` it may take `first_deadline_s`, where that is given.
    """
    candidate, artifact = entrant
    # The reference is run first where its outputs are not cached: naive loops, up to seconds.
    deadline_s = RACE_DEADLINE_S + 20 * baseline_s if baseline_s else first_deadline_s or FIRST_RACE_DEADLINE_S
    try:
        measurement: Measurement = await context.runtime.call(
            worker, "race", task, artifact, candidate, incumbent_s, reference, degree, deviation, deadline_s=deadline_s
        )
    except EngineError as error:
        shared = {"degree": degree, "isolated": degree == 1}
        return replace(failure(error), mode=Mode.RACE if degree == 1 else Mode.SHARED, context=shared)
    return measurement
