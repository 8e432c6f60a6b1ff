"""One candidate that somebody has sent: built, verified and timed beside the compiler's default, and recorded."""

from dataclasses import dataclass, replace

from tunery._errors import DialectError, UsageError, WorkError
from tunery.domain import Artifact, Candidate, Measurement, Outcome, Task, Verification, median_interval
from tunery.engines import Role
from tunery.runtime.opening import introduce
from tunery.tuning.calls import (
    BUILD_DEADLINE_S,
    FIRST_RACE_DEADLINE_S,
    RACE_DEADLINE_S,
    Context,
    Entrant,
    TaskBaselines,
    build_one,
    stage,
)
from tunery.tuning.calls import race as race_one
from tunery.tuning.learning import Learning
from tunery.tuning.search import finals
from tunery.tuning.search.finals import BuiltBaselines
from tunery.tuning.work import Work

_SHOWN = 4
_REFERENCE_DEADLINE_S, _TIMES_REFERENCE = 60.0, 200  # for kernels that somebody has sent: they may hang


@dataclass(frozen=True, slots=True)
class SingleMeasurement:
    """What became of one candidate; wrong programs are never timed. `latency_s` is the median, `low_s` and `high_s`
    bound it with 95 % confidence; `baseline_s` is the time of the compiler's default, or the kernel author's, called in
    turns with it."""

    task: str
    name: str
    operator: str | None
    candidate: str
    outcome: Outcome
    detail: str
    device: str
    latency_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    samples: int = 0
    baseline_s: float | None = None
    contaminated: bool = False
    verification: Verification | None = None


async def measure(work: Work, task_key: str, body: str) -> SingleMeasurement:
    """Measure the candidate with this body ("": the default itself) of the model's task whose key begins so."""
    task = _chosen((await work.model()).tasks, task_key)
    await introduce(work.runtime, work.store)
    assert work.account is not None, "what is measured is charged"
    provenance = await work.provenance()
    learning = Learning(work.runtime, work.job_id, None)
    context = Context(
        work.job_id, work.runtime, work.store, provenance, work.request.seed, work.account, learning
    )  # fmt: skip
    candidate = await _identified(context, task, body) if body else None
    baselines, at_hand = BuiltBaselines(task), dict[str, Artifact]()
    try:
        return await _measured(context, task, candidate, baselines, at_hand)
    finally:
        for artifact in (*baselines.take(), *at_hand.values()):
            work.runtime.holds.release(artifact.blob)


def _chosen(tasks: tuple[Task, ...], key: str) -> Task:
    found = [task for task in tasks if task.key.startswith(key)]
    if len(found) == 1:
        return found[0]
    shown = ", ".join(f"{one.workload.name} {one.key}" for one in (found or tasks)[:_SHOWN])
    if not found:
        raise UsageError(f"the model has no task {key!r:.40}; it has {shown or 'none'}")
    more = ", ..." if len(found) > _SHOWN else ""
    which = f"have a key that begins with {key!r:.40}" if key else "can be measured"
    raise UsageError(f"{len(found)} tasks of the model {which}; name one by its key: {shown}{more}")


async def _identified(context: Context, task: Task, body: str) -> Candidate:
    async with stage(context, task, "build", Role.BUILDER) as grant:
        try:
            found: Candidate = await context.runtime.call(
                grant.worker, "identify", task, body, deadline_s=BUILD_DEADLINE_S
            )
        except DialectError as error:
            raise UsageError(f"this is no candidate of {task.workload.name}: {error}") from error
    await context.charge(task.key, "build", "", grant, 0)
    return found


async def _measured(
    context: Context,
    task: Task,
    candidate: Candidate | None,
    baselines: BuiltBaselines,
    at_hand: dict[str, Artifact],
) -> SingleMeasurement:
    task_baselines = await baselines.get(context)
    reference = task_baselines.reference[1]
    most_s = await _first_deadline_s(context, task, task_baselines)
    default = await _raced(context, task, task_baselines.baseline, reference, most_s)
    if default.reference_failed:
        raise WorkError(f"nothing can be said of {task.workload.name}: {default.detail}")
    default_s = default.latency_s if default.outcome is Outcome.OK else None
    if candidate is None or candidate.key == task_baselines.baseline[0].key:
        candidate, first, challengers = task_baselines.baseline[0], default, []
    else:
        built = await build_one(context, task, candidate)
        if isinstance(built, Measurement):
            await context.keep(task, candidate, built, [])
            return _told(context, task, candidate, built, None)
        at_hand[candidate.key] = built
        first = await _raced(context, task, (candidate, built), reference, most_s, default_s)
        challengers = [candidate]
    if first.outcome is not Outcome.OK:
        return _told(context, task, candidate, first, None)
    baseline_s, results = await finals.hold(context, task, task_baselines, challengers, default_s, at_hand)
    final = results[-1]
    if final.verification is not None and final.verification.passed and first.verification is not None:
        # One that loses in the finals leaves them before it was compared on all inputs.
        fullest = max(final.verification, first.verification, key=lambda one: one.inputs)
        final = replace(final, verification=fullest)
    return _told(context, task, candidate, final, baseline_s)


async def _first_deadline_s(context: Context, task: Task, task_baselines: TaskBaselines) -> float:
    """Return how long the first race may take: of a kernel that somebody has sent, by the time of its reference."""
    if not context.runtime.runs_users_code:
        return FIRST_RACE_DEADLINE_S
    entrant = task_baselines.reference
    if entrant[0].key == task_baselines.baseline[0].key:
        return _REFERENCE_DEADLINE_S
    found = await _raced(context, task, entrant, entrant[1], _REFERENCE_DEADLINE_S, keep=False)
    if found.latency_s is None:
        raise WorkError(f"nothing can be said of {task.workload.name}: the reference does not run: {found.detail}")
    return min(RACE_DEADLINE_S + _TIMES_REFERENCE * found.latency_s, FIRST_RACE_DEADLINE_S)


async def _raced(  # noqa: PLR0917 - what one race needs
    context: Context,
    task: Task,
    entrant: Entrant,
    reference: Artifact,
    most_s: float,
    baseline_s: float | None = None,
    *,
    keep: bool = True,
) -> Measurement:
    async with stage(context, task, "measure", Role.MEASURER) as grant:
        found = await race_one(
            context, task, grant.worker, entrant, reference, incumbent_s=None, baseline_s=baseline_s,
            first_deadline_s=most_s,
        )  # fmt: skip
    cost = context.bill(task.key, "measure", found.outcome.value, grant, device=True)
    await (context.keep(task, entrant[0], found, [cost]) if keep else context.account.post([cost]))
    return found


def _told(
    context: Context, task: Task, candidate: Candidate, found: Measurement, baseline_s: float | None
) -> SingleMeasurement:
    right = found.outcome is Outcome.OK and found.verification is not None and found.verification.deliverable
    samples = found.samples_s if right else ()
    if found.outcome is Outcome.OK and not right:
        found = replace(found, detail="it is so slow that it was not compared on all inputs, and has no time therefore")
    low, high = median_interval(samples) or (None, None)
    return SingleMeasurement(
        task.key, task.workload.name, task.workload.operator, candidate.key,
        found.outcome, found.detail, context.provenance.device,
        found.latency_s if right else None, low, high, len(samples),
        baseline_s if right else None, bool(found.context.get("contaminated")), found.verification,
    )  # fmt: skip
