"""A job done: its model is read, tuned or asked about, its network is compiled, and all of that is charged to it."""

import asyncio
import itertools
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from tunery._errors import EngineError, StoreError, TuneryError, UsageError, problem_type
from tunery.accounting.prices import load_prices
from tunery.delivery.work import Work
from tunery.domain import HERE, Budget, DeviceDescription, JobState, JobStatus, Spend
from tunery.domain.request import CompileReport, Progress, Request, ShareRequest, TuneReport
from tunery.reports.data import described, tune_report
from tunery.reports.job import COMPILED, STAGES, stages_payload
from tunery.runtime.dispatch import Dispatch, Span
from tunery.runtime.importing import ImportedModel, import_model
from tunery.runtime.opening import introduce
from tunery.runtime.runtime import Reservation
from tunery.service import stored_jobs
from tunery.service.checks import check_dialects
from tunery.service.codec import request_data
from tunery.service.kinds import KINDS, options_of
from tunery.service.kinds.compile import compile_answer, compile_network
from tunery.service.kinds.tune import TUNE, TuneOptions
from tunery.service.months import MonthShare
from tunery.service.runtimes import Runtimes
from tunery.service.turns import tune_in_turns
from tunery.store import AsyncStore, Charge, Store
from tunery.tuning.account import Account, PricedCharge
from tunery.tuning.job import HEARTBEAT_S, TuningJob, leave

_log = logging.getLogger(__name__)
_POLL_S = 0.2
R = TypeVar("R")


def _ignore(_: object) -> None:
    """Tell nobody."""


def _unknown(_: Request) -> None:
    """Know no model."""


@dataclass(eq=False)
class Assignment:
    """A job to do: for whom, who follows it, and what it may cost.

    `known` returns the model of a request that was read before. Setting `stop` ends tuning in a state that goes on;
    `ending` says which, where the work is cancelled. `month` is the job's part of its account's month.

    Meanwhile `latest` is its progress, and `readers` read a model for it, whose files are held until its end;
    `compiled` is the report of its network.
    """

    request: Request
    claim: ShareRequest = field(default_factory=ShareRequest)
    notify: Callable[[Progress], None] = _ignore
    known: Callable[[Request], ImportedModel | None] = _unknown
    stop: threading.Event = field(default_factory=threading.Event)
    ending: Callable[[], JobState] = lambda: JobState.STOPPED
    month: MonthShare | None = None
    latest: Progress | None = None
    readers: tuple[Work, ...] = ()
    compiled: CompileReport | None = None

    def tell(self, progress: Progress) -> None:
        """Tell who follows it how it stands."""
        self.latest = progress
        self.notify(progress)

    def release(self) -> None:
        """Let go of the files that are held for it."""
        for work in self.readers:
            for blob in work.model_read.blobs:
                work.runtime.release(blob)


