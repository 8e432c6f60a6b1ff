"""The one way in which a job is done, for a command and for a service alike."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

from tunery._errors import StoreError, problem_type
from tunery.accounting.prices import load_prices
from tunery.domain import JobState, JobStatus
from tunery.reports.data import described
from tunery.runtime.runtime import Reservation
from tunery.service import stored_jobs
from tunery.service.checks import check_dialects
from tunery.service.codec import request_data
from tunery.service.job import Job
from tunery.service.kinds import KINDS, options_of, resumable
from tunery.store import Store
from tunery.tuning.work import Work


async def run(job: Job, answer: Callable[[Work], Awaitable[Any]] | None = None, *, charged: bool = False) -> Any:
    """Do a job, and return what it answers, or how a resumable one stands; if it is held, it is left so. A resumable
    job that is not held is stored once its model is known, where it goes on with an equal unfinished one; one that
    answers is stored if it is to be `charged`. It answers what `answer` returns, else as its kind does."""
    kind, options = KINDS[job.request.kind], None if answer else options_of(job.request)
    check_dialects(job.request)
    if kind.go_on is not None and not answer:
        await _take_up(job)
        await job.charge_import()
        status = await kind.go_on(job, options)
        await job.store.write(partial(_leave_held, done=status))
        job.log(status.state, status.message)
        return status
    if charged:
        await job.runtimes.connected(job.request.each_dialect[0])
        data = request_data(job.request, job.known(job.request))
        job.hold(await job.store.write(partial(stored_jobs.create_at_work, request=data)))
    await job.begin()
    if job.month is not None:
        before = job.month.before
        job.month.meter(lambda: before + job.cost())
    found = await job.work_on(job.work, answer or partial(_as_kind, kind.run, options))
    if job.held:
        imported, told = job.work.imported, None if answer else found
        known = None if imported is None else request_data(job.request, imported, None if charged else job.claim)
        await job.store.write(partial(stored_jobs.save_answer, job_id=job.job_id, answer=told, request=known))
        job.log(JobState.DONE)
    return found


async def run_here(job: Job, answer: Callable[[Work], Awaitable[Any]] | None = None, *, charged: bool = False) -> Any:
    """Do a job that nobody else waits beside: what goes wrong is stored, and raised."""
    if not resumable(job.request.kind):
        job.left = JobState.CANCELLED
    try:
        return await run(job, answer, charged=charged)
    except BaseException as error:
        ended = job.ending(), "", ""
        if isinstance(error, Exception):
            ended = JobState.FAILED, str(error)[:1000], problem_type(error)
        if job.held:
            with suppress(StoreError):  # the first error is the one to tell
                await job.store.write(lambda store: stored_jobs.end(store, job.job_id, *ended))
        raise
    finally:
        job.release()


async def _take_up(job: Job) -> None:
    """Read a resumable job's model; from then on it is held, as the stored job whose words mean this."""
    store, prices = job.store, load_prices(job.request.prices)
    if job.held:
        stored_jobs.check_currency(await store.read(lambda store: store.job(job.job_id)), prices)
        job.tell(job.importing())
    used = list[Reservation]()
    try:
        await job.read(used)
        for work in job.works:
            await job.device(work)
        job.beginning = _beginning(job.work)
        data = request_data(job.request, job.work.model_read, job.claim if job.held else None)
        begin = partial(stored_jobs.begin, job_id=job.job_id, request=data, known=job.beginning, prices=prices)
        specify = partial(stored_jobs.specify, job_id=job.job_id, request=data, known=job.beginning)
        status, job.resumed = await store.write(specify if job.held else begin)
    except BaseException:
        await job.charge_in_vain(used)
        raise
    job.status = status
    if not job.held:
        job.hold(status.job_id)


async def _as_kind(run: Any, options: Any, work: Work) -> Any:
    return await run(work, options)


def _leave_held(store: Store, done: JobStatus) -> None:
    if store.lease(done.job_id) is not None:
        stored_jobs.end(store, done.job_id, done.state, done.message, done.problem)


def _beginning(work: Work) -> dict[str, Any]:
    """Return what a job's report tells beside its status, as plain data: it is known from the job's beginning."""
    imported, calibration = work.model_read, work.runtime.calibration
    return {
        "network": described(imported.network),
        "slots": len(work.runtime.pools.all_slots),
        "calibrated_at": calibration.made_at if calibration else None,
        "elsewhere": dict(imported.elsewhere),
        "threads": imported.target.threads,
    }
