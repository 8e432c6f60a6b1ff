"""A job over several dialects, which have turns."""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from tunery.domain import JobState, JobStatus
from tunery.domain.request import Progress, Request
from tunery.service.budgets.split import BudgetSplit, network_s, of_dialect
from tunery.tuning.work import Work


def left_out(refused: Mapping[str, str]) -> list[str]:
    """Return a sentence about each dialect that takes no part."""
    return [f"the dialect {name} is left out: {why}" for name, why in refused.items()]


Turn = Callable[[Work, JobStatus, float], Awaitable[JobStatus]]
"""Tunes for one dialect, in a budget that began (monotonic seconds), in a job that goes on with another turn."""


async def tune_in_turns(work: Work, request: Request, status: JobStatus, began: float, turn: Turn) -> JobStatus:
    """Tune for each dialect in turns, until the budget is used up, the latency target is met, or a turn was stopped.

    The status that is returned is not stored yet: unless it was stopped, the job is still to be ended.
    """
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