class JobRunner:
    """Does jobs, any number at once, over one store, one scheduler and one set of workers; an async context manager.

    Which job is done, and when, is for its caller to say: a session, which does one after the other, or the manager.
    Jobs with the same task share its search, all jobs of a target one cost model; jobs of another dialect, thread count
    or way of measuring get workers of their own, placed by the same scheduler. With `record`, the scheduler's log and
    the span of each stage are kept in `dispatch`. With `follow_hosts`, hosts that are added or removed meanwhile are
    used or left.

    Raises:
        UsageError: the strategy is unknown.
    """

    def __init__(
        self, store: Store, *, strategy: str = "predictive", record: bool = True, follow_hosts: bool = False
    ) -> None:
        self.store = AsyncStore(store)
        self.dispatch = Dispatch(strategy, record=record)
        self.runtimes = Runtimes(self.dispatch, follow=follow_hosts)
        self._names: set[str] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.runtimes.close()
        self.store.close()

    # -- in the caller's own task ---------------------------------------------------------------------------------

    async def tune(self, job: Assignment, job_id: str = "", began: float | None = None) -> TuneReport:
        """Tune, going on with an equal unfinished job, or with `job_id`.

        The budget counts from `began` (monotonic seconds; None: from now).

        Raises:
            UsageError: the request cannot be right, or is no longer that of job `job_id`.
            WorkError: there is nothing to tune, or another process works on the same job.
            NothingFoundError: there is no job `job_id`.
        """
        began, options = time.monotonic() if began is None else began, _tune_options(job.request)
        work = await self._read(job, self._name("import"))
        for one in work.each:
            await self._device(one)
        plain, prices = request_data(job.request, work.model_read), load_prices(job.request.prices)
        known = _beginning(work)
        status, resumed = await self.store.write(
            partial(stored_jobs.begin, job_id=job_id, request=plain, known=known, prices=prices)
        )
        beating = asyncio.create_task(self.keep_alive(status.job_id, job.stop.set))
        try:
            with self.dispatch.machine.running(status.job_id, began):
                done = await self._tune(job, work, status, began, options)
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
        return replace(report, network=work.model_read.network, tasks=tasks, compiled=job.compiled)

    async def do(self, job: Assignment, run: Callable[[Work], Awaitable[R]]) -> R:
        """Do a job of another kind than tuning, which is neither stored nor charged."""
        check_dialects(job.request)
        name = self._name(job.request.kind)
        self._names.add(name)
        try:
            return await self._do(job, await self._works(job, name, charged=False), run)
        finally:
            self._names.discard(name)

    async def do_charged(self, job: Assignment, run: Callable[[Work], Awaitable[R]]) -> R:
        """Do as `do`, as a stored job, to which all that it measures is charged.

        Raises:
            StoreError: the job cannot be stored.
        """
        check_dialects(job.request)
        await self.runtimes.connected(job.request.each_dialect[0])
        data = request_data(job.request, job.known(job.request))
        job_id = await self.store.write(partial(stored_jobs.create_at_work, request=data))
        beating = asyncio.create_task(self.keep_alive(job_id, lambda: None))
        state, why, problem = JobState.FAILED, "", ""
        try:
            with self.dispatch.machine.running(job_id):
                result = await self._do(job, await self._works(job, job_id), run)
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
            await (self._tune_stored if job.request.kind == TUNE.name else self._answer_stored)(job, job_id)

    async def _tune_stored(self, job: Assignment, job_id: str) -> None:
        """Tune for a stored job that is at work here, and compile its network if it is to be delivered."""
        began, request = time.monotonic(), job.request
        begun = await self.store.read(lambda store: store.job(job_id))
        stored_jobs.check_currency(begun, load_prices(request.prices))
        job.tell(importing(request, job_id))
        used = list[Reservation]()
        try:
            work = await self._read(job, job_id, used)
            for one in work.each:
                await self._device(one)
            plain = request_data(request, work.model_read, job.claim)
            status = await self.store.write(
                partial(stored_jobs.specify, job_id=job_id, request=plain, known=_beginning(work))
            )
            options = _tune_options(request)
        except BaseException:
            for one in job.readers:
                one.runtime.claim(-one.model_read.core_s)
            with suppress(StoreError, UsageError, EngineError):  # the first error is the one to tell
                await self._charge_in_vain(job, job_id, used, time.monotonic() - began)
            raise
        done = await self._tune(job, work, status, began, options)
        log_state(job_id, done.state, job, done.message)

    async def _answer_stored(self, job: Assignment, job_id: str) -> None:
        """Do a stored job of another kind than tuning: its answer is an event of the job, its cost is charged to it."""
        options, run = options_of(job.request), KINDS[job.request.kind].run
        assert run is not None, "what tunes does not answer"
        work = await self._works(job, job_id)
        if job.month is not None:
            before = job.month.before
            job.month.meter(lambda: before + _cost(work))
        answer = await self._do(job, work, lambda work: run(work, options))
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
        """Leave a stored job in a state for others."""
        left = partial(stored_jobs.leave, job_id=job_id, state=state, message=message, problem=problem)
        await self.store.write(left)
        log_state(job_id, state, job, message)

    # -- parts of a job -------------------------------------------------------------------------------------------

    async def _read(self, job: Assignment, name: str, used: list[Reservation] | None = None) -> Work:
        """Read a request's model with its tasks, as each of its dialects takes it in.

        What it cost is charged to the job that tunes it. `used` gets the grants of its stages, also where it fails;
        they are scheduled, and hold the machine, as those of `name`.

        Raises:
            UsageError: the model, the shapes or the target are wrong.
            WorkError: the model cannot be imported.
        """
        claim = job.claim

        def begun() -> None:
            if job.latest is None:
                job.tell(importing(job.request))

        async def read(one: Request) -> Work:
            work = Work(await self.runtimes.connected(one), self.store, one, name, job.tell, job.known(one))
            if work.imported is None:
                self.dispatch.submit(name, claim.owner, claim.weight, claim.priority)
                try:
                    work.imported = await import_model(work.runtime, self.store, one, name, begun, used)
                    work.runtime.claim(work.imported.core_s)  # until the job that is given it is charged
                finally:
                    self.dispatch.end(name)
                job.readers = (*job.readers, work)
            return work

        return await _each_dialect(job.request, read)

    async def _works(self, job: Assignment, job_id: str, *, charged: bool = True) -> Work:
        """Return what a job has at hand for its dialects."""

        async def begin(one: Request) -> Work:
            work = Work(await self.runtimes.connected(one), self.store, one, job_id, job.tell, job.known(one))
            return replace(work, account=self._account(work) if charged else None)

        return await _each_dialect(job.request, begin)

    async def _do(self, job: Assignment, work: Work, run: Callable[[Work], Awaitable[R]]) -> R:
        """Do a job's work beside all others; if it has an account, it is charged for its part of the machine."""
        began, claim, unread = time.monotonic(), job.claim, [one for one in work.each if one.imported is None]
        self.dispatch.submit(work.job_id, claim.owner, claim.weight, claim.priority)
        try:
            return await run(work)
        finally:
            job.readers = (*job.readers, *(one for one in unread if one.imported is not None))
            spans, wall_s = self.dispatch.end(work.job_id), time.monotonic() - began
            if work.account is not None:
                await self._keep_stages(work.job_id, spans)
                await self._close(work, wall_s)

    async def _tune(
        self, job: Assignment, work: Work, status: JobStatus, began: float, options: TuneOptions
    ) -> JobStatus:
        """Tune for one dialect, or for several in turns, and compile what was reached if the options say where to."""
        job_id, several, seen = status.job_id, len(job.request.dialects) > 1, set[str]()

        async def turn(
            one: Work, request: Request, status: JobStatus, began: float, notify: Callable[[Progress], None]
        ) -> JobStatus:
            imported, name = one.model_read, one.request.dialect
            if name in seen:  # it has paid for that
                imported = replace(imported, wall_s=0.0, core_s=0.0)
            seen.add(name)
            device, searches = await self._device(one), self.runtimes.searches(one.runtime)
            beside = [task for task in status.tasks if task.dialect != name] if several else []
            tuning = TuningJob(
                one.runtime, self.store, request, status, imported, device, notify, job.stop, searches, began,
                ending=job.ending, deliver=deliver if options.output and not several else None, beside=beside,
                goes_on=several,
            )  # fmt: skip
            if job.month is not None:
                job.month.meter(tuning.money, tuning.limit_money)
            return await self._run(tuning, job.claim)

        async def deliver(account: Account) -> str:
            return await self._compile(job, work, self._compiling(job, work, job_id, account), options)

        if not several:
            return await turn(work, work.request, status, began, job.tell)
        status = await tune_in_turns(work, job.request, status, began, job.tell, turn)
        if status.state is not JobState.RUNNING:
            return status
        if options.output:
            reached = status
            await self.store.write(lambda store: store.save_job(reached))
            undelivered = await self._do(
                job, self._compiling(job, work, job_id), lambda made: self._compile(job, work, made, options)
            )
            stored = await self.store.read(lambda store: store.job(job_id))
            message = ". ".join(part for part in (status.message, undelivered) if part)
            status = replace(status, spend=stored.spend, message=message)
        status = replace(status, state=JobState.STOPPED if job.stop.is_set() else JobState.DONE)
        await self.store.write(partial(leave, status=status))
        return status

    async def _run(self, tuning: TuningJob, claim: ShareRequest) -> JobStatus:
        job_id = tuning.status.job_id
        self.dispatch.submit(job_id, claim.owner, claim.weight, claim.priority, tuning.planned)
        open_ = True

        async def worked() -> None:
            nonlocal open_
            if open_:
                open_ = False
                await self._keep_stages(job_id, self.dispatch.end(job_id))

        try:
            return await tuning.run(worked)
        finally:
            await worked()  # where it never began

    def _compiling(self, job: Assignment, work: Work, job_id: str, account: Account | None = None) -> Work:
        """Return what a job that has tuned compiles its network with; `account` pays for it (None: a new one)."""

        def notify(progress: Progress) -> None:
            before = job.latest
            job.tell(progress if before is None else replace(before, phase=progress.phase, current=""))

        each = list[Work]()
        for one in work.each:
            request = replace(one.request, kind="compile", budget=Budget(), latency_target_s=None)
            compiling = replace(one, request=request, job_id=job_id, notify=notify, others=())
            each.append(replace(compiling, account=account or self._account(compiling)))
        return replace(each[0], others=tuple(each[1:]))

    async def _compile(self, job: Assignment, tuned: Work, work: Work, options: TuneOptions) -> str:
        """Compile what a job has `tuned` unless it is stopped; return why that was not possible."""
        compiling = asyncio.create_task(compile_network(work, options))
        try:
            while not (await asyncio.wait([compiling], timeout=_POLL_S))[0]:
                if job.stop.is_set():
                    return "the network is not compiled yet"
            job.compiled, network = await compiling
        except TuneryError as error:
            return f"the network was not compiled: {error}"
        finally:
            compiling.cancel()
            await asyncio.gather(compiling, return_exceptions=True)
        for before, after in zip(tuned.each, work.each, strict=True):
            before.imported = after.imported  # it may run further nodes in ONNX Runtime
        answer = compile_answer(job.compiled, network)
        await self.store.write(lambda store: store.events.append(COMPILED, answer, work.job_id))
        return ""

    def _account(self, work: Work) -> Account:
        return Account(self.store, work.job_id, work.runtime, load_prices(work.request.prices), work.runtime.power)

    async def _charge_in_vain(self, job: Assignment, job_id: str, used: Sequence[Reservation], wall_s: float) -> None:
        """Charge a job that could not begin for its import, and for its part of the machine in these `wall_s`."""
        one = job.request.each_dialect[0]
        work = Work(await self.runtimes.connected(one), self.store, one, job_id)
        work.account = self._account(work)
        await work.account.post(
            PricedCharge(Charge(job_id, "", "import", "", one.wall_s, one.core_s, 0.0, host=one.host), one.wall_s)
            for one in used
        )
        await self._close(work, wall_s)

    async def _close(self, work: Work, wall_s: float) -> None:
        """Charge a job for its part of the machine's time, and store what it has spent in all after these `wall_s`."""
        for one in work.each:
            with suppress(StoreError, UsageError):  # the first error is the one to tell
                await self._add_spend(one, wall_s if one is work else 0.0)

    async def _add_spend(self, work: Work, wall_s: float) -> None:
        account = work.account
        assert account is not None
        await account.close()
        spent = Spend(
            wall_s=wall_s, machine_s=account.machine_s(), currency=account.prices.currency, cores=work.runtime.granted
        )
        await self.store.write(partial(stored_jobs.add_spend, job_id=work.job_id, spent=spent))

    async def _keep_stages(self, job_id: str, spans: Sequence[Span]) -> None:
        """Store which worker did what for a job in this run, for its report."""
        payload = stages_event(spans)
        if payload["spans"]:
            with suppress(StoreError):  # nothing depends on it
                await self.store.write(lambda store: store.events.append(STAGES, payload, job_id))

    async def _device(self, work: Work) -> DeviceDescription:
        """Return what a job measures on, which is stored, and let it measure as its calibration allows."""
        device = await introduce(work.runtime, self.store)
        key = (device.fingerprint, work.request.dialect, work.runtime.threads)
        work.runtime.share(await self.store.read(lambda store: store.calibration(*key)))
        return device

    def _name(self, kind: str) -> str:
        """Return the name under which a job of this kind is scheduled: the kind itself where it is free."""
        names = (kind if number == 1 else f"{kind} {number}" for number in itertools.count(1))
        return next(name for name in names if name not in self._names)


