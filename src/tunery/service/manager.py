"""The manager of jobs: any number of them at once in one event loop, over one scheduler and one store."""

import asyncio
import itertools
import logging
import os
import platform
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from tunery._errors import (
    EngineError,
    LostJobError,
    NothingFoundError,
    StoreError,
    TuneryError,
    UsageError,
    problem_type,
)
from tunery.accounting.power import modelled_w
from tunery.accounting.prices import load_prices
from tunery.delivery.work import Work
from tunery.domain import HERE, LEAST, Budget, DeviceDescription, HostFacts, JobState, JobStatus, Spend
from tunery.domain.request import Progress, Request, ShareRequest, TuneReport
from tunery.engines.remote.facts import host_facts
from tunery.engines.remote.registry import added_hosts, host_named
from tunery.reports.job import COMPILED, STAGES, stages_payload
from tunery.runtime.dispatch import Dispatch, Span
from tunery.runtime.importing import ImportedModel, import_model
from tunery.runtime.opening import introduce
from tunery.runtime.runtime import Reservation, Runtime
from tunery.service import stored_jobs
from tunery.service.checks import check, check_model
from tunery.service.codec import Plain, claim_of, request_data, request_of
from tunery.service.machines import Machine, machines
from tunery.service.months import MonthShare
from tunery.service.queue_policy import MOST_ACTIVE, JobQueue, QueuedJob, has_place, hold_back_s, size_s
from tunery.service.resuming import ChangedJobError, beginning, check_currency, report_of
from tunery.service.runtimes import Runtimes
from tunery.service.turns import Side, Sides, check_dialects, tune_in_turns
from tunery.service.verbs import TUNE, VERBS, TuneOptions, compile_network, options_of
from tunery.store import AsyncStore, Charge, Store
from tunery.tuning.account import Account, PricedCharge, charged
from tunery.tuning.job import HEARTBEAT_S, TuningJob, leave

_log = logging.getLogger(__name__)
R = TypeVar("R")
_LONG = frozenset({TUNE, "collect"})  # kinds that work for as long as they are given
_MOST_WAITING = 10_000
_STORE_AGAIN_S = 5.0


@dataclass
class _Entry:
    """A job that is in the room: waiting for its turn, or at `work`; `leaving` is the state in which it is taken out.

    `held` are the blobs of the networks that were prepared for it, and who holds them. One that was found in the store,
    where others may take it as well, was `found_s` (monotonic seconds); others are zero. `month` is what of its
    account's month is for it; `used_up` is the error that this was all, where it ends for that.
    """

    request: Request
    claim: ShareRequest
    imported: ImportedModel | None = None
    found_s: float = 0.0
    work: asyncio.Task[None] | None = None
    leaving: JobState | None = None
    held: tuple[tuple[Runtime, str], ...] = ()
    month: MonthShare | None = None
    used_up: UsageError | None = None
    progress: Progress | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def ending(self) -> JobState:
        """The state in which work that is cut short leaves the job: queued, unless somebody wants another."""
        return self.leaving or JobState.QUEUED

    def notify(self, progress: Progress) -> None:
        """Keep the latest progress, and wake who follows."""
        self.progress = progress
        self.changed.set()
        self.changed = asyncio.Event()


