"""The manager of jobs: which of them begins, when, and in which state it is left."""

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from contextvars import Context
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Self

from tunery._errors import (
    LostJobError,
    NothingFoundError,
    QuotaError,
    StoreError,
    TuneryError,
    UsageError,
    problem_type,
)
from tunery._locks import own_directory
from tunery._settings import cache_directory
from tunery.domain import HostFacts, JobState, JobStatus
from tunery.domain.request import Progress, Request, ShareRequest
from tunery.engines.remote.facts import host_facts
from tunery.engines.remote.registry import added_hosts
from tunery.runtime.importing import ImportedModel
from tunery.runtime.runtime import Runtime
from tunery.service import stored_jobs
from tunery.service.adoption import Adoption
from tunery.service.budgets.months import MonthShare, take_share
from tunery.service.checks import check, check_model
from tunery.service.codec import Plain, claim_of, request_data, request_of
from tunery.service.job import Job
from tunery.service.kinds import KINDS
from tunery.service.machines import Machine, machines
from tunery.service.queue_policy import MOST_ACTIVE, JobQueue, QueuedJob, has_place, hold_back_s, size_s
from tunery.service.running import run
from tunery.service.runtimes import Runtimes
from tunery.service.stored_jobs import ChangedJobError
from tunery.store import OtherVersionError, Store, new_job_id

_MOST_WAITING, _MOST_WAITING_EACH = 10_000, 1_000
_STORE_AGAIN_S = 5.0