async def _each_dialect(request: Request, begin: Callable[[Request], Awaitable[Work]]) -> Work:
    """Return what a job has at hand for its dialects; why one takes no part is told in it.

    Raises:
        TuneryError: none takes part.
    """
    works, refused, errors = list[Work](), dict[str, str](), list[TuneryError]()
    for one in request.each_dialect:
        try:
            works.append(await begin(one))
        except TuneryError as error:
            errors.append(error)
            refused[one.dialect] = str(error)
    if not works:
        raise errors[0]
    works[0].others, works[0].refused = tuple(works[1:]), refused
    return works[0]


def _tune_options(request: Request) -> TuneOptions:
    options = options_of(request)
    assert isinstance(options, TuneOptions)
    return options


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


def importing(request: Request, job_id: str = "") -> Progress:
    """Return the progress of a job whose model is being read."""
    return Progress(job_id, "importing", 0.0, request.budget.seconds, 0, request.budget.trials, None, None)


def stages_event(spans: Sequence[Span]) -> dict[str, Any]:
    """Return what the event of a run's stages says."""
    return stages_payload([(s.worker.partition("@")[0], s.kind, s.start_s, s.end_s) for s in spans])


def log_state(job_id: str, state: JobState, job: Assignment | None, message: str = "") -> None:
    """Log that a job is in a state now."""
    more = {"job": job_id, "state": state.value}
    if job is not None:
        more |= {"account": job.claim.owner, "kind": job.request.kind, "host": job.request.on or HERE}
    level = logging.WARNING if state is JobState.FAILED else logging.INFO
    _log.log(level, "job %s is %s%s", job_id, state.value, message and f": {message}", extra=more)
