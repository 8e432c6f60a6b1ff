"""A job over several dialects, which have turns."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tunery.accounting.meter import plan
from tunery.domain import Budget, JobState, JobStatus, Prospect, Spend, TaskState
from tunery.domain.request import Progress, Request
from tunery.tuning.work import Work

_FIRST = 0.5
"""What all first shares are of the budget: every dialect shows what its network takes, and how fast it gets faster."""
_LEAST = 0.2
"""What a later share is at least: each begins and ends with work that finds nothing."""
_SPENT = 0.98
"""A limit of which so much is used counts as used up."""


@dataclass(frozen=True, slots=True)
class DialectShare:
    """A dialect's turn: `budget` is what the job may have used in all when it ends."""

    dialect: str
    budget: Budget


class BudgetSplit:
    """Gives out the budget of a job over dialects, of which `tunable` has the number of tasks that can be tuned. A
    dialect whose tasks were measured has had its first share. One that ends before its share does, and tried nothing,
    has nothing more to try; one whose share was too short to try anything has another first one."""

    def __init__(self, budget: Budget, effort: str, tunable: Mapping[str, int], status: JobStatus) -> None:
        trials = sum(plan(budget, effort, count).trials or 0 for count in tunable.values())
        self.whole = Budget(trials=trials) if budget.unlimited else budget
        self._alive = list(tunable)
        self._waiting = [name for name in tunable if not any(task.measured for task in of_dialect(status, name))]
        self._outlook: dict[str, Sequence[Prospect]] = {}

    def next(self, status: JobStatus) -> DialectShare | None:
        """Return whose turn is next, None where the budget is used up or nobody has more to try."""
        left = 1.0 - _used(self.whole, status.spend)
        if not self._alive or left < 1.0 - _SPENT:
            return None
        if self._waiting:
            name, first = self._waiting[0], _FIRST / len(self._alive)
            share = left if len(self._alive) == 1 else min(first, left / len(self._waiting))
        else:
            name = min(self._alive, key=lambda one: self._expected_s(one, status))
            share = left if left < 2 * _LEAST or len(self._alive) == 1 else max(_LEAST, left / 2)
        return DialectShare(name, _after(self.whole, status.spend, share))

    def took(self, share: DialectShare, status: JobStatus, *, tried: bool) -> None:
        name = share.dialect
        self._outlook[name] = status.outlook
        waits = name in self._waiting and not tried
        self._waiting = [one for one in self._waiting if one != name]
        if not tried and _used(share.budget, status.spend) < _SPENT:
            self._alive.remove(name)
        elif waits:
            self._waiting.append(name)

    def _expected_s(self, name: str, status: JobStatus) -> float:
        left = 1.0 - _used(self.whole, status.spend)
        fits = [one for one in self._outlook.get(name, ()) if _used(self.whole, _spend_of(one)) <= left]
        return fits[-1].median_s if fits else network_s(of_dialect(status, name))


def of_dialect(status: JobStatus, name: str) -> list[TaskState]:
    return [task for task in status.tasks if task.dialect == name]


def network_s(tasks: Sequence[TaskState]) -> float:
    """Return what a network takes by its tasks; one that was not reached counts as the others do on the average."""
    known = [(task.weight, best_s) for task in tasks if (best_s := task.best_s or task.baseline_s) is not None]
    calls = sum(weight for weight, _ in known)
    if not calls:
        return float("inf")
    return sum(weight * best_s for weight, best_s in known) / calls * sum(task.weight for task in tasks)


def _used(whole: Budget, spend: Spend) -> float:
    used = ((spend.wall_s, whole.seconds), (spend.trials, whole.trials), (spend.money, whole.money),
            (spend.joules, whole.joules))  # fmt: skip
    return max((amount or 0.0) / limit for amount, limit in used if limit is not None)


def _after(whole: Budget, spend: Spend, share: float) -> Budget:
    """Return the limits when a share of the whole, one trial at least, has been used on top of what was spent."""

    def limit(most: float | None, spent: float | None) -> float | None:
        return None if most is None else min(most, (spent or 0.0) + share * most)

    trials = whole.trials and min(whole.trials, spend.trials + max(round(share * whole.trials), 1))
    return replace(
        whole, seconds=limit(whole.seconds, spend.wall_s), money=limit(whole.money, spend.money),
        joules=limit(whole.joules, spend.joules), trials=trials,
    )  # fmt: skip


def _spend_of(one: Prospect) -> Spend:
    return Spend(wall_s=one.seconds, trials=one.trials, joules=one.joules, money=one.money)


def left_out(refused: Mapping[str, str]) -> list[str]:
    return [f"the dialect {name} is left out: {why}" for name, why in refused.items()]


Turn = Callable[[Work, JobStatus, float], Awaitable[JobStatus]]
"""Tunes for one dialect, in a budget that began (monotonic seconds), in a job that goes on with another turn."""


async def tune_in_turns(work: Work, request: Request, status: JobStatus, began: float, turn: Turn) -> JobStatus:
    """Tune for each dialect in turns, until the budget is used up, the latency target is met, or a turn was stopped.
    The status that is returned is not stored yet: unless it was stopped, the job is still to be ended."""
    tunable = {one.request.dialect: sum(task.tunable for task in one.model_read.tasks) for one in work.each}
    split = BudgetSplit(request.budget, request.effort, tunable, status)
    by_name = {one.request.dialect: one for one in work.each}
    said: dict[str, str] = {}
    while (share := split.next(status)) is not None:
        one, trials = by_name[share.dialect], status.spend.trials

        def show(progress: Progress, name: str = share.dialect) -> None:
            whole, passed_s = split.whole, progress.earlier_s + progress.elapsed_s
            left_s = progress.remaining_s if whole.seconds is None else max(whole.seconds - passed_s, 0.0)
            current = f"{progress.current}, {name}".removeprefix(", ")
            work.notify(replace(progress, remaining_s=left_s, trials_planned=whole.trials, current=current))

        part = replace(one, request=replace(one.request, budget=share.budget), notify=show)
        status = await turn(part, status, began)
        if status.state is not JobState.RUNNING:
            return status
        split.took(share, status, tried=status.spend.trials > trials)
        said[share.dialect], began = status.message, time.monotonic()
        if request.latency_target_s and network_s(of_dialect(status, share.dialect)) <= request.latency_target_s:
            break
    messages = [f"{name}: {text}" for name, text in said.items() if text]
    return replace(status, message=". ".join([*messages, *left_out(work.refused)]))
