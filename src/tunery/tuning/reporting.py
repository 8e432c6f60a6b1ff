"""What a job says of itself: how far it is, its stored status, and how its tasks stand."""

from collections.abc import Sequence
from dataclasses import replace

from tunery.domain import JobState, JobStatus, Spend, TaskState
from tunery.domain.request import Progress
from tunery.store import Charge
from tunery.tuning.account import charged
from tunery.tuning.allocation.allocator import Allocator
from tunery.tuning.allowance import RunBudget
from tunery.tuning.context import Context
from tunery.tuning.estimate import NetworkEstimate
from tunery.tuning.run_state import Phase


class Reporter:
    """Reads a running job's parts; `beside` are its tasks of other dialects, which stay as they are."""

    def __init__(
        self,
        context: Context,
        allowance: RunBudget,
        sums: NetworkEstimate,
        beside: Sequence[TaskState] = (),
    ) -> None:
        self._context, self._beside = context, beside
        self._allowance, self._sums = allowance, sums
        self._searches = [search for search, _ in sums.weighted]
        self._searched_s, self._held_before_s = 0.0, sums.held_core_s()

    def searched(self, seconds: float) -> None:
        """Take in how long the job has searched."""
        self._searched_s += seconds

    def allocator(self) -> Allocator:
        """Return what ranks the job's tasks by gain per cost."""
        allowance = self._allowance
        return Allocator([s.state.progress for s in self._searches], allowance.unit, allowance.prices)

    def progress(self, phase: Phase, current: str = "") -> Progress:
        """Return how far the job is; `current` says it of the phase."""
        allowance, trials = self._allowance, self._context.trials
        allowance.trials = trials
        return Progress(
            self._context.job_id,
            phase.value,
            allowance.elapsed_s(),
            self._left_s(phase),
            trials,
            allowance.limits.trials,
            self._sums.total_s("best_s"),
            self._sums.total_s("baseline_s"),
            current,
            spend=allowance.spend(),
            earlier_s=allowance.earlier_s,
            reserve_s=allowance.reserve_s,
        )

    def _left_s(self, phase: Phase) -> float | None:
        """Return how long the job will probably go on: to the end of its budget, or of the finals."""
        finals_s, trials, limits = self._sums.finals_cost_s(), self._context.trials, self._allowance.limits
        left_s = self._allowance.left_s()
        if (until_end_s := self._allowance.until_end_s()) is not None and left_s is not None:
            left_s = min(until_end_s, left_s + self._allowance.reserve_s)
        if phase is Phase.FINALS:
            return finals_s if left_s is None else min(left_s, finals_s)
        if left_s is None and limits.trials and trials:
            return max(limits.trials - trials, 0) * self._allowance.elapsed_s() / trials + finals_s
        return left_s

    async def status(self, status: JobStatus, state: JobState, message: str) -> JobStatus:
        """Return a job's status as it is now, in `state` and with `message`; what was spent is the ledger's word."""
        context, cores = self._context, self._context.runtime.granted
        rows = await context.store.read(lambda store: store.ledger(context.job_id))
        self._allowance.trials = context.trials
        outlook = self._sums.outlook(cores, self._allowance.prices, context.seed, self._pace())
        return replace(
            status, state=state, message=message, problem="", spend=self._spend(rows), outlook=outlook,
            tasks=(*self.states(), *self._beside), remaining=self._allowance.remaining(),
        )  # fmt: skip

    def _spend(self, rows: Sequence[Charge]) -> Spend:
        spend = self._allowance.spend()
        found = replace(charged(spend, rows), cores=self._context.runtime.granted)
        return found if self._allowance.ended else replace(found, money=spend.money)  # what is idle is charged last

    def _pace(self) -> float:
        """Return how many core-seconds of the machine this run's search took for each that its batches held."""
        held_s = self._sums.held_core_s() - self._held_before_s
        return max(self._searched_s * self._context.runtime.granted / held_s, 1.0) if held_s > 0 else 1.0

    def states(self) -> tuple[TaskState, ...]:
        """Return how the job's tasks stand, with those that would get no trial now marked as preempted."""
        size, allocate = self._allowance.limits.batch, self._context.trimming.allocate
        preempted = self.allocator().preempted(size) if allocate else set[str]()
        states = [search.report(self._context.job_id) for search in self._searches]
        return tuple(replace(state, preempted=state.task_key in preempted) for state in states)
