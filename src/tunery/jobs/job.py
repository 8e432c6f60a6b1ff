"""One job from model to report, as coroutines over the runtime's stages."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tunery._errors import DialectError, EngineError, ModelError, StoreError, UsageError, WorkError
from tunery.budgets import Allocator, Meter, Power, load_prices, outlook, plan, unit_of
from tunery.costmodels import pretrained
from tunery.domain import JobState, JobStatus, Network, Prospect, Provenance, Spend, Target, Task
from tunery.engines import Role
from tunery.jobs._request import Progress, Request
from tunery.jobs.account import Account, Bill
from tunery.jobs.charging import charge
from tunery.jobs.context import Context
from tunery.jobs.runtime import Runtime
from tunery.jobs.search import TaskSearch
from tunery.jobs.services import FeatureRow
from tunery.measure import Settings, this_device
from tunery.store import Charge, Store

IMPORT_DEADLINE_S = 1800.0
_DEPTH = 3  # batches in flight: one proposes and one builds while one measures
_LEARN_AT, _LEARN_GROWTH = 48, 1.25
_HEARTBEAT_S = 10.0


@dataclass(frozen=True)
class Imported:
    """A model made ready for a target, and what that took."""

    network: Network
    target: Target
    compiler: str
    tasks: tuple[Task, ...]
    wall_s: float = 0.0
    core_s: float = 0.0


async def import_model(runtime: Runtime, store: Store, request: Request, cache: Path, job_id: str) -> Imported:
    """Prepare the model and extract its tasks, or read them from the store if this very network was seen before.

    Raises:
        UsageError: the model, the shapes or the target are wrong; a ModelError if the compiler lacks an operator.
        WorkError: a worker failed, or the model holds nothing that runs on the target.
    """
    async with runtime.stage(job_id, "import", Role.IMPORTER) as grant:
        try:
            target, compiler = await runtime.call(
                grant.worker, "target", request.target, runtime.threads, deadline_s=IMPORT_DEADLINE_S, tries=3
            )
            network = await runtime.call(
                grant.worker,
                "load",
                request.model,
                request.shapes,
                cache / "networks",
                deadline_s=IMPORT_DEADLINE_S,
                tries=3,
            )
            tasks = store.load_tasks(network.digest, target.key, compiler)
            if tasks is None:
                tasks = await runtime.call(
                    grant.worker, "extract", network, target, deadline_s=IMPORT_DEADLINE_S, tries=3
                )
                store.save_tasks(network, tasks, target=target, compiler=compiler)
        except UsageError:
            raise
        except DialectError as error:  # this model cannot be had with this compiler, however often it is tried
            raise ModelError(
                f"{error}; export it with other operators or another opset, or replace that part"
            ) from error
        except EngineError as error:
            raise WorkError(f"importing {request.model} failed: {error}") from error
    if not tasks:
        raise WorkError(f"{network.name} has no operator that runs on {target}; there is nothing to tune")
    return Imported(network, target, compiler, tuple(tasks), grant.wall_s, grant.core_s)


class Job:
    """Tunes one imported model within its budget, which counts from `began` (monotonic seconds; None: from now)."""

    def __init__(  # noqa: PLR0917 - its collaborators, each used throughout
        self,
        runtime: Runtime,
        store: Store,
        request: Request,
        status: JobStatus,
        imported: Imported,
        on_progress: Callable[[Progress], None],
        stop: threading.Event,
        began: float | None = None,
    ) -> None:
        self.status = status
        self._runtime, self._store, self._request, self._imported = runtime, store, request, imported
        self._notify, self._stop = on_progress, stop
        device = this_device(runtime.cores)
        provenance = Provenance(request.dialect, imported.compiler, device.fingerprint, Settings().key)
        self._prices = load_prices(request.prices)
        self._account = Account(store, status.job_id, runtime, self._prices, Power())
        self._context = Context(status.job_id, runtime, store, provenance, request.seed, self._account)
        if request.pretrained:
            self._context.cost_model = pretrained(request.dialect, imported.target.config)
        self._base = self._context.cost_model
        proposers = runtime.workers(Role.PROPOSER)
        self.searches = [
            TaskSearch(self._context, task, proposers[i % len(proposers)]) for i, task in enumerate(imported.tasks)
        ]
        self._start = time.monotonic() if began is None else began
        self._phase = "importing"
        self._learned_rows = 0
        self._learning: asyncio.Task[None] | None = None
        tunable = sum(task.tunable for task in imported.tasks)
        self._limits = plan(request.budget, request.effort, tunable)
        self._meter = Meter(self._limits)

    async def run(self) -> JobStatus:
        """Run to the end of the budget, or to a stop; the status is stored and returned either way."""
        self._charge_import()
        for search in self.searches:
            search.restore()
        before = self.status.spend
        self._meter = Meter(
            self._limits, before.wall_s, self._context.trials, before.joules or 0.0, self._prices,
            len(self._runtime.cores),
        )  # fmt: skip
        beat = asyncio.create_task(self._heartbeats())
        try:
            await self._run_phases()
            self._account.close(self._elapsed())
            state = JobState.STOPPED if self._stop.is_set() else JobState.DONE
            message = "stopped; the same command goes on where it stopped" if self._stop.is_set() else ""
            self.status = self._snapshot(state, message)
        except BaseException as error:
            self.status = self._snapshot(JobState.STOPPED, f"{type(error).__name__}: {error}"[:300])
            raise
        finally:
            beat.cancel()
            if self._learning is not None:
                self._learning.cancel()
            with suppress(asyncio.CancelledError):
                await beat
            self._store.save_job(self.status)
            self._store.release_job(self.status.job_id, self.status.state)
        return self.status

    def _charge_import(self) -> None:
        imported = self._imported
        spent = Charge(self.status.job_id, "", "import", "", imported.wall_s, imported.core_s, 0.0)
        if imported.wall_s:
            self._account.post([Bill(spent, imported.wall_s)])

    async def _run_phases(self) -> None:
        self._enter("baseline")
        for search in self.searches:
            if self._over():
                break
            await self._guarded(search, search.measure_baseline())
            self._progress()
        self._enter("search")
        await self._search()
        self._enter("finals")
        for search in sorted(self.searches, key=lambda s: -s.task.weight * (s.best_s or 0.0)):
            if self._stop.is_set() or self._out_of_time():
                break
            await self._guarded(search, search.finals())
            self._progress()

    async def _guarded(self, search: TaskSearch, work: Coroutine[None, None, None]) -> None:
        """Do one task's step; a task whose own program cannot be built or run is left out, the others go on."""
        try:
            await work
        except (WorkError, EngineError) as error:
            search.standing.exhausted = True
            search.outcomes[f"left out: {error}"[:160]] += 1

    # -- search ---------------------------------------------------------------------------------------------------

    async def _search(self) -> None:
        allocator = Allocator([s.standing for s in self.searches], unit_of(self._request.budget), self._prices)
        by_key = {s.task.key: s for s in self.searches}
        running: set[asyncio.Task[int]] = set()
        try:
            while True:
                while len(running) < _DEPTH and not self._over():
                    size = self._batch_size()
                    standing = allocator.next(size) if size else None
                    if standing is None:
                        break
                    search = by_key[standing.task_key]
                    # The first batch has no model to choose by: half of one tells as much.
                    size = min(size, self._limits.batch if standing.batches else max(self._limits.batch // 2, 1))
                    size = size if search.task.tunable else 1
                    standing.in_flight += 1
                    standing.trials_in_flight += size
                    self._meter_in_flight(size)
                    running.add(asyncio.create_task(self._one_batch(search, size)))
                if not running:
                    return
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED, timeout=0.2)
                for task in done:
                    task.result()
                if done:
                    self._learn_if_due()
                    self._progress()
                if self._stop.is_set() or self._out_of_time():
                    return
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _one_batch(self, search: TaskSearch, size: int) -> int:
        try:
            return await search.batch(size)
        finally:
            search.standing.in_flight -= 1
            search.standing.trials_in_flight -= size
            self._meter_in_flight(-size)

    def _meter_in_flight(self, change: int) -> None:
        self._context.trials_in_flight += change

    def _batch_size(self) -> int:
        self._meter.trials = self._context.trials
        left = self._meter.trials_left(self._context.trials_in_flight)
        return self._limits.batch if left is None else min(left, self._limits.batch)

    def _learn_if_due(self) -> None:
        rows = len(self._context.rows)
        busy = self._learning is not None and not self._learning.done()
        if busy or rows < max(_LEARN_AT, self._learned_rows * _LEARN_GROWTH):
            return
        fresh, self._learned_rows = self._context.rows[self._learned_rows :], rows
        self._learning = asyncio.create_task(self._learn(fresh))

    async def _learn(self, rows: list[FeatureRow]) -> None:
        context = self._context
        with suppress(EngineError):
            async with self._runtime.stage(context.job_id, "learn", Role.TRAINER, size=len(rows)) as grant:
                model = await self._runtime.call(grant.worker, "learn", rows, self._base, deadline_s=120.0)
            charge(context, "", "learn", "", grant, 1)
            if model:
                context.cost_model, context.model_version = model, context.model_version + 1

    # -- budget ---------------------------------------------------------------------------------------------------

    def _elapsed(self) -> float:
        return time.monotonic() - self._start

    def _over(self) -> bool:
        return self._stop.is_set() or self._out_of_time()

    def _out_of_time(self) -> bool:
        left_s = self._meter.seconds_left(self._elapsed(), self._account.joules())
        if left_s is None:
            return False
        reserve_s = 0.0 if self._phase == "finals" else sum(s.finals_cost_s() for s in self.searches)
        return left_s <= min(reserve_s, 0.5 * self._meter.allowance_s())

    # -- reporting ------------------------------------------------------------------------------------------------

    async def _heartbeats(self) -> None:
        while True:
            await asyncio.sleep(_HEARTBEAT_S)
            with suppress(StoreError):  # a store that is only busy answers the next one; no other ends the job here
                if not self._store.heartbeat(self.status.job_id):
                    self._stop.set()  # another process owns the job now
                    return
                self._account.settle()
                self.status = self._snapshot(JobState.RUNNING, self._phase)
                self._store.save_job(self.status)

    def _enter(self, phase: str) -> None:
        self._phase = phase
        self._progress()

    def _progress(self) -> None:
        elapsed = self._elapsed()
        left = self._meter.seconds_left(elapsed, self._account.joules())
        trials = self._context.trials
        if left is None and self._limits.trials and trials:
            rate = elapsed / max(trials, 1)
            left = max(self._limits.trials - trials, 0) * rate + sum(s.finals_cost_s() for s in self.searches)
        self._notify(
            Progress(
                self.status.job_id,
                self._phase,
                elapsed,
                left,
                trials,
                self._limits.trials,
                weighted(self.searches, "best_s"),
                weighted(self.searches, "baseline_s"),
            )
        )

    def _snapshot(self, state: JobState, message: str) -> JobStatus:
        rows = self._store.ledger(self.status.job_id)
        stage_s: dict[str, float] = {}
        for row in (row for row in rows if row.wall_s):
            stage_s[row.stage] = stage_s.get(row.stage, 0.0) + row.wall_s
        elapsed_s, joules = self._elapsed(), self._account.joules()
        spend = Spend(
            wall_s=self._meter.total_s(elapsed_s),
            core_s=sum(row.core_s for row in rows),
            device_s=sum(row.device_s for row in rows),
            trials=self._context.trials,
            stage_s=stage_s,
            joules=self._meter.total_j(joules),
            modelled=any(row.modelled for row in rows),
            money=self._meter.money(elapsed_s, joules),
            currency=self._prices.currency,
        )
        self._meter.trials = self._context.trials
        return replace(
            self.status, state=state, spend=spend, message=message, tasks=tuple(s.state() for s in self.searches),
            remaining=self._meter.remaining(elapsed_s, joules), outlook=self._outlook(),
        )  # fmt: skip

    def _outlook(self) -> tuple[Prospect, ...]:
        fixed = [s for s in self.searches if not s.task.tunable]
        if any(s.best_s is None for s in fixed):
            return ()
        fixed_s = sum(s.task.weight * (s.best_s or 0.0) for s in fixed)
        standings = [s.standing for s in self.searches if s.task.tunable]
        return outlook(standings, fixed_s, len(self._runtime.cores), self._prices, self._request.seed)


def weighted(searches: list[TaskSearch], what: str) -> float | None:
    """Return the weighted sum of `best_s` or `baseline_s` over tasks, None while one is missing."""
    total = 0.0
    for search in searches:
        value = getattr(search, what)
        if value is None:
            return None
        total += search.task.weight * value
    return total
