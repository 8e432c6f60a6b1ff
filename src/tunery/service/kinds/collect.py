"""Measurements of many tasks, to train cost models on."""

from dataclasses import dataclass

from tunery._errors import UsageError
from tunery.domain.request import Options, Request
from tunery.reports.data import collect_data
from tunery.service.kinds._base import Answer, JobKind
from tunery.tuning.collect import CollectPlan, collect
from tunery.tuning.work import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectOptions(Options):
    """Which further `networks` are collected from, and how much; `hold_out` and `kinds` as in `CollectPlan`."""

    networks: tuple[str, ...] = ()
    tasks: int = 300
    per_task: int = 100
    hold_out: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()

    def check(self, request: Request) -> None:
        if min(self.tasks, self.per_task) < 1:
            raise UsageError(f"tasks={self.tasks} and per_task={self.per_task} must be 1 or more")
        if request.budget.money is not None or request.budget.joules is not None:
            raise UsageError("a collection is limited by time or trials only; write for example 30min")

    def plan(self, request: Request) -> CollectPlan:
        return CollectPlan((request.model, *self.networks), self.tasks, self.per_task, self.hold_out, self.kinds)


async def _collect(work: Work, options: CollectOptions) -> Answer:
    assert work.account is not None, "what is measured is charged"
    return collect_data(
        await collect(
            work.runtime, work.store, work.request, work.account, work.job_id, options.plan(work.request), work.notify
        )
    )


COLLECT = JobKind(
    name="collect", options=CollectOptions, check=CollectOptions.check, run=_collect, has_budget=True,
    measures=lambda _: True, refused="do that on its machine",
)  # fmt: skip
