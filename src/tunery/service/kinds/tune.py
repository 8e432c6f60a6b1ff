"""The main job: fast, verified kernels for a network."""

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from tunery._errors import TuneryError, error_of, problem_type
from tunery.domain import Budget, JobState, JobStatus
from tunery.domain.request import Progress, Request
from tunery.engines import Role
from tunery.reports.format import duration
from tunery.reports.job import COMPILED
from tunery.service.budgets.turns import tune_in_turns
from tunery.service.job import Job
from tunery.service.kinds import compile as compile_kind
from tunery.service.kinds._base import JobKind, say
from tunery.service.kinds.compile import FileOptions, compile_network
from tunery.tuning.account import Account
from tunery.tuning.job import TuningJob, leave
from tunery.tuning.work import Work

_POLL_S = 0.2
_MARGIN = 1.5
"""The machine may get slower until the network is compiled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions(FileOptions):
    """Where the network is compiled to once it is tuned ("": nowhere). `reserve_s` of a budget of time are left for
    what the caller does afterwards."""

    output: str = ""
    reserve_s: float = 0.0


def _check(options: TuneOptions, request: Request) -> None:
    if options.output:
        compile_kind.check(options, request)


async def _tune(job: Job, options: TuneOptions) -> JobStatus:
    assert job.status is not None
    several, reserve, output = len(job.request.dialects) > 1, _reserve(job, options), options.output

    async def turn(one: Work, status: JobStatus, began: float) -> JobStatus:
        name = one.request.dialect
        device, searches = await job.device(one), job.runtimes.searches(one.runtime)
        beside = [task for task in status.tasks if task.dialect != name] if several else []
        tuning = TuningJob(
            one, status, device, job.stop, searches, began, ending=job.ending,
            deliver=deliver if output and not several else None, beside=beside, goes_on=several,
            **({} if several else {"reserve": reserve}),
        )  # fmt: skip
        if job.month is not None:
            job.month.meter(tuning.money, tuning.limit_money)
        claim, dispatch, open_ = job.claim, job.runtimes.dispatch, True
        dispatch.submit(job.job_id, claim.owner, claim.weight, claim.priority, tuning.planned)

        async def worked() -> None:
            nonlocal open_
            if open_:
                open_ = False
                await job.keep_stages(dispatch.end(job.job_id))

        try:
            return await tuning.run(worked)
        finally:
            await worked()  # where it never began

    async def deliver(account: Account) -> str:
        return await _compile(job, _compiling(job, options, account), options)

    if not several:
        return await turn(job.work, job.status, job.began)
    budget = job.request.budget
    if budget.seconds is not None:
        budget = replace(budget, seconds=max(budget.seconds - reserve(_tunable(job)), 1e-3))
    status = await tune_in_turns(job.work, replace(job.request, budget=budget), job.status, job.began, turn)
    if status.state is not JobState.RUNNING:
        return status
    if output:
        reached = status
        await job.store.write(lambda store: store.save_job(reached))
        undelivered = await job.work_on(_compiling(job, options), lambda made: _compile(job, made, options))
        stored = await job.store.read(lambda store: store.job(reached.job_id))
        message = ". ".join(part for part in (status.message, undelivered) if part)
        status = replace(status, spend=stored.spend, message=message)
    status = replace(status, state=JobState.STOPPED if job.stop.is_set() else JobState.DONE)
    await job.store.write(partial(leave, status=status))
    return status


def _tunable(job: Job) -> int:
    return sum(task.tunable for work in job.works for task in work.model_read.tasks)


def _reserve(job: Job, options: TuneOptions) -> Callable[[int], float]:
    """Return how much of a budget of time is kept for compiling, comparing and ending, by the number of untried tasks.
    Where the whole does not fit, this is said now, and nothing is searched; of a job without a network to compare it is
    at most half of the budget. What parts take is told by this model's reading, or its last compilation."""
    seconds, output = job.request.budget.seconds, options.output
    if seconds is None:
        return lambda _: 0.0
    judged = sum(bool(one.model_read.network.blob) for one in job.works) if output else 0
    most_s, tunable = math.inf if judged else 0.5 * seconds, max(_tunable(job), 1)

    def needed_s(untried: int) -> float:
        whole_s = options.reserve_s
        for work in job.works if output else ():
            times, builders = work.times, len(work.runtime.workers(Role.BUILDER))
            judging_s = times.judging_s * bool(work.model_read.network.blob)
            choosing_s = times.choosing_s / builders * untried / tunable
            whole_s += _MARGIN * work.runtime.slowness * (choosing_s + times.linking_s + judging_s)
        return whole_s

    at_least_s = time.monotonic() - job.began + needed_s(tunable)
    if at_least_s > seconds:
        needs = f"this model needs about {duration(at_least_s)} to read and compile here"
        say(job.work, f"{needs}: what is not measured is predicted")
    return lambda untried: min(needed_s(untried), most_s)


def _compiling(job: Job, options: TuneOptions, account: Account | None = None) -> Work:
    assert job.status is not None
    seconds = job.request.budget.seconds

    def notify(progress: Progress) -> None:
        before, elapsed_s = job.latest, time.monotonic() - job.began
        if before is None:
            job.tell(progress)
            return
        left_s = None if seconds is None else seconds - before.earlier_s - elapsed_s
        job.tell(
            replace(before, phase=progress.phase, current="", elapsed_s=elapsed_s, remaining_s=left_s, reserve_s=0)
        )

    until = None if seconds is None else job.began + seconds - job.status.spend.wall_s - options.reserve_s
    each = list[Work]()
    for work in job.works:
        request = replace(work.request, budget=Budget(), latency_target_s=None)
        compiling = replace(work, request=request, notify=notify, others=(), until=until)
        each.append(replace(compiling, account=account or job.account(compiling)))
    return replace(each[0], others=tuple(each[1:]))


async def _compile(job: Job, work: Work, options: TuneOptions) -> str:
    compiling = asyncio.create_task(compile_network(work, options))
    try:
        while not (await asyncio.wait([compiling], timeout=_POLL_S))[0]:
            if job.stop.is_set():
                return "the network is not compiled yet"
        job.compiled, answer = await compiling
    except TuneryError as error:
        job.undelivered = error_of(problem_type(error), f"the network was not compiled: {error}")
        return str(job.undelivered)
    finally:
        compiling.cancel()
        await asyncio.gather(compiling, return_exceptions=True)
    for tuned, compiled in zip(job.works, work.each, strict=True):
        tuned.imported = compiled.imported  # it may run further nodes in ONNX Runtime
    await job.store.write(lambda store: store.events.append(COMPILED, answer, work.job_id))
    return ""


TUNE = JobKind(
    name="tune", options=TuneOptions, check=_check, go_on=_tune, has_budget=True, several_dialects=True,
    asked=("output", "onnxruntime", "inputs"),
)  # fmt: skip
