"""A job done: its model is read, tuned or asked about, its network is compiled, and all of that is charged to it."""

import asyncio
import itertools
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from tunery._errors import EngineError, StoreError, UsageError, problem_type
from tunery.accounting.prices import load_prices
from tunery.domain import HERE, JobState, JobStatus
from tunery.domain.request import TuneReport
from tunery.reports.data import described, tune_report
from tunery.runtime.runtime import Reservation
from tunery.service import stored_jobs
from tunery.service.checks import check_dialects
from tunery.service.codec import request_data
from tunery.service.kinds import KINDS, options_of, resumable
from tunery.service.kinds._base import JobAtWork
from tunery.service.workplace import Assignment, Workplace
from tunery.store import Store
from tunery.tuning.job import HEARTBEAT_S
from tunery.tuning.work import Work

_log = logging.getLogger(__name__)
R = TypeVar("R")


class JobRunner(Workplace):
    """Does jobs, any number at once, of any kind.

    Which job is done, and when, is for its caller to say: a session, which does one after the other, or the manager.
    """

    def __init__(
        self, store: Store, *, strategy: str = "predictive", record: bool = True, follow_hosts: bool = False
    ) -> None:
        super().__init__(store, strategy=strategy, record=record, follow_hosts=follow_hosts)
        self._names: set[str] = set()

    # -- in the caller's own task ---------------------------------------------------------------------------------

    async def tune(self, job: Assignment, job_id: str = "", began: float | None = None) -> TuneReport:
        """Tune, or do another resumable job, going on with an equal unfinished one, or with `job_id`.

        The budget counts from `began` (monotonic seconds; None: from now).
        """
        began, options = time.monotonic() if began is None else began, options_of(job.request)
        if not resumable(job.request.kind):
            raise UsageError(f"a job of kind {job.request.kind} answers, and has nothing to go on with")
        work = await self.read(job, self._name("import"))
        for one in work.each:
            await self.device(one)
        plain, prices = request_data(job.request, work.model_read), load_prices(job.request.prices)
        known = _beginning(work)
        status, resumed = await self.store.write(
            partial(stored_jobs.begin, job_id=job_id, request=plain, known=known, prices=prices)
        )
        for one in work.each:
            one.job_id = status.job_id
        beating = asyncio.create_task(self.keep_alive(status.job_id, job.stop.set))
        try:
            with self.dispatch.machine.running(status.job_id, began):
                done = await self._go_on(JobAtWork(self, job, work, status, began, options))
        except BaseException as error:
            ended = job.ending(), "", ""
            if isinstance(error, Exception):
                ended = JobState.FAILED, str(error)[:1000], problem_type(error)
            with suppress(StoreError):  # the first error is the one to tell
                await self.store.write(lambda store: stored_jobs.end(store, status.job_id, *ended))
            raise
        finally:
            beating.cancel()
        report = tune_report(done, known, self.store.place, resumed=resumed)
        tasks = tuple(task for one in work.each for task in one.model_read.tasks)
        return replace(
            report, network=work.model_read.network, tasks=tasks, compiled=job.compiled, undelivered=job.undelivered
        )

    async def do(self, job: Assignment, run: Callable[[Work], Awaitable[R]]) -> R:
        """Do a job that answers, which is neither stored nor charged."""
        check_dialects(job.request)
        name = self._name(job.request.kind)
        self._names.add(name)
        try:
            return await self.work_on(job, await self.works(job, name, charged=False), run)
        finally:
            self._names.discard(name)

    async def do_charged(self, job: Assignment, run: Callable[[Work], Awaitable[R]]) -> R:
        """Do as `do`, as a stored job, to which all that it measures is charged."""
        check_dialects(job.request)
        await self.runtimes.connected(job.request.each_dialect[0])
        data = request_data(job.request, job.known(job.request))
        job_id = await self.store.write(partial(stored_jobs.create_at_work, request=data))
        beating = asyncio.create_task(self.keep_alive(job_id, lambda: None))
        state, why, problem = JobState.FAILED, "", ""
        try:
            with self.dispatch.machine.running(job_id):
                result = await self.work_on(job, await self.works(job, job_id), run)
            state = JobState.DONE
        except asyncio.CancelledError:
            state = JobState.CANCELLED
            raise
        except Exception as error:
            why, problem = str(error)[:1000], problem_type(error)
            raise
        finally:
            beating.cancel()
            with suppress(StoreError):  # the first error is the one to tell
                await self.leave(job_id, state, why, problem=problem)
        return result

    # -- stored jobs ----------------------------------------------------------------------------------------------

    async def do_stored(self, job: Assignment, job_id: str) -> None:
        """Do a stored job that is at work here; it is left as done."""
        with self.dispatch.machine.running(job_id):
            await (self._go_on_stored if resumable(job.request.kind) else self._answer_stored)(job, job_id)

    async def _go_on_stored(self, job: Assignment, job_id: str) -> None:
        """Go on with a stored job that is at work here."""
        began, request = time.monotonic(), job.request
        begun = await self.store.read(lambda store: store.job(job_id))
        stored_jobs.check_currency(begun, load_prices(request.prices))
        job.tell(job.importing(job_id))
        used = list[Reservation]()
        try:
            work = await self.read(job, job_id, used)
            for one in work.each:
                await self.device(one)
            plain = request_data(request, work.model_read, job.claim)
            status = await self.store.write(
                partial(stored_jobs.specify, job_id=job_id, request=plain, known=_beginning(work))
            )
            options = options_of(request)
        except BaseException:
            for one in job.readers:
                one.runtime.claim(-one.model_read.core_s)
            with suppress(StoreError, UsageError, EngineError):  # the first error is the one to tell
                await self.charge_in_vain(job, job_id, used, time.monotonic() - began)
            raise
        done = await self._go_on(JobAtWork(self, job, work, status, began, options))
        log_state(job_id, done.state, job, done.message)

    async def _go_on(self, at: JobAtWork[Any]) -> JobStatus:
        """Charge a job for the reading of its model and do what is left of it; it is left as it stands then."""
        go_on = KINDS[at.job.request.kind].go_on
        assert go_on is not None
        for one in at.work.each:
            await self.charge_import(one)
        done = await go_on(at)
        await self.store.write(partial(_leave_held, done=done))
        return done

    async def _answer_stored(self, job: Assignment, job_id: str) -> None:
        """Do a stored job that answers: its answer is an event of the job, its cost is charged to it."""
        options, run = options_of(job.request), KINDS[job.request.kind].run
        assert run is not None
        work = await self.works(job, job_id)
        if job.month is not None:
            before = job.month.before
            job.month.meter(lambda: before + _cost(work))
        answer = await self.work_on(job, work, lambda work: run(work, options))
        known = request_data(job.request, work.imported, job.claim) if work.imported is not None else None
        await self.store.write(partial(stored_jobs.save_answer, job_id=job_id, answer=answer, request=known))
        log_state(job_id, JobState.DONE, job)

    async def keep_alive(self, job_id: str, lost: Callable[[], object]) -> None:
        """Say now and then that a job is at work here, until another process has it: then it is `lost`."""
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            with suppress(StoreError):  # one that is only busy answers the next time
                if not await self.store.heartbeat(job_id):
                    lost()
                    return

    async def leave(
        self, job_id: str, state: JobState, message: str, job: Assignment | None = None, problem: str = ""
    ) -> None:
        left = partial(stored_jobs.leave, job_id=job_id, state=state, message=message, problem=problem)
        await self.store.write(left)
        log_state(job_id, state, job, message)

    def _name(self, kind: str) -> str:
        names = (kind if number == 1 else f"{kind} {number}" for number in itertools.count(1))
        return next(name for name in names if name not in self._names)


def _leave_held(store: Store, done: JobStatus) -> None:
    if store.lease(done.job_id) is not None:
        stored_jobs.end(store, done.job_id, done.state, done.message, done.problem)


def _cost(work: Work) -> float:
    """Return what a job has cost so far: its part of the machine's time, and the energy of all its dialects."""
    account = work.account
    assert account is not None
    joules = sum(one.account.joules() for one in work.each if one.account is not None)
    machine = account.prices.of_machine(work.runtime.granted * account.machine_s())
    return machine + account.prices.of_energy(joules)


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


def log_state(job_id: str, state: JobState, job: Assignment | None, message: str = "") -> None:
    more = {"job": job_id, "state": state.value}
    if job is not None:
        more |= {"account": job.claim.owner, "kind": job.request.kind, "host": job.request.on or HERE}
    level = logging.WARNING if state is JobState.FAILED else logging.INFO
    _log.log(level, "job %s is %s%s", job_id, state.value, message and f": {message}", extra=more)