class JobManager:
    """Takes jobs in, has them done beside one another, and lets them go; use it as an async context manager.

    At most `most_active` jobs are at work, and beyond that one of each kind of an owner who has none; the others wait
    for their turn (`JobQueue`). Leaving the block ends all work; what was submitted stays queued in the store, and
    `recover` of another manager goes on with it. `adopt` returns the request of a job of the store with its files as
    they are called here, or raises UsageError; `refuse` raises why an account's job cannot begin. What is found in the
    store and cannot be done here is left to others. The other arguments are those of `Runtimes`.

    Example:
        async with JobManager(store) as manager:
            job_id = await manager.submit(request, ShareRequest(owner="me", priority=2))
            async for progress in manager.follow(job_id): ...
            status = store.job(job_id)
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
        refuse: Callable[[Store, Request, str], None] = lambda *_: None,
    ) -> None:
        self.runtimes = Runtimes(store, strategy=strategy, record=record, follow_hosts=follow_hosts)
        self.store, self.dispatch = self.runtimes.store, self.runtimes.dispatch
        self._most_active = most_active
        self._entries: dict[str, Job] = {}
        self._queue = JobQueue()
        self._active: dict[str, QueuedJob] = {}
        self._order = 0
        self._worked = False
        self._adoption, self._refuse = Adoption(adopt), refuse
        self._here: HostFacts | None = None
        self.on_change: Callable[[str, Progress | None], None] = lambda *_: None
        self._later: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._end_all()
        finally:
            await self.runtimes.__aexit__(kind, error, trace)

    async def submit(
        self, request: Request, claim: ShareRequest | None = None, imported: ImportedModel | None = None
    ) -> str:
        job_id = new_job_id()
        await self.submit_once(job_id, request, claim, imported)
        return job_id

    async def submit_once(
        self,
        job_id: str,
        request: Request,
        claim: ShareRequest | None = None,
        imported: ImportedModel | None = None,
    ) -> bool:
        """Queue a job, and return True; where there is a job `job_id`, return False: it is left to who stored it."""
        claim = claim or ShareRequest()
        if imported is None:
            check_model(request.model)
        check(replace(request, store=self.store.url), claim)
        most = _MOST_WAITING_EACH if claim.owner else _MOST_WAITING
        if self._queue.count(claim.owner) >= most:
            raise QuotaError(f"{most} jobs are waiting already; submit again when some have ended")
        data = request_data(request, claim=claim)
        is_new = await self.store.write(partial(stored_jobs.submit, request=data, job_id=job_id))
        if is_new:
            self._enter(job_id, request, claim, imported)
            self._entries[job_id].log(JobState.QUEUED)
        return is_new

    async def recover(self) -> list[str]:
        """Take in the jobs that an earlier manager left queued or running, whatever ended it; return their ids.

        Jobs that wait here and are done or at work elsewhere by now are forgotten. What cannot be done here is left to
        others, and looked at again the next time.
        """
        found, gone = await self.store.read(partial(stored_jobs.left_behind, known=self._queue.ids()))
        for job_id in gone:
            if job_id in self._queue:
                self._forget(self._entries[job_id])
        unknown = [one for one in found if one[0].job_id not in self._entries]
        again = {one.job_id for one, _, _ in unknown if self._adoption.why_left(one.job_id)}
        new, silent = list[str](), dict[str, str]()
        for (status, _, claim), own in zip(unknown, await self._adoption.look_at(unknown), strict=True):
            if own is not None:
                self._enter(status.job_id, own, claim, found_s=time.monotonic())
                new.append(status.job_id)
            # One that was queued just now, who took it may begin at once.
            elif status.state is JobState.STOPPED or (status.job_id in again and not status.message):
                silent[status.job_id] = self._adoption.why_left(status.job_id)
        if silent:
            await self.store.write(partial(stored_jobs.leave_to_others, reasons=silent))
        self._start_next()  # hosts that have joined since the last look bring places
        return new

    def shown(self, status: JobStatus) -> JobStatus:
        """Return a job's status as it is shown here: one that waits says why it is not done here, if it is not."""
        if status.state is not JobState.QUEUED:
            return status
        why = self._adoption.why_left(status.job_id) or status.message
        return replace(status, message="" if status.job_id in self._entries else why)

    async def resume(self, job_id: str) -> None:
        """Go on with a job that was paused, stopped or has failed; one that is in the room already stays as it is."""
        if job_id in self._entries:
            if self._entries[job_id].leaving:
                raise UsageError(f"job {job_id} is just being taken out; try again in a moment")
            return
        status = await self.store.read(lambda store: store.job(job_id))
        stored_jobs.refuse_over(status)
        claim = claim_of(status) or ShareRequest()
        request = self._adoption.fitted(request_of(status, self.store.url), claim)
        known = {key: status.request.get(key, "") for key in ("network", "name", "target_key")}
        data = {**request_data(request, claim=claim), **known}
        await self.store.write(partial(stored_jobs.queue_again, job_id=job_id, request=data))
        self._enter(job_id, request, claim)

    async def change(self, job_id: str, values: Plain, allowed: Callable[[JobStatus], None]) -> None:
        """Change what a job may cost and claim: `values` of its stored request, unless `allowed` raises.

        One that waits or is at work is taken out for it and goes on; what it has measured is kept.
        """
        status = await self.store.read(lambda store: store.job(job_id))
        stored_jobs.refuse_over(status)
        allowed(status)
        wanted = replace(status, request={**status.request, **values})
        self._adoption.fitted(request_of(wanted, self.store.url), claim_of(wanted) or ShareRequest())
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
        """Take a job out until `resume`; what it has measured is kept, the time until then is not charged to it."""
        await self._take_out(job_id, JobState.PAUSED)

    async def cancel(self, job_id: str) -> None:
        await self._take_out(job_id, JobState.CANCELLED)

    async def follow(self, job_id: str) -> AsyncIterator[Progress]:
        """Yield a job's progress as it goes, the latest where the reader is slow, until the job leaves the room."""
        entry = self._entries.get(job_id)
        while entry is not None:
            changed = entry.changed
            if entry.latest is not None:
                yield entry.latest
            if self._entries.get(job_id) is not entry:
                return
            await changed.wait()

    async def wait(self, job_id: str) -> JobStatus:
        async for _ in self.follow(job_id):
            pass
        return await self.store.read(lambda store: store.job(job_id))

    def has(self, job_id: str) -> bool:
        return job_id in self._entries

    def progress(self, job_id: str) -> Progress | None:
        """Return how a job here stands, None where it is not here; one that waits says how many begin before it."""
        entry = self._entries.get(job_id)
        if job_id not in self._queue:
            return entry.latest if entry else None
        assert entry is not None
        before = self.ahead(job_id)
        said = f"({before} before it)" if before else ""
        return replace(entry.importing(), job_id=job_id, phase="queued", current=said, remaining_s=None)

    def ahead(self, job_id: str) -> int:
        """Return how many of its owner's jobs begin before one that waits; 0 for one at work, or that is not here."""
        return self._queue.before(job_id) if job_id in self._queue else 0

    def runtime(self, request: Request) -> Runtime:
        return self.runtimes.get(request)

    async def machines(self) -> list[Machine]:
        if self._here is None:
            self._here = await asyncio.to_thread(host_facts)
        added = await asyncio.to_thread(added_hosts)
        return machines(self._here, added, self.dispatch, list(self.runtimes))

    def obstacle(self) -> str:
        """Say what keeps jobs from being worked on, "" where nothing is known to."""
        if why := self.store.moved():
            return f"{why}; start the service again"
        try:
            own_directory(cache_directory())
        except OSError as error:
            return (
                f"the cache {cache_directory()} cannot be used: {error.strerror}; give it the mode 0700, or name "
                "another one by TUNERY_CACHE"
            )
        return next(filter(None, (runtime.engine.obstacle() for runtime in self.runtimes)), "")

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
        self._adoption.take(job_id)
        self._entries[job_id] = Job(
            request, self.runtimes, claim=claim, known=lambda _: imported, left=JobState.QUEUED, job_id=job_id,
            found_s=found_s, notify=lambda progress: self.on_change(job_id, progress),
        )  # fmt: skip
        kind = KINDS.get(request.kind)  # a later version may have stored one that is unknown here
        quick = kind is None or (kind.run is not None and not kind.has_budget)
        self._queue.add(QueuedJob(job_id, claim, self._order, size_s(request.budget, request.effort), quick))
        self._start_next()

    def _start_next(self) -> None:
        """Start those whose turn it is; what went on while there was nothing to do is nobody's bill."""
        if self._worked and not self._active:
            self.dispatch.claim(self.dispatch.own_s())
            for runtime in self.runtimes:
                runtime.usage.claim(runtime.usage.unclaimed())
        while chosen := self._next():
            self._queue.discard(chosen.job_id)
            self._active[chosen.job_id] = chosen
            self._worked = True
            entry = self._entries[chosen.job_id]
            # Of no request's context: a job waits for its store as long as it must.
            entry.task = asyncio.create_task(self._live(entry), context=Context())

    def _next(self) -> QueuedJob | None:
        at_work = Counter(one.owner for one in self._active.values())
        alike = Counter((one.owner, one.quick) for one in self._active.values())
        cores, most = self.dispatch.core_count(), self._most_active
        chosen = self._queue.next_turn(at_work, lambda one: has_place(one, alike, cores, most))
        if chosen is None or chosen.quick or not self._left_to_others(chosen):
            return chosen
        return self._queue.next_turn(at_work, lambda one: one.quick and has_place(one, alike, cores, most))

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

    async def _live(self, job: Job) -> None:
        watching: asyncio.Task[None] | None = None
        assert job.task is not None
        try:
            if await self.store.write(partial(stored_jobs.acquire, job_id=job.job_id)):
                job.began = time.monotonic()
                job.hold(job.job_id, job.task.cancel)
                job.log(JobState.RUNNING)
                await self.store.read(lambda store: self._refuse(store, job.request, job.claim.owner))
                cores = max(self.dispatch.core_count(), os.cpu_count() or 1)
                job.month = await take_share(self.store, job.job_id, job.claim.owner, job.request.prices, cores)
                watching = asyncio.create_task(self._end_with_month(job, job.month))
                await run(job)
        except asyncio.CancelledError:
            if job.used_up is None:
                await self._end_as(job, job.ending())
            else:
                await self._fail(job, job.used_up)
        except OtherVersionError as error:  # it waits until one version is left
            with suppress(StoreError):
                await self.store.write(partial(Store.explain_job, job_id=job.job_id, why=str(error)))
        except ChangedJobError as error:
            if job.found_s:
                await self._end_as(job, JobState.QUEUED, self._adoption.leave(job.job_id, error))
            else:
                await self._fail(job, error)
        except Exception as error:  # noqa: BLE001 - one job's failure must not touch the others
            await self._fail(job, error)
        finally:
            if watching is not None:
                watching.cancel()
            job.release(models=True)
            self._active.pop(job.job_id, None)
            self._forget(job)

    async def _end_with_month(self, job: Job, month: MonthShare) -> None:
        """End a job when it has had its part of the month, unless it keeps that limit by itself as its own budget."""
        await month.watch()
        if not month.kept and not job.leaving and job.task is not None:
            job.used_up = month.refusal()
            job.task.cancel()

    async def _fail(self, job: Job, error: Exception) -> None:
        text = str(error) if isinstance(error, TuneryError) else f"{type(error).__name__}: {error}"
        await self._end_as(job, JobState.FAILED, text[:1000], problem_type(error))

    async def _leave(self, job: Job, state: JobState, message: str = "", problem: str = "") -> None:
        left = partial(stored_jobs.leave, job_id=job.job_id, state=state, message=message, problem=problem)
        await self.store.write(left)
        job.log(state, message)

    async def _end_as(self, job: Job, state: JobState, message: str = "", problem: str = "") -> None:
        """Store how a job ended, or wait until the store can be written: nobody could end what runs for ever."""
        with suppress(asyncio.CancelledError, NothingFoundError):
            while not job.leaving:
                try:
                    await self._leave(job, state, message, problem)
                except LostJobError:  # how it ends is said where it went on
                    return
                except StoreError:
                    if self.store.moved():  # it is gone for good, and `serve` ends
                        return
                    await asyncio.sleep(_STORE_AGAIN_S)
                else:
                    return
        with suppress(StoreError, NothingFoundError):  # whoever takes it out hears of it
            await self._leave(job, job.ending())

    async def _take_out(self, job_id: str, state: JobState) -> None:
        while (entry := self._entries.get(job_id)) and entry.leaving and entry.task:
            await asyncio.wait([entry.task])  # one after the other: a second cancellation would cut the first short
        if entry is None:
            await self.store.write(partial(stored_jobs.leave_aside, job_id=job_id, state=state))
            return
        entry.leaving = state
        waited = self._queue.discard(job_id)
        if entry.task is not None:
            (self.dispatch.pause if state is JobState.PAUSED else self.dispatch.cancel)(job_id)
            entry.task.cancel()
            await asyncio.wait([entry.task])
            if job_id not in self._entries:
                left = await self.store.read(lambda store: store.job(job_id))
                if left.state is not JobState.RUNNING:
                    return  # in this state, unless it ended by itself just now
        try:
            if waited is None:
                await self._leave(entry, state)
            else:  # with one write: nobody else has it
                await self.store.write(partial(stored_jobs.leave_aside, job_id=job_id, state=state))
                entry.log(state)
        except StoreError:
            if waited is not None:
                entry.leaving = None
                self._queue.add(waited)
            self._start_next()
            raise
        self._active.pop(job_id, None)  # it had not begun
        self._forget(entry)

    def _forget(self, job: Job) -> None:
        if self._entries.get(job.job_id) is job:
            del self._entries[job.job_id]
            self._queue.discard(job.job_id)
        job.wake()
        self.on_change(job.job_id, None)
        self._start_next()

    async def _end_all(self) -> None:
        self._most_active = 0
        if self._later is not None:
            self._later.cancel()
        tasks = [entry.task for entry in self._entries.values() if entry.task is not None]
        for entry in self._entries.values():
            if entry.task is not None and not entry.leaving:
                entry.leaving = JobState.QUEUED
                entry.task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._entries.clear()
