"""A job in this process: what it is to do, for whom, and what it has at hand."""

import asyncio
import itertools
import logging
import platform
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from tunery._errors import EngineError, StoreError, TuneryError, UsageError
from tunery.accounting.prices import load_prices
from tunery.domain import HERE, DeviceDescription, JobState, JobStatus, Spend
from tunery.domain.request import CompileReport, Progress, Request, ShareRequest
from tunery.reports.job import STAGES, stages_payload
from tunery.runtime.dispatch import Span
from tunery.runtime.importing import ImportedModel
from tunery.runtime.opening import introduce
from tunery.runtime.runtime import Reservation
from tunery.service.budgets.months import MonthShare
from tunery.service.runtimes import Runtimes
from tunery.store import AsyncStore, Charge, Store
from tunery.tuning.account import Account, PricedCharge, charged
from tunery.tuning.job import HEARTBEAT_S
from tunery.tuning.work import Work

_log = logging.getLogger(__name__)
_numbers = itertools.count(1)
R = TypeVar("R")


@dataclass(eq=False)
class Job:
    """A job that waits for its turn or is at work, for whoever asked for it.

    Attributes:
        claim: Whose it is, and its share of the machine.
        notify: Gets its progress, of which `latest` is the last.
        known: Returns the model of a request that was read before.
        stop: Set, it ends tuning in a state that goes on.
        left: The state in which it is left where it is cancelled; `leaving` if it is taken out.
        job_id: The stored job that it is, or goes on with; "" for a new one. It is `held` while it is at work as that.
        began: Its budget counts from then (monotonic seconds).
        status: How it stood when it was taken up; `resumed` if it had begun before, `beginning` is what its report
            tells beside its status.
        works: What it has at hand for each of its dialects.
        month: Its part of its account's month; `used_up` is the error of a part that it has used.
        found_s: When it was found in the store, where others may take it as well (monotonic seconds); others are zero.
        compiled: The report of its network; `undelivered` says why there is none though it was asked for.
    """

    request: Request
    runtimes: Runtimes
    _: KW_ONLY
    claim: ShareRequest = field(default_factory=ShareRequest)
    notify: Callable[[Progress], None] = lambda _: None
    known: Callable[[Request], ImportedModel | None] = lambda _: None
    stop: threading.Event = field(default_factory=threading.Event)
    left: JobState = JobState.STOPPED
    leaving: JobState | None = None
    job_id: str = ""
    held: bool = False
    began: float = field(default_factory=time.monotonic)
    status: JobStatus | None = None
    resumed: bool = False
    beginning: Mapping[str, Any] = field(default_factory=dict)
    works: tuple[Work, ...] = ()
    month: MonthShare | None = None
    used_up: UsageError | None = None
    found_s: float = 0.0
    task: asyncio.Task[None] | None = None
    latest: Progress | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    compiled: CompileReport | None = None
    undelivered: TuneryError | None = None

    def __post_init__(self) -> None:
        self._name = f"{self.request.kind} {next(_numbers)}"
        self._stack = ExitStack()
        self._read_here: list[Work] = []

    @property
    def store(self) -> AsyncStore:
        return self.runtimes.store

    @property
    def work(self) -> Work:
        return self.works[0]

    @property
    def name(self) -> str:
        return self.job_id if self.held else self._name

    def ending(self) -> JobState:
        return self.leaving or self.left

    def tell(self, progress: Progress) -> None:
        self.latest = progress
        self.wake()
        self.notify(progress)

    def wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def importing(self) -> Progress:
        budget = self.request.budget
        job_id = self.job_id if self.held else ""
        return Progress(job_id, "importing", 0.0, budget.seconds, 0, budget.trials, None, None)

    # -- as a stored job ------------------------------------------------------------------------------------------

    def hold(self, job_id: str, lost: Callable[[], object] | None = None) -> None:
        """Be at work as a stored job until `release`: with a part of the machine, and saying so now and then. Where
        another process has it, it is `lost`: by default it stops."""
        self.job_id, self.held = job_id, True
        for work in self.works:
            work.job_id = job_id
        self._stack.enter_context(self.runtimes.dispatch.machine.running(job_id, self.began))
        self._stack.callback(asyncio.create_task(self._keep_alive(lost or self.stop.set)).cancel)

    async def _keep_alive(self, lost: Callable[[], object]) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            with suppress(StoreError):  # one that is only busy answers the next time
                if not await self.store.heartbeat(self.job_id):
                    lost()
                    return

    def release(self, *, models: bool = False) -> None:
        """Be at work no more; with `models`, let go of the files of those that were read for it."""
        self._stack.close()
        for work in self._read_here if models else ():
            for blob in work.imported.blobs if work.imported else ():
                work.runtime.holds.release(blob)

    def log(self, state: JobState, message: str = "") -> None:
        more = {"job": self.job_id, "state": state.value, "account": self.claim.owner, "kind": self.request.kind,
                "host": self.request.on or HERE}  # fmt: skip
        level = logging.WARNING if state is JobState.FAILED else logging.INFO
        _log.log(level, "job %s is %s%s", self.job_id, state.value, message and f": {message}", extra=more)

    # -- at work --------------------------------------------------------------------------------------------------

    async def read(self, used: list[Reservation]) -> None:
        """Read its model with its tasks, as each of its dialects takes it in. What it cost is charged once the job is
        taken up. `used` gets the grants of its stages, also where it fails."""
        name, claim = self.name, self.claim

        def begun() -> None:
            if self.latest is None:
                self.tell(self.importing())

        async def read(work: Work) -> None:
            if work.imported is not None:
                return
            self.runtimes.dispatch.submit(name, claim.owner, claim.weight, claim.priority)
            try:
                found = await work.model(begun, used=used)
                work.runtime.usage.claim(found.core_s)  # until the job that is given it is charged
            finally:
                self.runtimes.dispatch.end(name)

        await self._begin_each(read)

    async def begin(self) -> None:
        """Get what it works with for each of its dialects; if it is held, all that it does is charged to it."""

        async def begin(work: Work) -> None:
            work.account = self.account(work) if self.held else None
            if self.claim.owner:
                work.turn = self.runtimes.turn_to_read(self.claim.owner)

        await self._begin_each(begin)

    async def _begin_each(self, begin: Callable[[Work], Awaitable[None]]) -> None:
        """Begin with each dialect; why one takes no part is told in the first one's work."""
        works, refused, errors = list[Work](), dict[str, str](), list[TuneryError]()
        for one in self.request.each_dialect:
            try:
                runtime = await self.runtimes.connected(one)
                work = Work(runtime, self.store, one, self.name, self.tell, self.known(one))
                if work.imported is None:
                    self._read_here.append(work)
                await begin(work)
                works.append(work)
            except TuneryError as error:
                errors.append(error)
                refused[one.dialect] = str(error)
        if not works:
            raise errors[0]
        works[0].others, works[0].refused = tuple(works[1:]), refused
        self.works = tuple(works)

    async def work_on(self, work: Work, run: Callable[[Work], Awaitable[R]]) -> R:
        """Do its work beside all other jobs; if that has an account, it is charged for its part of the machine."""
        began, claim, dispatch = time.monotonic(), self.claim, self.runtimes.dispatch
        dispatch.submit(work.job_id, claim.owner, claim.weight, claim.priority)
        try:
            return await run(work)
        finally:
            spans, wall_s = dispatch.end(work.job_id), time.monotonic() - began
            if work.account is not None:
                await self.keep_stages(spans)
                await self._close(work, wall_s)

    async def device(self, work: Work) -> DeviceDescription:
        device = await introduce(work.runtime, self.store)
        key = (device.fingerprint, work.request.dialect, work.runtime.threads)
        work.runtime.share(await self.store.read(lambda store: store.calibration(*key)))
        return device

    # -- what it costs --------------------------------------------------------------------------------------------

    def account(self, work: Work) -> Account:
        return Account(self.store, work.job_id, work.runtime, load_prices(work.request.prices), work.runtime.power)

    def cost(self) -> float:
        """Return what it has cost so far: its part of the machine's time, and the energy of all its dialects."""
        accounts = [work.account for work in self.works if work.account is not None]
        prices, first = accounts[0].prices, self.work
        machine = prices.of_machine(first.runtime.granted * accounts[0].machine_s())
        return machine + prices.of_energy(sum(account.joules() for account in accounts))

    async def charge_import(self) -> None:
        for work in self.works:
            read = work.model_read
            if read.wall_s:
                work.runtime.usage.claim(-read.core_s)
                bill = Charge(self.job_id, "", "import", "", read.wall_s, read.core_s, 0.0, host=platform.node())
                await self.account(work).post([PricedCharge(bill, read.wall_s)])

    async def charge_in_vain(self, used: Sequence[Reservation]) -> None:
        """Charge a held job for the stages of a model that could not be read."""
        for work in self._read_here:
            work.runtime.usage.claim(-work.imported.core_s if work.imported else 0.0)
        if not self.held:
            return
        with suppress(StoreError, UsageError, EngineError):  # the first error is the one to tell
            request = self.request.each_dialect[0]
            work = Work(await self.runtimes.connected(request), self.store, request, self.job_id)
            work.account = self.account(work)
            await work.account.post(
                PricedCharge(
                    Charge(self.job_id, "", "import", "", one.wall_s, one.core_s, 0.0, host=one.host), one.wall_s
                )
                for one in used
            )
            await self._close(work, time.monotonic() - self.began)

    async def _close(self, first: Work, wall_s: float) -> None:
        for work in first.each:
            account = work.account
            assert account is not None
            with suppress(StoreError, UsageError):  # the first error is the one to tell
                await account.close()
                spent = Spend(
                    wall_s=wall_s if work is first else 0.0, machine_s=account.machine_s(),
                    currency=account.prices.currency, cores=work.runtime.granted,
                )  # fmt: skip
                await self.store.write(partial(_add_run, job_id=self.job_id, spent=spent))

    async def keep_stages(self, spans: Sequence[Span]) -> None:
        payload = stages_event(spans)
        if payload["spans"]:
            with suppress(StoreError):  # nothing depends on it
                await self.store.write(lambda store: store.events.append(STAGES, payload, self.job_id))


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
