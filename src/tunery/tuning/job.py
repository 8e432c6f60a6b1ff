"""One job from model to report, as coroutines over the runtime's stages."""

import asyncio
import itertools
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial

from tunery._errors import EngineError, StoreError, WorkError
from tunery.accounting.meter import plan
from tunery.accounting.prices import load_prices
from tunery.domain import PHASE, DeviceDescription, JobState, JobStatus, Provenance, TaskState
from tunery.domain.request import GOES_ON, MODEL_CHANGED
from tunery.measuring.settings import settings_for
from tunery.runtime.dispatch import WithdrawnError
from tunery.store import Store
from tunery.tuning.account import Account, RunBudget
from tunery.tuning.allocation.allocator import Allocator, RoundRobin, TaskProgress
from tunery.tuning.calls import Context, together
from tunery.tuning.learning import start_for
from tunery.tuning.reporting import (
    NO_TASKS,
    NetworkEstimate,
    Phase,
    Reporter,
    RunState,
    latency_target_summary,
    nothing_right_summary,
    stop_summary,
    too_little,
    unreached_summary,
)
from tunery.tuning.search.task_search import SearchRegistry, TaskSearch
from tunery.tuning.work import Work

_OPENING = 4  # candidates of a task's first batch, where there are many tasks
_DEPTH = 3  # batches in flight: one proposes and one builds while one measures
HEARTBEAT_S = 10.0
_POLL_S, _STOPPING_S = 0.2, 1.0
_WAITED = 0.1  # of a job's time may go into waiting for others to leave our cores
_NEAR = 1.03  # finals move a sum of tasks by a few per cent, to either side
_FINALS_AT_FIRST = 0.2  # of the budget may be kept for finals while tasks are untried
_BASELINES, _WORTH_A_SEARCH = 0.25, 0.1  # of the budget


