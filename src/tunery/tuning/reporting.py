"""What a job says of itself: its progress, its stored status, the sums over its tasks, and its last words."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from tunery.accounting.prices import Prices
from tunery.domain import JobState, JobStatus, Prospect, Spend, TaskState
from tunery.domain.request import GOES_ON, Progress
from tunery.store import Charge
from tunery.tuning.account import RunBudget, charged
from tunery.tuning.allocation.allocator import Allocator
from tunery.tuning.allocation.outlook import outlook, reaching
from tunery.tuning.calls import Context
from tunery.tuning.search.state import SearchState
from tunery.tuning.search.task_search import TaskSearch

_WAITED_S = 5.0  # for others that measure is worth a word
_LOOKS = 0.2  # of the time since the last finals may go into finals that only may find the target met


class Phase(StrEnum):
    """What a run is at; the words are those of its progress."""

    IMPORTING = "importing"
    BASELINE = "baseline"
    SEARCH = "search"
    FINALS = "finals"


_NEXT = {
    Phase.IMPORTING: {Phase.BASELINE},
    Phase.BASELINE: {Phase.SEARCH},
    Phase.SEARCH: {Phase.SEARCH, Phase.FINALS},
    Phase.FINALS: {Phase.SEARCH},
}


@dataclass(frozen=True, slots=True)
class RunState:
    """One run of a job. `unproven` are the keys of tasks whose finals did not fit into the budget, `finals_at_s` is
    when finals were last held, or the search began, in seconds of the run."""

    phase: Phase = Phase.IMPORTING
    tried_before: int = 0
    unproven: frozenset[str] = frozenset()
    finals_at_s: float = 0.0

    @property
    def served(self) -> bool:
        """Whether nothing was measured yet: of a run that has ended, because verified records met its target."""
        return self.phase is Phase.IMPORTING

    def enter(self, phase: Phase, at_s: float) -> "RunState":
        if phase not in _NEXT[self.phase]:
            raise ValueError(f"a run that is at {self.phase} cannot go on with {phase}")
        first = self.phase is Phase.BASELINE
        return replace(self, phase=phase, finals_at_s=at_s if first else self.finals_at_s)

    def prove(self, task_key: str, at_s: float) -> "RunState":
        return replace(self, unproven=self.unproven - {task_key}, finals_at_s=at_s)

    def leave_unproven(self, task_key: str) -> "RunState":
        return replace(self, unproven=self.unproven | {task_key})

    def look_pays(self, cost_s: float, at_s: float) -> bool:
        return 0.0 < cost_s <= _LOOKS * (at_s - self.finals_at_s)


NO_TASKS = "nothing was tuned: ONNX Runtime runs all of the network, or it has nothing to compute"


def too_little(needs_s: float) -> str:
    return (
        f"nothing was measured: this model needs about {needs_s:.0f} s to read and compile here; give a larger --budget"
    )


def nothing_right_summary(name: str, states: Sequence[TaskState], latest: str) -> str:
    failed = [task for task in states if task.best_s is None and (task.problem or task.tried)]
    if not failed:
        return ""
    ended = Counter[str]()
    for task in failed:
        ended.update({name: count for name, count in task.outcomes.items() if count})
    said = ", ".join(f"{count} {name}" for name, count in sorted(ended.items())) or failed[0].problem
    why = f": {latest}" if latest else ""
    return f"no parameters that were tried of {name} are right ({said}{why}); mend it, or its reference"


def latency_target_summary(target_s: float, latency_s: float | None, *, served: bool, unproven: int = 0) -> str:
    target = f"the latency target of {target_s * 1e3:.4g} ms"
    late = f", and no time was left to time the best of {unproven} tasks again" if unproven else ""
    if latency_s is None:
        return f"{target} was not met: not all tasks were verified{late}"
    if latency_s > target_s:
        return f"{target} was not met: {latency_s * 1e3:.4g} ms was reached{late}"
    how = "what is stored already meets it, nothing was tuned" if served else "met"
    return f"{target}: {how} ({1e3 * latency_s:.4g} ms predicted)"


def stop_summary(raced: int, outdated: int) -> str:
    said = ["stopped; the same command goes on where it stopped"]
    if raced:
        said.append(f"the best of {raced} tasks were not timed again yet: their short timings count")
    if outdated:
        said.append(f"{outdated} tasks were searched on since their best were timed again")
    return "; ".join(said)


def unreached_summary(
    states: Sequence[TaskState],
    fresh: int,
    earlier_s: float,
    *,
    unproven: int = 0,
    outdated: int = 0,
    predicted: bool = False,
) -> str:
    """`fresh` are the candidates that this run tried, `earlier_s` is the time that earlier runs of the job had used.
    The budget left no time for the finals of `unproven` tasks, which never had any, and of `outdated` ones, which were
    searched on since."""
    said = []
    if not fresh and earlier_s:
        used = f"earlier ones had used {earlier_s:.0f} s"
        said.append(f"nothing new was tried: a job's budget is for all its runs, and {used}")
    tunable = [state for state in states if state.tunable]
    if missed := sum(state.unreached for state in tunable):
        how = "will run as the cost model predicts" if predicted else "keep the compiler's slow default"
        said.append(f"{missed} of {len(tunable)} tasks were not reached and {how}")
    if unproven:
        said.append(f"no time was left to time the best of {unproven} of {len(states)} tasks again")
    if outdated:
        said.append(
            f"what was found since was not timed again in {outdated} of {len(states)} tasks: the best of before counts"
        )
    return f"{'; '.join(said)}{GOES_ON}" if said else ""


class NetworkEstimate:
    """Sums over `searches` by the `weights` that they have in one job; `target_s` is its latency target, if any."""

    def __init__(self, searches: Sequence[TaskSearch], weights: Sequence[int], target_s: float | None) -> None:
        self.weighted = tuple(zip(searches, weights, strict=True))
        self.target_s = target_s

    def total_s(self, latency_s: Callable[[SearchState], float | None]) -> float | None:
        """A task that gets no more trials counts with what it has reached."""
        total = 0.0
        for search, weight in self.weighted:
            value = latency_s(search.state)
            if value is None:
                return None
            total += weight * value
        return total

    def met(self, *, proven: bool, within: float = 1.0) -> bool:
        if self.target_s is None or (not proven and any(search.state.untried for search, _ in self.weighted)):
            return False  # there would be no finals to hold
        latency_s = self.total_s((lambda state: state.proven_s) if proven else (lambda state: state.best_s))
        return latency_s is not None and latency_s <= within * self.target_s

    def finals_due(self) -> int:
        return sum(search.finals_cost_s() > 0.0 for search, _ in self.weighted)

    def finals_cost_s(self) -> float:
        return sum(search.finals_cost_s() for search, _ in self.weighted)

    def held_core_s(self) -> float:
        return sum(cost.held_core_s for search, _ in self.weighted for cost in search.state.progress.costs)

    def outlook(self, cores: int, prices: Prices, seed: int, pace: float) -> tuple[Prospect, ...]:
        known = [(search, weight, search.state.best_s) for search, weight in self.weighted]
        if any(best_s is None for _, _, best_s in known):
            return ()
        fixed_s = sum(weight * (best_s or 0.0) for search, weight, best_s in known if not search.task.tunable)
        standings = [
            replace(reaching(search.state.progress, best_s), weight=weight)
            for search, weight, best_s in known
            if search.task.tunable and best_s is not None
        ]
        return outlook(standings, fixed_s, cores, prices, seed, pace)


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
        self._waited_before_s = context.runtime.device_waits.seconds

    def searched(self, seconds: float) -> None:
        self._searched_s += seconds

    def allocator(self) -> Allocator:
        allowance = self._allowance
        return Allocator([s.state.progress for s in self._searches], allowance.unit, allowance.prices)

    def progress(self, phase: Phase, current: str = "") -> Progress:
        allowance, trials = self._allowance, self._context.trials
        allowance.trials = trials
        return Progress(
            self._context.job_id,
            phase.value,
            allowance.elapsed_s(),
            self._left_s(phase),
            trials,
            allowance.limits.trials,
            self._sums.total_s(lambda state: state.best_s),
            self._sums.total_s(lambda state: state.baseline_s),
            current,
            spend=allowance.spend(),
            earlier_s=allowance.earlier_s,
            reserve_s=min(allowance.reserve_s, max(allowance.until_end_s() or 0.0, 0.0)),
            lost=self._context.lost_summary,
            waited=self.waited,
        )

    @property
    def waited(self) -> str:
        runtime = self._context.runtime
        seconds = runtime.device_waits.seconds - self._waited_before_s
        where = f"on host {runtime.spec.on}" if runtime.spec.on else "here"
        return f"waited {seconds:.0f} s for another tunery that measures {where}" if seconds >= _WAITED_S else ""

    def _left_s(self, phase: Phase) -> float | None:
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
        size, allocate = self._allowance.limits.batch, self._context.trimming.allocate
        preempted = self.allocator().preempted(size) if allocate else set[str]()
        states = [search.report(self._context.job_id) for search in self._searches]
        return tuple(replace(state, preempted=state.task_key in preempted) for state in states)
