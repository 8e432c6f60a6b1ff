"""What all jobs of a process are done with: the store, the scheduler, the workers, and the accounts that pay."""

import asyncio
import platform
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from tunery._errors import StoreError, TuneryError, UsageError
from tunery.accounting.prices import load_prices
from tunery.domain import DeviceDescription, JobState, Spend
from tunery.domain.request import CompileReport, Progress, Request, ShareRequest
from tunery.engines.remote.registry import added_hosts, host_named
from tunery.reports.job import STAGES, stages_payload
from tunery.runtime.dispatch import Dispatch, Span
from tunery.runtime.importing import ImportedModel
from tunery.runtime.opening import introduce, open_runtime, open_runtime_on
from tunery.runtime.runtime import Reservation, Runtime
from tunery.runtime.spec import RuntimeSpec
from tunery.service.budgets.months import MonthShare
from tunery.store import AsyncStore, Charge, Store
from tunery.tuning.account import Account, PricedCharge, charged
from tunery.tuning.search.registry import SearchRegistry
from tunery.tuning.work import Work


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
    `compiled` is the report of its network, `undelivered` why there is none though it was asked for.
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
    undelivered: TuneryError | None = None

    def tell(self, progress: Progress) -> None:
        self.latest = progress
        self.notify(progress)

    def importing(self, job_id: str = "") -> Progress:
        """Return its progress while its model is being read."""
        budget = self.request.budget
        return Progress(job_id, "importing", 0.0, budget.seconds, 0, budget.trials, None, None)

    def release(self) -> None:
        """Let go of the files that are held for it."""
        for work in self.readers:
            for blob in work.model_read.blobs:
                work.runtime.release(blob)


class Runtimes:
    """A runtime for each dialect, thread count, way of measuring and host, and the searches that are open on it.

    Targets may share one: tasks, searches, artifacts and cost models carry theirs in their keys, and workers get it
    with each call. All stages are placed by one `dispatch`. With `follow`, hosts that are added or removed meanwhile
    join or leave.
    """

    def __init__(self, dispatch: Dispatch, *, follow: bool = False) -> None:
        self._dispatch, self._follow = dispatch, follow
        self._open: dict[RuntimeSpec, Runtime] = {}
        self._searches: dict[Runtime, SearchRegistry] = {}
        self._opening: dict[RuntimeSpec, asyncio.Task[None]] = {}
        self._stack = ExitStack()

    def __iter__(self) -> Iterator[Runtime]:
        """Go through those that are open."""
        return iter(list(self._open.values()))

    def get(self, request: Request) -> Runtime:
        """Return the workers of a request's job, started with the first request; the event loop waits meanwhile."""
        return self._get(RuntimeSpec.of(request))

    def _get(self, spec: RuntimeSpec) -> Runtime:
        if spec not in self._open:
            self._open[spec] = self._stack.enter_context(open_runtime(spec, self._dispatch, follow=self._follow))
        return self._open[spec]

    async def connected(self, request: Request) -> Runtime:
        """Do as `get`; other jobs go on while a host is waited for."""
        spec = RuntimeSpec.of(request)
        if not spec.on:
            return self._get(spec)
        host_named(spec.on, await asyncio.to_thread(added_hosts))
        if spec not in self._open:
            if spec not in self._opening:
                self._opening[spec] = asyncio.create_task(self._connect(spec))
            # Others may wait for it as well: a job that is cancelled may not take it from them.
            await asyncio.shield(self._opening[spec])
        return self._open[spec]

    def searches(self, runtime: Runtime) -> SearchRegistry:
        if runtime not in self._searches:
            self._searches[runtime] = SearchRegistry(runtime)
        return self._searches[runtime]

    async def close(self) -> None:
        """End all workers, also those that are being started."""
        for opening in self._opening.values():
            opening.cancel()
        await asyncio.gather(*self._opening.values(), return_exceptions=True)
        self._stack.close()

    async def _connect(self, spec: RuntimeSpec) -> None:
        try:
            self._open[spec] = await open_runtime_on(self._stack, spec, self._dispatch, follow=self._follow)
        finally:
            del self._opening[spec]


R = TypeVar("R")


