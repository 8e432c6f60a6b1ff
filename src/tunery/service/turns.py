"""A job over several dialects: its parts, one for each, and their turns."""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace

from tunery._errors import UsageError
from tunery.dialects import check_dialect
from tunery.domain import JobState, JobStatus
from tunery.domain.request import Progress, Request
from tunery.runtime.importing import ImportedModel
from tunery.runtime.runtime import Runtime
from tunery.service.budget_split import BudgetSplit, network_s, of_dialect
from tunery.tuning.search.registry import SearchRegistry

_KINDS = ("tune", "compile")


@dataclass(frozen=True)
class Side:
    """What a job has of one dialect: the request for that alone, its workers and searches, and the model's tasks."""

    request: Request
    runtime: Runtime
    searches: SearchRegistry
    imported: ImportedModel


@dataclass(frozen=True)
class Sides:
    """A job's dialects that take its model, the first one's first; `refused` has a sentence about each other one."""

    found: tuple[Side, ...]
    refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def first(self) -> Side:
        """The first of them."""
        return self.found[0]

    @property
    def blobs(self) -> tuple[tuple[Runtime, str], ...]:
        """The prepared files that are held for the job, and by whom."""
        return tuple((side.runtime, blob) for side in self.found for blob in side.imported.blobs)


def check_dialects(request: Request, kind: str) -> None:
    """Check that a job of a kind may have the request's dialects.

    Raises:
        UsageError: it may not, or there is no such dialect.
    """
    for name in filter(None, request.dialects):
        check_dialect(name)
    if len(request.dialects) == 1:
        return
    if len(set(request.dialects)) < len(request.dialects) or not all(request.dialects):
        raise UsageError(f"the dialects {request.dialect!r:.60} are not names joined by commas, each of them once")
    if kind not in _KINDS:
        raise UsageError(f"a job of the kind {kind} is of one dialect; name one of {', '.join(request.dialects)}")
    if request.more_shapes:
        raise UsageError("a file is for several shapes, or the fastest of several dialects; name one --dialect")
    if request.on:
        raise UsageError(f"several dialects are compared on this machine; name one --dialect for host {request.on}")


def left_out(refused: Mapping[str, str]) -> list[str]:
    """Return a sentence about each dialect that takes no part."""
    return [f"the dialect {name} is left out: {why}" for name, why in refused.items()]


Turn = Callable[[Side, Request, JobStatus, float, Callable[[Progress], None]], Awaitable[JobStatus]]
"""Tunes for one dialect, in a budget that began (monotonic seconds), in a job that goes on with another turn."""


async def tune_in_turns(  # noqa: PLR0917 - what a job is made of
    sides: Sides, request: Request, status: JobStatus, began: float, notify: Callable[[Progress], None],
    turn: Turn,
) -> JobStatus:  # fmt: skip
    """Tune for each dialect in turns, until the budget is used up, the latency target is met, or a turn was stopped.

    The status that is returned is not stored yet: unless it was stopped, the job is still to be ended.
    """
    tunable = {side.request.dialect: sum(task.tunable for task in side.imported.tasks) for side in sides.found}
    split = BudgetSplit(request.budget, request.effort, tunable, status)
    by_name = {side.request.dialect: side for side in sides.found}
    said: dict[str, str] = {}
    while (share := split.next(status)) is not None:
        side, trials = by_name[share.dialect], status.spend.trials

        def show(progress: Progress, name: str = share.dialect) -> None:
            whole, passed_s = split.whole, progress.earlier_s + progress.elapsed_s
            left_s = progress.remaining_s if whole.seconds is None else max(whole.seconds - passed_s, 0.0)
            current = f"{progress.current}, {name}".removeprefix(", ")
            notify(replace(progress, remaining_s=left_s, trials_planned=whole.trials, current=current))

        status = await turn(side, replace(side.request, budget=share.budget), status, began, show)
        if status.state is not JobState.RUNNING:
            return status
        split.took(share, status, tried=status.spend.trials > trials)
        said[share.dialect], began = status.message, time.monotonic()
        if request.latency_target_s and network_s(of_dialect(status, share.dialect)) <= request.latency_target_s:
            break
    messages = [f"{name}: {text}" for name, text in said.items() if text]
    return replace(status, message=". ".join([*messages, *left_out(sides.refused)]))
