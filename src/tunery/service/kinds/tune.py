"""The main job: fast, verified kernels for a network."""

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from tunery._errors import TuneryError, error_of, problem_type
from tunery.domain import Budget, JobState, JobStatus
from tunery.domain.request import Progress, Request
from tunery.reports.format import duration
from tunery.reports.job import COMPILED
from tunery.service.budgets.turns import tune_in_turns
from tunery.service.kinds import compile as compile_kind
from tunery.service.kinds._base import JobAtWork, JobKind, say
from tunery.service.kinds.compile import FileOptions, compile_network
from tunery.tuning.account import Account
from tunery.tuning.job import TuningJob, leave
from tunery.tuning.work import Work

_POLL_S = 0.2
_JUDGED_S, _PREDICTED_S, _LINKED_S, _CLOSING_S, _MOST_SLOWNESS = 2.0, 0.2, 0.1, 0.5, 6.0
"""On a quiet machine: judging a network, predicting and linking a kernel, and ending; and how much slower it may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions(FileOptions):
    """Where the network is compiled to once it is tuned ("": nowhere).

    `reserve_s` of a budget of time are left for what the caller does afterwards.
    """

    output: str = ""
    reserve_s: float = 0.0


def _check(options: TuneOptions, request: Request) -> None:
    if options.output:
        compile_kind.check(options, request)


async def _tune(at: JobAtWork[TuneOptions]) -> JobStatus:
    """Tune for one dialect, or for several in turns, and compile what was reached if the options say where to."""
    place, job, work, output = at.place, at.job, at.work, at.options.output
    several, reserve = len(job.request.dialects) > 1, _reserve(at)

    async def turn(one: Work, status: JobStatus, began: float) -> JobStatus:
        name = one.request.dialect
        device, searches = await place.device(one), place.runtimes.searches(one.runtime)
        beside = [task for task in status.tasks if task.dialect != name] if several else []
        tuning = TuningJob(
            one, status, device, job.stop, searches, began, ending=job.ending,
            deliver=deliver if output and not several else None, beside=beside, goes_on=several,
            **({} if several else {"reserve": reserve}),
        )  # fmt: skip
        if job.month is not None:
            job.month.meter(tuning.money, tuning.limit_money)
        return await _run(at, tuning)

    async def deliver(account: Account) -> str:
        return await _compile(at, _compiling(at, account))

    if not several:
        return await turn(work, at.status, at.began)
    budget = job.request.budget
    if budget.seconds is not None:
        budget = replace(budget, seconds=max(budget.seconds - reserve(_tunable(at)), 1e-3))
    status = await tune_in_turns(work, replace(job.request, budget=budget), at.status, at.began, turn)
    if status.state is not JobState.RUNNING:
        return status
    if output:
        reached = status
        await place.store.write(lambda store: store.save_job(reached))
        undelivered = await place.work_on(job, _compiling(at), lambda made: _compile(at, made))
        stored = await place.store.read(lambda store: store.job(reached.job_id))
        message = ". ".join(part for part in (status.message, undelivered) if part)
        status = replace(status, spend=stored.spend, message=message)
    status = replace(status, state=JobState.STOPPED if job.stop.is_set() else JobState.DONE)
    await place.store.write(partial(leave, status=status))
    return status


def _tunable(at: JobAtWork[TuneOptions]) -> int:
    return sum(task.tunable for one in at.work.each for task in one.model_read.tasks)


def _reserve(at: JobAtWork[TuneOptions]) -> Callable[[int], float]:
    """Return how much of a budget of time is kept for compiling, comparing and ending, by the number of untried tasks.

    Where the whole does not fit, this is said now, and nothing is searched; of a job without a network to compare it is
    at most half of the budget.
    """
    seconds, output = at.job.request.budget.seconds, at.options.output
    if seconds is None:
        return lambda _: 0.0
    slowness = min(max(os.getloadavg()[0] / at.work.runtime.granted, 1.0), _MOST_SLOWNESS)
    judged = sum(bool(one.model_read.network.blob) for one in at.work.each) if output else 0
    fixed_s = at.options.reserve_s + min(_CLOSING_S, 0.02 * seconds)
    fixed_s += slowness * (_JUDGED_S * judged + _LINKED_S * _tunable(at) * bool(output))
    each_s = slowness * _PREDICTED_S * bool(output)
    needed_s = time.monotonic() - at.began + fixed_s + each_s * _tunable(at)
    if needed_s > seconds:
        say(
            at.work,
            f"this model needs about {duration(needed_s)} to read and compile here: what is not measured is predicted",
        )
    most_s = (1.0 if judged else 0.5) * seconds
    return lambda untried: min(fixed_s + each_s * untried, most_s)


async def _run(at: JobAtWork[TuneOptions], tuning: TuningJob) -> JobStatus:
    job_id, claim, dispatch = at.status.job_id, at.job.claim, at.place.dispatch
    dispatch.submit(job_id, claim.owner, claim.weight, claim.priority, tuning.planned)
    open_ = True

    async def worked() -> None:
        nonlocal open_
        if open_:
            open_ = False
            await at.place.keep_stages(job_id, dispatch.end(job_id))

    try:
        return await tuning.run(worked)
    finally:
        await worked()  # where it never began


def _compiling(at: JobAtWork[TuneOptions], account: Account | None = None) -> Work:
    """Return what a job that has tuned compiles its network with; `account` pays for it (None: a new one)."""

    def notify(progress: Progress) -> None:
        before, elapsed_s = at.job.latest, time.monotonic() - at.began
        if before is None:
            at.job.tell(progress)
            return
        left_s = None if seconds is None else seconds - before.earlier_s - elapsed_s
        at.job.tell(
            replace(before, phase=progress.phase, current="", elapsed_s=elapsed_s, remaining_s=left_s, reserve_s=0)
        )

    seconds = at.job.request.budget.seconds
    until = None if seconds is None else at.began + seconds - at.status.spend.wall_s - _CLOSING_S
    each = list[Work]()
    for one in at.work.each:
        request = replace(one.request, budget=Budget(), latency_target_s=None)
        compiling = replace(one, request=request, job_id=at.status.job_id, notify=notify, others=(), until=until)
        each.append(replace(compiling, account=account or at.place.account(compiling)))
    return replace(each[0], others=tuple(each[1:]))


async def _compile(at: JobAtWork[TuneOptions], work: Work) -> str:
    """Compile what a job has tuned unless it is stopped; return why that was not possible."""
    compiling = asyncio.create_task(compile_network(work, at.options))
    try:
        while not (await asyncio.wait([compiling], timeout=_POLL_S))[0]:
            if at.job.stop.is_set():
                return "the network is not compiled yet"
        at.job.compiled, answer = await compiling
    except TuneryError as error:
        at.job.undelivered = error_of(problem_type(error), f"the network was not compiled: {error}")
        return str(at.job.undelivered)
    finally:
        compiling.cancel()
        await asyncio.gather(compiling, return_exceptions=True)
    for tuned, compiled in zip(at.work.each, work.each, strict=True):
        tuned.imported = compiled.imported  # it may run further nodes in ONNX Runtime
    await at.place.store.write(lambda store: store.events.append(COMPILED, answer, work.job_id))
    return ""


TUNE = JobKind(
    name="tune", options=TuneOptions, check=_check, go_on=_tune, has_budget=True, several_dialects=True,
    asked=("output", "onnxruntime"),
)  # fmt: skip