class Workplace:
    """One store, one scheduler and one set of workers, for any number of jobs; an async context manager.

    Jobs with the same task share its search, all jobs of a target one cost model; jobs of another dialect, thread count
    or way of measuring get workers of their own, placed by the same scheduler. With `record`, the scheduler's log and
    the span of each stage are kept in `dispatch`. With `follow_hosts`, hosts that are added or removed meanwhile are
    used or left.
    """

    def __init__(
        self, store: Store, *, strategy: str = "predictive", record: bool = True, follow_hosts: bool = False
    ) -> None:
        self.store = AsyncStore(store)
        self.dispatch = Dispatch(strategy, record=record)
        self.runtimes = Runtimes(self.dispatch, follow=follow_hosts)
        self._turns: dict[str, asyncio.Semaphore] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.runtimes.close()
        self.store.close()

    async def read(self, job: Assignment, name: str, used: list[Reservation] | None = None) -> Work:
        """Read a request's model with its tasks, as each of its dialects takes it in.

        What it cost is charged to the job that tunes it. `used` gets the grants of its stages, also where it fails;
        they are scheduled, and hold the machine, as those of `name`.
        """
        claim = job.claim

        def begun() -> None:
            if job.latest is None:
                job.tell(job.importing())

        async def read(work: Work) -> None:
            if work.imported is not None:
                return
            self.dispatch.submit(name, claim.owner, claim.weight, claim.priority)
            try:
                found = await work.model(begun, used=used)
                work.runtime.claim(found.core_s)  # until the job that is given it is charged
            finally:
                self.dispatch.end(name)
            job.readers = (*job.readers, work)

        return await self._begin_each(job, name, read)

    async def works(self, job: Assignment, job_id: str, *, charged: bool = True) -> Work:
        async def begin(work: Work) -> None:
            work.account = self.account(work) if charged else None
            if owner := job.claim.owner:  # so that half of the cores read models of others
                most = max(1, self.dispatch.core_count() // 2)
                work.turn = self._turns.setdefault(owner, asyncio.Semaphore(most))

        return await self._begin_each(job, job_id, begin)

    async def _begin_each(self, job: Assignment, name: str, begin: Callable[[Work], Awaitable[None]]) -> Work:
        """Return what a job has at hand for its dialects, each begun so; why one takes no part is told in it."""
        works, refused, errors = list[Work](), dict[str, str](), list[TuneryError]()
        for one in job.request.each_dialect:
            try:
                work = Work(await self.runtimes.connected(one), self.store, one, name, job.tell, job.known(one))
                await begin(work)
                works.append(work)
            except TuneryError as error:
                errors.append(error)
                refused[one.dialect] = str(error)
        if not works:
            raise errors[0]
        works[0].others, works[0].refused = tuple(works[1:]), refused
        return works[0]

    async def work_on(self, job: Assignment, work: Work, run: Callable[[Work], Awaitable[R]]) -> R:
        """Do a job's work beside all others; if it has an account, it is charged for its part of the machine."""
        began, claim, unread = time.monotonic(), job.claim, [one for one in work.each if one.imported is None]
        self.dispatch.submit(work.job_id, claim.owner, claim.weight, claim.priority)
        try:
            return await run(work)
        finally:
            job.readers = (*job.readers, *(one for one in unread if one.imported is not None))
            spans, wall_s = self.dispatch.end(work.job_id), time.monotonic() - began
            if work.account is not None:
                await self.keep_stages(work.job_id, spans)
                await self._close(work, wall_s)

    def account(self, work: Work) -> Account:
        return Account(self.store, work.job_id, work.runtime, load_prices(work.request.prices), work.runtime.power)

    async def charge_import(self, work: Work) -> None:
        read = work.model_read
        if read.wall_s:
            work.runtime.claim(-read.core_s)
            bill = Charge(work.job_id, "", "import", "", read.wall_s, read.core_s, 0.0, host=platform.node())
            await self.account(work).post([PricedCharge(bill, read.wall_s)])

    async def charge_in_vain(self, job: Assignment, job_id: str, used: Sequence[Reservation], wall_s: float) -> None:
        one = job.request.each_dialect[0]
        work = Work(await self.runtimes.connected(one), self.store, one, job_id)
        work.account = self.account(work)
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
        await self.store.write(partial(_add_run, job_id=work.job_id, spent=spent))

    async def keep_stages(self, job_id: str, spans: Sequence[Span]) -> None:
        """Store which worker did what for a job in this run, for its report."""
        payload = stages_event(spans)
        if payload["spans"]:
            with suppress(StoreError):  # nothing depends on it
                await self.store.write(lambda store: store.events.append(STAGES, payload, job_id))

    async def device(self, work: Work) -> DeviceDescription:
        """Return what a job measures on, which is stored, and let it measure as its calibration allows."""
        device = await introduce(work.runtime, self.store)
        key = (device.fingerprint, work.request.dialect, work.runtime.threads)
        work.runtime.share(await self.store.read(lambda store: store.calibration(*key)))
        return device


def _add_run(store: Store, job_id: str, spent: Spend) -> None:
    """Add the times of a run to those of the job's earlier runs; what all have used is the ledger's word."""
    status = store.job(job_id)
    before = status.spend
    times = replace(
        before,
        wall_s=before.wall_s + spent.wall_s,
        machine_s=(before.machine_s or before.wall_s) + spent.machine_s,
        currency=spent.currency,
        cores=spent.cores,
    )
    store.save_job(replace(status, spend=charged(times, store.ledger(job_id))))


def stages_event(spans: Sequence[Span]) -> dict[str, Any]:
    return stages_payload([(s.worker.partition("@")[0], s.kind, s.start_s, s.end_s) for s in spans])