class JobManager:
    """Takes jobs in, runs them beside one another, and lets them go; use it as an async context manager.

    Jobs with the same task share its search, all jobs of a target one cost model; jobs of another dialect, thread count
    or way of measuring get workers of their own, placed by the same scheduler. At most `most_active` jobs are at work
    (one, where the strategy is `sequential`), the others wait for their turn (`JobQueue`). Leaving the room ends all
    work; what was submitted stays queued in the store, and `recover` of another room goes on with it. With `record`,
    the scheduler's log and the span of each stage are kept in `dispatch`. With `follow_hosts`, hosts that are added or
    removed meanwhile are used or left. `adopt` returns the request of a job of the store with its files as they are
    called here, or raises UsageError. What is found in the store and cannot be done here is left to others.

    Example:
        async with JobManager(store) as manager:
            job_id = await manager.submit(request, ShareRequest(owner="me", priority=2))
            async for progress in manager.follow(job_id): ...
            status = store.job(job_id)

    Raises:
        UsageError: the strategy is unknown.
    """

    def __init__(
        self,
        store: Store,
        *,
        strategy: str = "predictive",
        most_active: int = MOST_ACTIVE,
        record: bool = True,
        follow_hosts: bool = False,
        adopt: Callable[[Request], Request] = lambda request: request,
    ) -> None:
        self.store = AsyncStore(store)
        self.dispatch = Dispatch(strategy, record=record)
        self._most_active = 1 if strategy == "sequential" else most_active
        self._entries: dict[str, _Entry] = {}
        self._queue = JobQueue()
        self._active: dict[str, QueuedJob] = {}
        self._order = 0
        self._worked = False
        self._runtimes = Runtimes(self.dispatch, follow=follow_hosts)
        self._adopt = adopt
        self._tried: dict[str, str] = {}
        self._left: dict[str, str] = {}
        self._names: set[str] = set()
        self._here: HostFacts | None = None
        self._later: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._end_all()
        finally:
            await self._runtimes.close()
            self.store.close()

    # -- jobs -----------------------------------------------------------------------------------------------------

    async def submit(
        self,
        request: Request,
        claim: ShareRequest | None = None,
        imported: ImportedModel | None = None,
        job_id: str = "",
    ) -> str:
        """Queue a job and return its id; it is in the store before this returns. `imported` spares the import.

        Where `job_id` was submitted before, that job stays as it is.

        Raises:
            UsageError: nobody can run it: too many threads, an unknown effort, dialect, priority or missing file.
        """
        claim = claim or ShareRequest()
        if imported is None:
            check_model(request.model)
        check(replace(request, store=self.store.url), claim)
        if len(self._entries) >= _MOST_WAITING:
            raise UsageError(f"{len(self._entries)} jobs are waiting already; submit again when some have ended")
        data = request_data(request, claim=claim)
        status = await self.store.write(partial(stored_jobs.submit, request=data, job_id=job_id))
        if status.state is JobState.QUEUED:
            self._enter(status.job_id, request, claim, imported)
            _tell(status.job_id, JobState.QUEUED, self._entries.get(status.job_id))
        return status.job_id

    async def recover(self) -> list[str]:
        """Take in the jobs that an earlier manager left queued or running, whatever ended it; return their ids.

        Jobs that wait here and are done or at work elsewhere by now are forgotten. What cannot be done here is left to
        others, and looked at again the next time.
        """
        found, gone = await self.store.read(partial(stored_jobs.left_behind, known=self._queue.ids()))
        for job_id in gone:
            if job_id in self._queue:
                self._forget(job_id, self._entries[job_id])
        unknown = [one for one in found if one[0].job_id not in self._entries]
        looked = await asyncio.to_thread(lambda: [self._looked_at(*one) for one in unknown])
        new, left = list[str](), dict[str, str]()
        for (status, _, claim), (own, why) in zip(unknown, looked, strict=True):
            if own is None:
                left[status.job_id] = why
            else:
                self._enter(status.job_id, own, claim, found_s=time.monotonic())
                new.append(status.job_id)
        for job_id in left.keys() - self._left.keys():
            _log.info("job %s %s", job_id, left[job_id], extra={"job": job_id})
        self._left = left
        stopped = {one.job_id: left[one.job_id] for one, _, _ in unknown
                   if one.job_id in left and one.state is JobState.STOPPED}  # fmt: skip
        if stopped:
            await self.store.write(partial(stored_jobs.queue_for_others, reasons=stopped))
        self._start_next()  # hosts that have joined since the last look bring places
        return new

    def left_to_others(self, job_id: str) -> str:
        """Return why a job that waits in the store is not done here; "" where it is, or is none of those."""
        return self._left.get(job_id, "")

    def _looked_at(self, status: JobStatus, request: Request, claim: ShareRequest) -> tuple[Request | None, str]:
        """Return the request of a job of the store as it is done here; None, and why, where it cannot be."""
        if why := self._tried.get(status.job_id, ""):
            return None, why
        try:
            return self._fitted(request, claim), ""
        except UsageError as error:
            return None, _waits(error)

    def _fitted(self, request: Request, claim: ShareRequest) -> Request:
        """Return the request of a job of the store as it is done here.

        Raises:
            UsageError: it cannot be: a file or a host of it is not here, or something of it is wrong.
        """
        own = self._adopt(request)
        check_model(own.model)
        check(own, claim)
        if own.on:
            host_named(own.on, added_hosts())
        return own

    async def resume(self, job_id: str) -> None:
        """Go on with a job that was paused, stopped or has failed; one that is in the room already stays as it is.

        Raises:
            NothingFoundError: there is no such job.
            UsageError: it is over, at work in another process, or just being paused or cancelled.
        """
        if job_id in self._entries:
            if self._entries[job_id].leaving:
                raise UsageError(f"job {job_id} is just being taken out; try again in a moment")
            return
        status = await self.store.read(lambda store: store.job(job_id))
        stored_jobs.refuse_over(status)
        claim = claim_of(status) or ShareRequest()
        request = self._fitted(request_of(status, self.store.url), claim)
        known = {key: status.request.get(key, "") for key in ("network", "name", "target_key")}
        data = {**request_data(request, claim=claim), **known}
        await self.store.write(partial(stored_jobs.queue_again, job_id=job_id, request=data))
        self._enter(job_id, request, claim)

    async def change(self, job_id: str, values: Plain, allowed: Callable[[JobStatus], None]) -> None:
        """Change what a job may cost and claim: `values` of its stored request, unless `allowed` raises.

        One that waits or is at work is taken out for it and goes on; what it has measured is kept.

        Raises:
            NothingFoundError: there is no such job.
            UsageError: it is over, or cannot be run so.
        """
        status = await self.store.read(lambda store: store.job(job_id))
        stored_jobs.refuse_over(status)
        allowed(status)
        wanted = replace(status, request={**status.request, **values})
        self._fitted(request_of(wanted, self.store.url), claim_of(wanted) or ShareRequest())
        if wanted.request == status.request:
            return
        goes_on = status.state in {JobState.QUEUED, JobState.RUNNING}
        if goes_on:
            await self.pause(job_id)
        try:
            await self.store.write(partial(stored_jobs.change, job_id=job_id, values=values, check=allowed))
        finally:
            if goes_on:
                await self.resume(job_id)

    async def pause(self, job_id: str) -> None:
        """Take a job out until `resume`; what it has measured is kept, the time until then is not charged to it.

        Raises:
            NothingFoundError: there is no such job.
            UsageError: it has ended.
        """
        await self._take_out(job_id, JobState.PAUSED)

    async def cancel(self, job_id: str) -> None:
        """End a job for good; what it has measured is kept.

        Raises:
            NothingFoundError: there is no such job.
            UsageError: it has ended.
        """
        await self._take_out(job_id, JobState.CANCELLED)

    async def follow(self, job_id: str) -> AsyncIterator[Progress]:
        """Yield a job's progress as it goes, the latest where the reader is slow, until the job leaves the room."""
        entry = self._entries.get(job_id)
        while entry is not None:
            changed = entry.changed
            if entry.progress is not None:
                yield entry.progress
            if self._entries.get(job_id) is not entry:
                return
            await changed.wait()

    async def wait(self, job_id: str) -> JobStatus:
        """Return a job's status when it has left the room: done, failed, paused or cancelled.

        Raises:
            NothingFoundError: there is no such job.
        """
        async for _ in self.follow(job_id):
            pass
        return await self.store.read(lambda store: store.job(job_id))

    def progress(self, job_id: str) -> Progress | None:
        """Return how a job here stands, None where it is not here; one that waits says how many begin before it."""
        entry = self._entries.get(job_id)
        if job_id not in self._queue:
            return entry.progress if entry else None
        assert entry is not None
        before = self.ahead(job_id)
        said = f"({before} before it)" if before else ""
        return replace(importing(entry.request, job_id), phase="queued", current=said, remaining_s=None)

    def ahead(self, job_id: str) -> int:
        """Return how many of its owner's jobs begin before one that waits; 0 for one at work, or that is not here."""
        return self._queue.before(job_id) if job_id in self._queue else 0

    def runtime(self, request: Request) -> Runtime:
        """Return the workers that a request's job will use, started if they were not yet."""
        return self._runtimes.get(request)[0]

    async def machines(self) -> list[Machine]:
        """Return the machines that jobs run on, this one first.

        Raises:
            UsageError: the file of the added hosts cannot be read.
        """
        if self._here is None:
            self._here = await asyncio.to_thread(host_facts)
        added = await asyncio.to_thread(added_hosts)
        return machines(self._here, added, self.dispatch, [runtime for runtime, _ in self._runtimes])

    def obstacle(self) -> str:
        """Say what keeps jobs from being worked on, "" where nothing is known to."""
        controls = (runtime.engine.control for runtime, _ in self._runtimes)
        return next(filter(None, (control.obstacle() for control in controls if control)), "")

    # -- one job, here and now --------------------------------------------------------------------------------------

    async def run(
        self,
        request: Request,
        notify: Callable[[Progress], None],
        stop: threading.Event,
        *,
        job_id: str = "",
        sides: Sides | None = None,
        began: float | None = None,
    ) -> TuneReport:
        """Run a job in the caller's own task, going on with an equal unfinished one; setting `stop` ends it resumably.

        `sides` spare the import; the budget counts from `began` (monotonic seconds; None: from now).

        Raises:
            UsageError: the request cannot be right, or is no longer that of job `job_id`.
            WorkError: there is nothing to tune, or another process works on the same job.
            NothingFoundError: there is no job `job_id`.
        """
        began = time.monotonic() if began is None else began
        if sides is None:
            sides = await self.import_model(request, lambda: notify(importing(request)))
        plain, prices = request_data(request, sides.first.imported), load_prices(request.prices)
        status, resumed = await self.store.write(
            partial(stored_jobs.begin, job_id=job_id, request=plain, prices=prices)
        )
        with self.dispatch.machine.running(status.job_id, began):
            done = await self._tuned(sides, request, status, notify, stop, began)
        return report_of(done, sides, resumed=resumed, place=self.store.place)

    async def import_model(  # noqa: PLR0917 - who imports what, and for whom
        self,
        request: Request,
        begun: Callable[[], None] = lambda: None,
        claim: ShareRequest | None = None,
        known: Callable[[Request], ImportedModel | None] = lambda _: None,
        name: str = "",
        used: list[Reservation] | None = None,
    ) -> Sides:
        """Return a request's model with its tasks, as each of its dialects takes it in; `known` spares an import.

        What it cost is charged to the job that it is given to. `used` gets the grants of its stages, also where it
        fails; they are scheduled, and hold the machine, as those of `name`.

        Raises:
            UsageError: the model, the shapes or the target are wrong.
            WorkError: the model cannot be imported.
        """
        found, refused, errors = list[Side](), dict[str, str](), list[TuneryError]()
        for one in request.each_dialect:
            try:
                runtime, searches = await self._runtimes.connected(one)
                imported = known(one) or await self._import(
                    runtime, one, claim or ShareRequest(), name or self._name("import"), begun, used
                )
            except TuneryError as error:
                errors.append(error)
                refused[one.dialect] = str(error)
            else:
                found.append(Side(one, runtime, searches, imported))
        if not found:
            raise errors[0]
        return Sides(tuple(found), refused)

    async def do(
        self,
        kind: str,
        request: Request,
        work: Callable[[Work], Awaitable[R]],
        notify: Callable[[Progress], None] = lambda _: None,
        imported: ImportedModel | None = None,
    ) -> R:
        """Run a job of another kind than tuning in the caller's own task, scheduled beside all others.

        `kind` is what its stages are called; `imported` spares the import. It is neither stored nor charged: for
        what measures there is `do_charged`.
        """
        check_dialects(request, kind)
        name = self._name(kind)
        self._names.add(name)
        try:
            return await self._do(await self._works(request, name, notify, imported, charged=False), work)
        finally:
            self._names.discard(name)

    async def do_charged(
        self,
        request: Request,
        work: Callable[[Work], Awaitable[R]],
        notify: Callable[[Progress], None] = lambda _: None,
        imported: ImportedModel | None = None,
    ) -> R:
        """Do as `do`, as a stored job of the request's kind, to which all that it measures is charged.

        Raises:
            StoreError: the job cannot be stored.
        """
        check_dialects(request, request.kind)
        data = request_data(request, imported)
        for one in request.each_dialect[:1]:
            await self._runtimes.connected(one)
        job_id = await self.store.write(partial(stored_jobs.create_at_work, request=data))
        beating = asyncio.create_task(self._keep_alive(job_id, lambda: None))
        state, why, problem = JobState.FAILED, "", ""
        try:
            with self.dispatch.machine.running(job_id):
                result = await self._do(await self._works(request, job_id, notify, imported), work)
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
                await self._leave_as(job_id, state, why, problem)
        return result

    # -- inside ---------------------------------------------------------------------------------------------------

    def _name(self, kind: str) -> str:
        """Return the name under which a job of this kind is scheduled: the kind itself where it is free."""
        names = (kind if number == 1 else f"{kind} {number}" for number in itertools.count(1))
        return next(name for name in names if name not in self._names)

    def _enter(
        self,
        job_id: str,
        request: Request,
        claim: ShareRequest,
        imported: ImportedModel | None = None,
        *,
        found_s: float = 0.0,
    ) -> None:
        if job_id in self._entries:  # it was found in the store meanwhile
            return
        self._order += 1
        self._tried.pop(job_id, None)
        self._left.pop(job_id, None)
        self._entries[job_id] = _Entry(request, claim, imported, found_s)
        size, quick = size_s(request.budget, request.effort), request.kind not in _LONG
        self._queue.add(QueuedJob(job_id, claim, self._order, size, quick))
        self._start_next()

    def _start_next(self) -> None:
        """Start those whose turn it is; what went on while there was nothing to do is nobody's bill."""
        if self._worked and not self._active:
            self.dispatch.claim(self.dispatch.own_s())
            for runtime, _ in self._runtimes:
                runtime.claim(runtime.unclaimed_core_s())
        while len(self._active) < self._most_active and (chosen := self._next()):
            self._queue.discard(chosen.job_id)
            self._active[chosen.job_id] = chosen
            self._worked = True
            entry = self._entries[chosen.job_id]
            entry.work = asyncio.create_task(self._live(chosen.job_id, entry))

    def _next(self) -> QueuedJob | None:
        """Return the job whose turn it is, if it has a place; else one that is answered without long work."""
        at_work = Counter(one.owner for one in self._active.values())
        long = Counter(one.owner for one in self._active.values() if not one.quick)
        cores = self.dispatch.core_count()
        chosen = self._queue.next_turn(at_work, lambda one: has_place(one, long, cores))
        if chosen is None or chosen.quick or not self._left_to_others(chosen):
            return chosen
        return self._queue.next_turn(at_work, lambda one: one.quick)

    def _left_to_others(self, chosen: QueuedJob) -> bool:
        """Tell whether a job is left to other coordinators of the store for now; then look again later."""
        found_s = self._entries[chosen.job_id].found_s
        left_s = found_s + hold_back_s(len(self._active)) - time.monotonic() if found_s else 0.0
        if left_s <= 0.0:
            return False
        if self._later is not None:
            self._later.cancel()
        self._later = asyncio.get_running_loop().call_later(left_s, self._start_next)
        return True

    async def _live(self, job_id: str, entry: _Entry) -> None:
        """Do a job from its turn to its end; whatever goes wrong is its own failure."""
        beside: list[asyncio.Task[None]] = []
        work = asyncio.current_task()
        assert work is not None
        try:
            if await self.store.write(partial(stored_jobs.acquire, job_id=job_id)):
                beside.append(asyncio.create_task(self._keep_alive(job_id, work.cancel)))
                _tell(job_id, JobState.RUNNING, entry)
                await self._begin_month(job_id, entry)
                beside.append(asyncio.create_task(self._end_with_month(entry)))
                with self.dispatch.machine.running(job_id):
                    await (self._tune if entry.request.kind == TUNE else self._answer)(job_id, entry)
        except asyncio.CancelledError:
            if entry.used_up is None:
                await self._end_as(job_id, entry, entry.ending)
            else:
                await self._fail(job_id, entry, entry.used_up)
        except ChangedJobError as error:
            if entry.found_s:
                self._tried[job_id] = self._left[job_id] = _waits(error)
                await self._end_as(job_id, entry, JobState.QUEUED, self._tried[job_id])
            else:
                await self._fail(job_id, entry, error)
        except Exception as error:  # noqa: BLE001 - one job's failure must not touch the others
            await self._fail(job_id, entry, error)
        finally:
            for task in beside:
                task.cancel()
            for runtime, blob in entry.held:
                runtime.release(blob)
            self._active.pop(job_id, None)
            self._forget(job_id, entry)

    async def _begin_month(self, job_id: str, entry: _Entry) -> None:
        """Take a job's part of what is left of its account's month.

        Raises:
            UsageError: it is less than a job needs before its first measurement.
        """
        spent = await self.store.read(lambda store: charged(store.job(job_id).spend, store.ledger(job_id)))
        prices, cores = load_prices(entry.request.prices), max(self.dispatch.core_count(), os.cpu_count() or 1)
        rate = prices.of_machine(cores) + prices.of_energy(modelled_w(cores))
        month = MonthShare(self.store, job_id, entry.claim.owner, rate, spent.money or 0.0)
        await month.look()
        if not month.leaves(LEAST["seconds"]):
            raise month.refusal()
        entry.month = month

    async def _end_with_month(self, entry: _Entry) -> None:
        """End a job when it has had its part of the month; one that tunes ends by itself, as with its own budget."""
        assert entry.month is not None
        assert entry.work is not None
        await entry.month.watch()
        if entry.request.kind != TUNE and not entry.leaving:
            entry.used_up = entry.month.refusal()
            entry.work.cancel()

    async def _fail(self, job_id: str, entry: _Entry, error: Exception) -> None:
        text = str(error) if isinstance(error, TuneryError) else f"{type(error).__name__}: {error}"
        await self._end_as(job_id, entry, JobState.FAILED, text[:1000], problem_type(error))

    async def _end_as(self, job_id: str, entry: _Entry, state: JobState, message: str = "", problem: str = "") -> None:
        """Store how a job ended, or wait until the store can be written: nobody could end what runs for ever."""
        with suppress(asyncio.CancelledError, NothingFoundError):
            while not entry.leaving:
                try:
                    await self._leave_as(job_id, state, message, problem)
                except LostJobError:  # how it ends is said where it went on
                    return
                except StoreError:
                    await asyncio.sleep(_STORE_AGAIN_S)
                else:
                    return
        with suppress(StoreError, NothingFoundError):  # whoever takes it out hears of it
            await self._leave_as(job_id, entry.ending, "")

    async def _answer(self, job_id: str, entry: _Entry) -> None:
        """Do a job of another kind than tuning: its answer is an event of the job, its cost is charged to it."""
        request = entry.request
        options = options_of(request)
        work = await self._works(request, job_id, entry.notify, entry.imported)
        if entry.month is not None:
            before = entry.month.before
            entry.month.meter(lambda: before + _cost(work))
        try:
            answer = await self._do(work, lambda work: VERBS[request.kind].run(work, options), entry.claim)
        finally:
            if entry.imported is None:
                entry.held = tuple(
                    (one.runtime, blob) for one in work.each if one.imported for blob in one.imported.blobs
                )
        known = request_data(request, work.imported, entry.claim) if work.imported is not None else None
        await self.store.write(partial(stored_jobs.save_answer, job_id=job_id, answer=answer, request=known))
        _tell(job_id, JobState.DONE, entry)

    async def _do(self, work: Work, run: Callable[[Work], Awaitable[R]], claim: ShareRequest | None = None) -> R:
        """Do a job's work beside all others; if it has an account, it is charged for its part of the machine."""
        began, claim = time.monotonic(), claim or ShareRequest()
        self.dispatch.submit(work.job_id, claim.owner, claim.weight, claim.priority)
        try:
            return await run(work)
        finally:
            spans, wall_s = self.dispatch.end(work.job_id), time.monotonic() - began
            if work.account is not None:
                await self._keep_stages(work.job_id, spans)
            for one in work.each:
                if one.account is not None:
                    with suppress(StoreError, UsageError):  # the first error is the one to tell
                        await self._close(one.account, one.runtime, work.job_id, wall_s if one is work else 0.0)

    async def _works(
        self,
        request: Request,
        job_id: str,
        notify: Callable[[Progress], None],
        imported: ImportedModel | None = None,
        *,
        charged: bool = True,
    ) -> Work:
        """Return what a job has at hand for its dialects; one whose workers cannot be started is told of in it.

        Raises:
            TuneryError: so it is with all of them.
        """
        works, refused, errors = list[Work](), dict[str, str](), list[TuneryError]()
        for one in request.each_dialect:
            try:
                runtime, _ = await self._runtimes.connected(one)
            except TuneryError as error:
                errors.append(error)
                refused[one.dialect] = str(error)
                continue
            account = Account(self.store, job_id, runtime, load_prices(one.prices), runtime.power) if charged else None
            works.append(Work(runtime, self.store, one, job_id, notify, imported, account))
        if not works:
            raise errors[0]
        return replace(works[0], others=tuple(works[1:]), refused=refused)

    async def _keep_alive(self, job_id: str, lost: Callable[[], object]) -> None:
        """Say now and then that a job is at work here, until another process has it: then it is `lost`."""
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            with suppress(StoreError):  # one that is only busy answers the next time
                if not await self.store.heartbeat(job_id):
                    lost()
                    return

    async def _tune(self, job_id: str, entry: _Entry) -> None:
        began, notify, request = time.monotonic(), entry.notify, entry.request
        begun = await self.store.read(lambda store: store.job(job_id))
        check_currency(begun, load_prices(request.prices))
        notify(importing(request, job_id))
        sides, used = None, list[Reservation]()
        try:
            sides = await self.import_model(
                request, claim=entry.claim, known=lambda _: entry.imported, name=job_id, used=used
            )
            if entry.imported is None:
                entry.held = sides.blobs
            plain = request_data(request, sides.first.imported, entry.claim)
            status = await self.store.write(partial(stored_jobs.specify, job_id=job_id, request=plain))
            began_with = beginning(sides.first.imported, sides.first.runtime)
            await self.store.write(lambda store: store.events.append("began", began_with, job_id))
            options = options_of(request)
            assert isinstance(options, TuneOptions)
            for side in sides.found:
                await self._device(side.runtime, side.request)
        except BaseException:
            for side in sides.found if sides is not None and entry.imported is None else ():
                side.runtime.claim(-side.imported.core_s)
            with suppress(StoreError, UsageError, EngineError):  # the first error is the one to tell
                runtime, _ = await self._runtimes.connected(request.each_dialect[0])
                await self._charge_in_vain(job_id, request, runtime, used, time.monotonic() - began)
            raise
        deliver = partial(self._deliver, job_id, entry, sides, options) if options.output else None
        done = await self._tuned(
            sides,
            request,
            status,
            notify,
            threading.Event(),
            began,
            entry.claim,
            lambda: entry.ending,
            deliver,
            entry.month,
        )
        _tell(job_id, done.state, entry, done.message)

    async def _tuned(  # noqa: PLR0917 - what a job is made of
        self,
        sides: Sides,
        request: Request,
        status: JobStatus,
        notify: Callable[[Progress], None],
        stop: threading.Event,
        began: float,
        claim: ShareRequest | None = None,
        ending: Callable[[], JobState] = lambda: JobState.STOPPED,
        deliver: Callable[[Account], Awaitable[str]] | None = None,
        month: MonthShare | None = None,
    ) -> JobStatus:
        """Tune for one dialect, or for several in turns; `deliver` what was reached."""
        several, claim, seen = len(request.dialects) > 1, claim or ShareRequest(), set[str]()

        async def turn(
            side: Side, request: Request, status: JobStatus, began: float, notify: Callable[[Progress], None]
        ) -> JobStatus:
            imported, name = side.imported, side.request.dialect
            if name in seen:  # it has paid for that
                imported = replace(imported, wall_s=0.0, core_s=0.0)
            seen.add(name)
            device = await self._device(side.runtime, side.request)
            beside = [task for task in status.tasks if task.dialect != name] if several else []
            job = TuningJob(
                side.runtime, self.store, request, status, imported, device, notify, stop, side.searches, began,
                ending=ending, deliver=None if several else deliver, beside=beside, goes_on=several,
            )  # fmt: skip
            if month is not None:
                month.meter(job.money, job.limit_money)
            return await self._work(job, claim)

        if not several:
            return await turn(sides.first, sides.first.request, status, began, notify)
        status = await tune_in_turns(sides, request, status, began, notify, turn)
        if status.state is not JobState.RUNNING:
            return status
        if deliver is not None and status.tasks:
            await self.store.write(lambda store: store.save_job(status))
            status = await self._delivered(status, sides, claim, deliver)
        status = replace(status, state=JobState.DONE)
        await self.store.write(partial(leave, status=status))
        return status

    async def _delivered(
        self, status: JobStatus, sides: Sides, claim: ShareRequest, deliver: Callable[[Account], Awaitable[str]]
    ) -> JobStatus:
        """Deliver what all turns have reached, on an account of its own; return how the job stands then."""
        runtime, began, job_id = sides.first.runtime, time.monotonic(), status.job_id
        account = Account(self.store, job_id, runtime, load_prices(sides.first.request.prices), runtime.power)
        self.dispatch.submit(job_id, claim.owner, claim.weight, claim.priority)
        try:
            undelivered = await deliver(account)
        finally:
            await self._keep_stages(job_id, self.dispatch.end(job_id))
            with suppress(StoreError, UsageError):  # the first error is the one to tell
                await self._close(account, runtime, job_id, time.monotonic() - began)
        stored = await self.store.read(lambda store: store.job(job_id))
        message = ". ".join(part for part in (status.message, undelivered) if part)
        return replace(status, spend=stored.spend, message=message)

    async def _deliver(self, job_id: str, entry: _Entry, sides: Sides, options: TuneOptions, account: Account) -> str:
        """Compile what a job has tuned; return why that was not possible."""

        def notify(progress: Progress) -> None:
            before = entry.progress
            entry.notify(progress if before is None else replace(before, phase=progress.phase, current=""))

        power = account.power
        works = [
            Work(
                side.runtime, self.store, replace(side.request, kind="compile", budget=Budget(), latency_target_s=None),
                job_id, notify, side.imported,
                account if side is sides.first else Account(self.store, job_id, side.runtime, account.prices, power),
            )
            for side in sides.found
        ]  # fmt: skip
        try:
            made = await compile_network(replace(works[0], others=tuple(works[1:]), refused=sides.refused), options)
        except TuneryError as error:
            return f"the network was not compiled: {error}"
        finally:
            for work in works[1:]:
                assert work.account is not None
                with suppress(StoreError, UsageError):  # the first error is the one to tell
                    await self._close(work.account, work.runtime, job_id, 0.0)
        await self.store.write(lambda store: store.events.append(COMPILED, made, job_id))
        return ""

    async def _charge_in_vain(
        self, job_id: str, request: Request, runtime: Runtime, used: Sequence[Reservation], wall_s: float
    ) -> None:
        """Charge a job that could not begin for its import, and for its part of the machine in these `wall_s`."""
        account = Account(self.store, job_id, runtime, load_prices(request.prices), runtime.power)
        await account.post(
            PricedCharge(Charge(job_id, "", "import", "", one.wall_s, one.core_s, 0.0, host=one.host), one.wall_s)
            for one in used
        )
        await self._close(account, runtime, job_id, wall_s)

    async def _close(self, account: Account, runtime: Runtime, job_id: str, wall_s: float) -> None:
        """Charge a job for its part of the machine's time, and store what it has spent in all after these `wall_s`."""
        await account.close()
        spent = Spend(
            wall_s=wall_s, machine_s=account.machine_s(), currency=account.prices.currency, cores=runtime.granted
        )
        await self.store.write(partial(stored_jobs.add_spend, job_id=job_id, spent=spent))

    async def _import(  # noqa: PLR0917 - as `import_model`
        self,
        runtime: Runtime,
        request: Request,
        claim: ShareRequest,
        name: str,
        begun: Callable[[], None] = lambda: None,
        used: list[Reservation] | None = None,
    ) -> ImportedModel:
        self.dispatch.submit(name, claim.owner, claim.weight, claim.priority)
        try:
            imported = await import_model(runtime, self.store, request, name, begun, used)
            runtime.claim(imported.core_s)  # until the job that is given it is charged
            return imported
        finally:
            self.dispatch.end(name)

    async def _work(self, job: TuningJob, claim: ShareRequest) -> JobStatus:
        job_id = job.status.job_id
        self.dispatch.submit(job_id, claim.owner, claim.weight, claim.priority, job.planned)
        open_ = True

        async def worked() -> None:
            nonlocal open_
            if open_:
                open_ = False
                await self._keep_stages(job_id, self.dispatch.end(job_id))

        try:
            return await job.run(worked)
        finally:
            await worked()  # where it never began

    async def _keep_stages(self, job_id: str, spans: Sequence[Span]) -> None:
        """Store which worker did what for a job in this run, for its report."""
        payload = stages_event(spans)
        if payload["spans"]:
            with suppress(StoreError):  # nothing depends on it
                await self.store.write(lambda store: store.events.append(STAGES, payload, job_id))

    async def _device(self, runtime: Runtime, request: Request) -> DeviceDescription:
        """Return what a runtime measures on, which is stored, and let it measure as its calibration allows."""
        device = await introduce(runtime, self.store)
        key = (device.fingerprint, request.dialect, runtime.threads)
        runtime.share(await self.store.read(lambda store: store.calibration(*key)))
        return device

    async def _take_out(self, job_id: str, state: JobState) -> None:
        while (entry := self._entries.get(job_id)) and entry.leaving and entry.work:
            await asyncio.wait([entry.work])  # one after the other: a second cancellation would cut the first short
        if entry is None:
            await self.store.write(partial(stored_jobs.leave_aside, job_id=job_id, state=state))
            return
        entry.leaving = state
        waited = self._queue.discard(job_id)
        if entry.work is not None:
            (self.dispatch.pause if state is JobState.PAUSED else self.dispatch.cancel)(job_id)
            entry.work.cancel()
            await asyncio.wait([entry.work])
            if job_id not in self._entries:
                left = await self.store.read(lambda store: store.job(job_id))
                if left.state is not JobState.RUNNING:
                    return  # in this state, unless it ended by itself just now
        try:
            await self._leave_as(job_id, state, "")
        except StoreError:
            if waited is not None:
                entry.leaving = None
                self._queue.add(waited)
            self._start_next()
            raise
        self._active.pop(job_id, None)  # it had not begun
        self._forget(job_id, entry)

    async def _leave_as(self, job_id: str, state: JobState, message: str, problem: str = "") -> None:
        left = partial(stored_jobs.leave, job_id=job_id, state=state, message=message, problem=problem)
        await self.store.write(left)
        _tell(job_id, state, self._entries.get(job_id), message)

    def _forget(self, job_id: str, entry: _Entry) -> None:
        if self._entries.get(job_id) is entry:
            del self._entries[job_id]
            self._queue.discard(job_id)
        entry.changed.set()
        self._start_next()

    async def _end_all(self) -> None:
        """End all work; jobs stay queued."""
        self._most_active = 0
        if self._later is not None:
            self._later.cancel()
        tasks = [entry.work for entry in self._entries.values() if entry.work is not None]
        for entry in self._entries.values():
            if entry.work is not None and not entry.leaving:
                entry.leaving = JobState.QUEUED
                entry.work.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._entries.clear()