class TuningJob:
    """Tunes the model of `work` within its budget, which counts from `began` (monotonic seconds; None: from now).
    `ending` says in which state a cancelled `run` leaves it. `deliver` is done with what was reached, before the job
    ends and on its account; it returns what of that went wrong. Of a job over several dialects this is a turn of one;
    `beside` are its tasks of others, and if it `goes_on` another turn follows."""

    def __init__(  # noqa: PLR0917 - its collaborators, each used throughout
        self,
        work: Work,
        status: JobStatus,
        device: DeviceDescription,
        stop: threading.Event,
        searches: SearchRegistry,
        began: float | None = None,
        ending: Callable[[], JobState] = lambda: JobState.STOPPED,
        deliver: Callable[[Account], Awaitable[str]] | None = None,
        beside: Sequence[TaskState] = (),
        goes_on: bool = False,
        reserve: Callable[[int], float] = lambda _: 0.0,
    ) -> None:
        self.status, self._deliver, self._beside, self._goes_on = status, deliver, beside, goes_on
        runtime, store, request, imported = work.runtime, work.store, work.request, work.model_read
        self._work, self._stop, self._ending = work, stop, ending
        settings = settings_for(request.trimming)
        provenance = Provenance(request.dialect, imported.compiler, device.fingerprint, settings.key)
        self._account = Account(store, status.job_id, runtime, load_prices(request.prices), runtime.power)
        start = None
        if request.pretrained:
            start = start_for(request.dialect, imported.target, imported.compiler, device)
        learning = searches.learning(imported.target.key, start)
        self._context = Context(
            status.job_id, runtime, store, provenance, request.seed, self._account, learning, request.trimming
        )
        self._shared = searches
        self.searches: list[TaskSearch] = []
        self._sums = NetworkEstimate((), (), request.latency_target_s)
        self._state = RunState()
        self._limited = self._current = ""
        self._learning: asyncio.Task[None] | None = None
        tunable = sum(task.tunable for task in imported.tasks)
        self._limits = plan(request.budget, request.effort, tunable)
        self._context.most_trials = self._limits.trials
        self._context.cut_off = self._cut_off
        began = time.monotonic() if began is None else began
        self._needs_s = time.monotonic() - began + reserve(tunable)

        def reserve_s() -> float:
            searches = self.searches
            return reserve(
                sum(search.task.tunable and search.state.untried for search in searches) if searches else tunable
            )

        self._allowance = RunBudget(self._limits, status.spend, self._account, runtime.granted, began, reserve_s)
        self._reporter = Reporter(self._context, self._allowance, self._sums, beside)

    @property
    def planned(self) -> int:
        return self._limits.trials or 0

    def money(self) -> float:
        return self._allowance.spend().money or 0.0

    def limit_money(self, most: float, why: str = "") -> None:
        self._allowance.limit_money(most, why)

    async def run(self, worked: Callable[[], Awaitable[None]]) -> JobStatus:
        self._allowance.correct(await self._account.reconcile(self.status.spend))  # before this run is charged
        self.searches = await self._shared.join(self._context, self._work.model_read.tasks)
        weights = [task.weight for task in self._work.model_read.tasks]
        self._sums = NetworkEstimate(self.searches, weights, self._sums.target_s)
        self._reporter = Reporter(self._context, self._allowance, self._sums, self._beside)
        # What another job paid for on a shared task counts too, and only the status knows of it.
        self._context.trials = max(self._context.trials, self.status.spend.trials)
        self._state = RunState(tried_before=self._context.trials)
        left_s, foreign = self._allowance.left_s(), self._work.runtime.foreign
        if left_s is not None and foreign is not None:
            foreign.foreign.limit_patience(_WAITED * left_s)
        beat = asyncio.create_task(self._keep_stored())
        try:
            await self._run_phases()
            undelivered, nothing_right = "", await self._nothing_right()
            if self._deliver is not None and not self._stop.is_set() and not nothing_right:
                undelivered = await self._deliver(self._account)
            await self._close([beat])
            state = JobState.RUNNING if self._goes_on else JobState.DONE
            message = nothing_right or self._about_end()
            if limited := self._limited or (self._allowance.limited_by() if self._state.unproven else ""):
                message = ". ".join(filter(None, (message.removesuffix(GOES_ON), limited)))
            if nothing_right:
                state = JobState.FAILED
            if self._stop.is_set():
                due = [search.state.had_finals for search, _ in self._sums.weighted if search.finals_cost_s()]
                state, message = JobState.STOPPED, stop_summary(due.count(False), due.count(True))
            said = [part for part in (message, self._context.lost_summary, self._reporter.waited, undelivered) if part]
            said += [MODEL_CHANGED] if self._work.model_read.has_changed() else []
            self.status = await self._reporter.status(self.status, state, ". ".join(said))
        except BaseException as error:
            with suppress(StoreError):  # the first error is the one to tell
                await self._close([beat])
            why = "" if isinstance(error, asyncio.CancelledError) else f"{type(error).__name__}: {error}"[:300]
            self.status = await self._reporter.status(self.status, self._ending(), why)
            raise
        finally:
            self._shared.leave(self._context)
            try:
                await worked()  # whoever follows the job hears nothing after its end
            finally:
                await self._work.store.write(partial(leave, status=self.status))
        return self.status

    async def _nothing_right(self) -> str:
        network, states = self._work.model_read.network, self._reporter.states()
        if not network.program or not nothing_right_summary(network.name, states, ""):
            return ""
        latest = await self._work.store.read(lambda store: store.failures(self.status.job_id, 1))
        return nothing_right_summary(network.name, states, latest[-1].detail if latest else "")

    async def _close(self, beside: list[asyncio.Task[None]]) -> None:
        ending = [*beside, *([self._learning] if self._learning is not None else [])]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        self._allowance.end()
        await self._account.close()

    async def _run_phases(self) -> None:
        if self._sums.met(proven=True):
            return
        await self._measure_baselines()
        target, goes_on = self._sums.target_s is not None, True
        while goes_on:
            before = self._context.trials
            await self._enter(Phase.SEARCH)
            began_s = self._allowance.elapsed_s()
            await self._search()
            self._reporter.searched(self._allowance.elapsed_s() - began_s)
            searched, due = self._context.trials != before, self._sums.finals_due()
            await self._hold_finals(within=(_NEAR if self._look_pays() else 1.0) if target and searched else None)
            # Another search follows where finals took less time than thought, or say that only lucky races met the
            # target; a round without news is the last.
            if target:
                goes_on = not self._sums.met(proven=True) and (searched or self._sums.finals_due() < due)
            else:
                left_s, least_s = self._allowance.left_s(), _WORTH_A_SEARCH * self._allowance.whole_s()
                goes_on = searched and left_s is not None and not self._stop.is_set() and left_s > least_s

    async def _measure_baselines(self) -> None:
        """Time the untuned kernels; while one is timed, the next are built. Naive loops are slow: those that take more
        than a share of the budget are timed with their task's finals."""
        await self._enter(Phase.BASELINE, f"0 of {len(self.searches)}")
        waiting, done = deque(self.searches), itertools.count(1)
        began_s, most_s = self._allowance.elapsed_s(), _BASELINES * self._allowance.whole_s()

        def too_long() -> bool:
            return self._allowance.elapsed_s() - began_s > most_s > 0.0

        async def some() -> None:
            while waiting and not self._cut_off() and not too_long():
                search = waiting.popleft()
                await self._in_time(self._guarded(search, search.measure_baseline(self._context)))
                self._progress(f"{next(done)} of {len(self.searches)}")

        await together([some() for _ in range(_DEPTH)])

    async def _hold_finals(self, *, within: float | None) -> None:
        """Time the best of each task once more, those first that the network spends most time in. What would not end
        within the budget is left out; but the quickest is held where nothing would be verified else. With `within` it
        ends as soon as the network is probably slower than that many times its target."""
        due = [each for each in self._sums.weighted if each[0].finals_cost_s()]
        if not due:
            return
        await self._enter(Phase.FINALS, f"0 of {len(due)}")
        for number, (search, _) in enumerate(sorted(due, key=lambda each: -each[1] * (each[0].state.best_s or 0.0)), 1):
            if self._stop.is_set() or (within and not self._sums.met(proven=False, within=within)):
                return
            spare_s = self._spare_s() + 0.02 * self._allowance.whole_s()
            fits = not self._out_of_time() and search.finals_cost_s() <= spare_s
            if fits and await self._in_time(self._guarded(search, search.finals(self._context))):
                self._state = self._state.prove(search.task.key, self._allowance.elapsed_s())
                self._progress(f"{number} of {len(due)}")
            else:
                self._state = self._state.leave_unproven(search.task.key)
        for search in self.searches:  # of those without a finalist nothing else would be known
            if search.state.baseline_s is None and not search.finals_cost_s() and not self._cut_off():
                await self._in_time(self._guarded(search, search.measure_baseline(self._context)))
        proven = any(search.state.proven_s for search in self.searches if search.task.tunable)
        if not proven and not self._cut_off():
            left_out = sorted((s for s, _ in due if s.task.key in self._state.unproven), key=TaskSearch.finals_cost_s)
            for search in left_out[:1]:
                await self._guarded(search, search.finals(self._context))
                self._state = self._state.prove(search.task.key, self._allowance.elapsed_s())
                self._progress(f"{len(due)} of {len(due)}")

    def _worth_finals(self) -> bool:
        """Finals choose among more candidates than the races' best, and may hold less than was promised. But a look
        costs."""
        if not self._sums.met(proven=False, within=_NEAR):
            return False
        return self._sums.met(proven=False) or self._look_pays()

    def _look_pays(self) -> bool:
        return self._state.look_pays(self._sums.finals_cost_s(), self._allowance.elapsed_s())

    def _about_end(self) -> str:
        if not self.searches:
            return NO_TASKS
        target_s = self._sums.target_s
        if target_s is not None:
            total_s = self._sums.total_s(lambda state: state.proven_s)
            return latency_target_summary(
                target_s, total_s, served=self._state.served, unproven=len(self._state.unproven)
            )
        untouched = all(s.state.best_s is None and not s.state.progress.exhausted for s in self.searches)
        if untouched and not self._context.trials:
            return too_little(self._needs_s)
        fresh = self._context.trials - self._state.tried_before
        predicted = self._context.learning.warm_start
        late = [search.state.had_finals for search in self.searches if search.task.key in self._state.unproven]
        return unreached_summary(
            self._reporter.states(), fresh, self._allowance.earlier_s,
            unproven=late.count(False), outdated=late.count(True), predicted=predicted,
        )  # fmt: skip

    async def _in_time(self, work: Coroutine[None, None, bool], *, late: bool = False) -> bool:
        """Do a task's step; when the budget is used up, what of it still waits for other jobs is given up.

        A `late` one is done all the same. Once the job is stopped a step has a moment to end, then it is given up.
        """
        doing, looks = asyncio.ensure_future(work), 0
        try:
            while not (await asyncio.wait([doing], timeout=_POLL_S))[0]:
                looks += self._stop.is_set()
                if looks * _POLL_S > _STOPPING_S:
                    return False
                if not late and self._out_of_time():
                    self._work.runtime.dispatch.withdraw(self.status.job_id)
            return await doing
        finally:
            doing.cancel()
            await asyncio.gather(doing, return_exceptions=True)

    async def _guarded(self, search: TaskSearch, work: Coroutine[None, None, None]) -> bool:
        """A task whose own program cannot be built or run is left out, the others go on."""
        try:
            await work
        except WithdrawnError:
            return False
        except (WorkError, EngineError) as error:
            search.leave_out(error)
        return True

    # -- search ---------------------------------------------------------------------------------------------------

    async def _search(self) -> None:
        chooser: Allocator | RoundRobin = self._reporter.allocator()
        if not self._context.trimming.allocate:
            chooser = RoundRobin([s.state.progress for s in self.searches])
        running: set[asyncio.Task[int]] = set()
        ending = False
        try:
            while not self._cut_off():
                # Before finals nothing new is begun; what was, ends.
                ending = ending or self._worth_finals()
                while len(running) < _DEPTH and not ending:
                    batch = self._next_batch(chooser, idle=not running)
                    if batch is None:
                        break
                    running.add(batch)
                if not running:
                    return
                pause_s = min(_POLL_S, max(self._spare_s(), 0.01))
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED, timeout=pause_s)
                self._take_in(done)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _next_batch(self, chooser: Allocator | RoundRobin, *, idle: bool) -> "asyncio.Task[int] | None":
        size = self._batch_size()
        standing = chooser.next(size) if size else None
        if standing is None and size and idle:
            # All it has are in other jobs' hands, which may get no turn before this one ends: it works beside them.
            alive = [s.state.progress for s in self.searches if not s.state.progress.exhausted]
            standing = min(alive, key=lambda s: s.in_flight, default=None)
        if standing is None:
            return None
        search = next(s for s in self.searches if s.state.progress is standing)
        size = min(size, self._step(standing)) if search.task.tunable else 1

        def in_flight(change: int) -> None:
            standing.in_flight += change
            standing.trials_in_flight += change * size
            self._context.trials_in_flight += change * size

        in_flight(1)
        batch = asyncio.create_task(search.batch(self._context, size))
        batch.add_done_callback(lambda _: in_flight(-1))  # one that is cancelled before it began has no `finally`
        return batch

    def _step(self, standing: TaskProgress) -> int:
        """A network is as slow as the tasks that nobody has looked at yet: the more tasks, the shorter the first
        look."""
        opening = max(_OPENING, self._limits.batch // 2 // len(self.searches))
        return min(self._limits.batch, max(opening, sum(standing.trials) + standing.trials_in_flight))

    def _take_in(self, done: set[asyncio.Task[int]]) -> None:
        errors = [task.exception() for task in done]  # all of them: asyncio prints what nobody asked for
        for error in filter(None, errors):
            raise error
        if done:
            if (learning := self._context.learning).due():
                self._learning = asyncio.create_task(learning.learn(self._context.job_id, self._context.charge))
            self._progress()

    def _batch_size(self) -> int:
        self._allowance.trials = self._context.trials
        left = self._allowance.trials_left(self._context.trials_in_flight)
        return self._limits.batch if left is None else min(left, self._limits.batch)

    # -- budget ---------------------------------------------------------------------------------------------------

    def _cut_off(self) -> bool:
        return self._stop.is_set() or self._out_of_time()

    def _out_of_time(self) -> bool:
        if self._spare_s() > 0:
            return False
        self._limited = self._limited or self._allowance.limited_by()
        return True

    def _spare_s(self) -> float:
        """A first look at a task wins more than finals of another: what nobody has looked at is the compiler's
        default."""
        if self._state.phase is Phase.FINALS:
            return self._allowance.spare_s(0.0)
        cost_s = self._sums.finals_cost_s()
        if any(search.state.untried for search in self.searches):
            return self._allowance.spare_s(cost_s, _FINALS_AT_FIRST)
        return self._allowance.spare_s(cost_s)

    # -- reporting ------------------------------------------------------------------------------------------------

    async def _keep_stored(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            if waited := self._reporter.waited:
                self._progress(self._current)  # nothing else may happen for long
            with suppress(StoreError):  # a store that is only busy answers the next one; no other ends the job here
                await self._account.settle()
                message = ". ".join(filter(None, (self._state.phase.value, self._context.lost_summary, waited)))
                self.status = await self._reporter.status(self.status, JobState.RUNNING, message)
                await self._work.store.write(lambda store: store.save_job(self.status))

    async def _enter(self, phase: Phase, current: str = "") -> None:
        if phase is not self._state.phase:
            told, job_id = {"phase": phase.value}, self.status.job_id
            await self._work.store.write(lambda store: store.events.append(PHASE, told, job_id))
        self._state = self._state.enter(phase, self._allowance.elapsed_s())
        self._progress(current)

    def _progress(self, current: str = "") -> None:
        self._current = current
        self._work.notify(self._reporter.progress(self._state.phase, current))


def leave(store: Store, status: JobStatus) -> None:
    store.save_job(status)
    if status.state is not JobState.RUNNING:  # else another turn follows
        store.release_job(status.job_id, status.state)
