"""What the parts of a job share, and single calls to workers; a candidate's failure is a measurement, no error."""

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Any

from tunery._errors import DialectError, EngineError, RemoteError, WorkError, brief
from tunery.domain import Artifact, Candidate, Measurement, Mode, Outcome, Provenance, Record, Task
from tunery.domain.request import Trimming
from tunery.engines import Role
from tunery.runtime import failure
from tunery.runtime.runtime import Reservation, Runtime
from tunery.store import AsyncStore, Charge
from tunery.tuning.account import Account, PricedCharge
from tunery.tuning.learning import Learning


@dataclass
class Context:
    """One job's means: what is done in its name is charged to it. `trials` are the candidates tried on its tasks while
    it ran, whichever job paid for them. `cut_off` says that it is to wait for nobody any more. `lost` counts by outcome
    the trials of batches in which none was timed; `why_lost` is the latest one's reason."""

    job_id: str
    runtime: Runtime
    store: AsyncStore
    provenance: Provenance
    seed: int
    account: Account
    learning: Learning
    trimming: Trimming = field(default_factory=Trimming)
    trials: int = 0
    trials_in_flight: int = 0
    most_trials: int | None = None
    cut_off: Callable[[], bool] = lambda: False
    lost: Counter[str] = field(default_factory=Counter)
    why_lost: str = ""

    @property
    def takes_part(self) -> bool:
        """Whether what another job tries counts for this one too: its own trials, on their way, come first."""
        return self.most_trials is None or self.trials + self.trials_in_flight < self.most_trials

    def lose(self, batch: Sequence[Measurement]) -> None:
        self.lost.update(one.outcome.value for one in batch)
        self.why_lost = brief(batch[-1].detail)

    @property
    def lost_summary(self) -> str:
        said = ", ".join(f"{count} {outcome}" for outcome, count in sorted(self.lost.items()))
        why = f": {self.why_lost}" if self.why_lost else ""
        return f"{self.lost.total()} trials are lost in batches of which none was timed ({said}{why})" if said else ""

    def record(self, candidate: Candidate, measurement: Measurement) -> Record:
        return Record(candidate, measurement, self.provenance, self.job_id, self.runtime.measured_on)

    async def keep(
        self, task: Task, candidate: Candidate, measurement: Measurement, bills: Sequence[PricedCharge]
    ) -> None:
        """Store a measurement with what it has cost."""
        await self.account.record(task, [self.record(candidate, measurement)], bills)

    def bill(
        self,
        task_key: str,
        stage: str,
        outcome: str,
        used: Reservation,
        count: int = 1,
        *,
        device: bool = False,
        helped: bool = False,
    ) -> PricedCharge:
        """`device` says whether its share of the device was held meanwhile, `helped` that it went into a candidate that
        was its task's best when it was measured."""
        device_s = used.wall_s * used.share if device else 0.0
        one = Charge(
            self.job_id, task_key, stage, outcome, used.wall_s, used.core_s, device_s,
            count=max(count, 1), helped=helped, host=used.host,
        )  # fmt: skip
        return PricedCharge(one, used.wall_s * used.cores)

    async def charge(self, task_key: str, stage: str, outcome: str, grant: Reservation, count: int) -> None:
        await self.account.post([self.bill(task_key, stage, outcome, grant, count)])


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
    delivered: bool = False,
) -> AbstractAsyncContextManager[Reservation]:
    return context.runtime.stage(
        context.job_id, kind, role, task.workload.kind, size, worker, degree, delivered=delivered
    )


async def call_build(
    context: Context,
    task: Task,
    worker: str,
    candidate: Candidate,
    tries: int = 1,
    *,
    deadline_s: float | None = None,
) -> Artifact | Measurement:
    """Build a candidate on a worker that is held; return why not if it fails. The artifact is there until it is
    discarded."""
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


async def baseline_candidates(context: Context, task: Task) -> tuple[Candidate, Candidate]:
    async with stage(context, task, "build", Role.BUILDER, 0) as grant:
        found: tuple[Candidate, Candidate] = await context.runtime.call(
            grant.worker, "baselines", task, deadline_s=BUILD_DEADLINE_S, tries=2
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
    """Race a candidate on a measurer that is held, against `incumbent_s`; `deviation` is the share by which the
    `degree` measurements on the device are expected to slow it."""
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