def _tell(job_id: str, state: JobState, entry: _Entry | None, message: str = "") -> None:
    """Log that a job is in a state now."""
    more = {"job": job_id, "state": state.value}
    if entry is not None:
        more |= {"account": entry.claim.owner, "kind": entry.request.kind, "host": entry.request.on or HERE}
    level = logging.WARNING if state is JobState.FAILED else logging.INFO
    _log.log(level, "job %s is %s%s", job_id, state.value, message and f": {message}", extra=more)


def _waits(error: TuneryError) -> str:
    """Return what a job says that is left to other coordinators for an error."""
    return f"waits for a coordinator that can do it; {platform.node()} cannot: {error}"[:1000]


def _cost(work: Work) -> float:
    """Return what a job has cost so far: its part of the machine's time, and the energy of all its dialects."""
    account = work.account
    assert account is not None
    joules = sum(one.account.joules() for one in work.each if one.account is not None)
    machine = account.prices.of_machine(work.runtime.granted * account.machine_s())
    return machine + account.prices.of_energy(joules)


def importing(request: Request, job_id: str = "") -> Progress:
    """Return the progress of a job whose model is being read."""
    return Progress(job_id, "importing", 0.0, request.budget.seconds, 0, request.budget.trials, None, None)


def stages_event(spans: Sequence[Span]) -> dict[str, Any]:
    """Return what the event of a run's stages says."""
    return stages_payload([(s.worker.partition("@")[0], s.kind, s.start_s, s.end_s) for s in spans])
