"""The kinds of jobs that answer: what is known of a network, its tasks, and what was measured."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from tunery._errors import UsageError
from tunery.delivery.comparing.bench import bench, check_one_shape
from tunery.delivery.comparing.compare import check_rivals
from tunery.delivery.measure import measure
from tunery.delivery.query import query
from tunery.domain.request import GivenInputs, Option, Options, QueryOptions, Request, asked
from tunery.reports.data import bench_data, collect_data, plain, query_data
from tunery.runtime.calibrate import calibrate_target
from tunery.service.kinds._base import LONGEST_S, Answer, JobKind, say
from tunery.tuning.collect import CollectPlan, collect
from tunery.tuning.work import Work

_MOST_FEW_SHOT = 64


def check_few_shot(options: QueryOptions, _: Request) -> None:
    if not 0 <= options.few_shot <= _MOST_FEW_SHOT:
        raise UsageError(f"few_shot={options.few_shot} is not between 0 and {_MOST_FEW_SHOT}")
    if options.few_shot_seconds is not None and not 0 < options.few_shot_seconds <= LONGEST_S:
        raise UsageError(
            f"few_shot_seconds={options.few_shot_seconds:g} is no time to measure for; write for example 20"
        )


async def _query(work: Work, options: QueryOptions) -> Answer:
    return query_data(await query(work, options.policy))


QUERY = JobKind(
    name="query", options=QueryOptions, check=check_few_shot, run=_query, measures=lambda options: options.few_shot > 0,
    asked=asked(QueryOptions),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions(Options):
    """Which rivals are timed, for how many seconds each, and the file to time ("": compile the best records)."""

    against: Annotated[tuple[str, ...], Option("The rivals.")] = ("onnxruntime",)
    seconds: Annotated[float, Option("For each rival.", least=0, most=1e4)] = 5.0
    inputs: GivenInputs = ""
    compiled: str = ""

    def check(self, request: Request) -> None:
        check_rivals(self.against)
        if not 0 < self.seconds <= LONGEST_S:
            raise UsageError(f"{self.seconds:g} s is no time to measure a network for; write for example 5")
        check_one_shape(request)


async def _bench(work: Work, options: BenchOptions) -> Answer:
    compiled = Path(options.compiled) if options.compiled else None
    return bench_data(await bench(work, options.against, options.seconds, compiled, inputs=options.inputs))


BENCH = JobKind(name="bench", options=BenchOptions, check=BenchOptions.check, run=_bench, asked=asked(BenchOptions))


async def _calibrate(work: Work, _: Options) -> Answer:
    answer: Answer = plain(
        await calibrate_target(work.runtime, work.store, work.request, work.job_id, partial(say, work))
    )
    return answer


CALIBRATE = JobKind(
    name="calibrate", options=Options, run=_calibrate, measures=lambda _: True, refused="do that on its machine"
)


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


async def _extract(work: Work, _: Options) -> Answer:
    found = await work.model()
    return {
        "network": found.network.name,
        "target": str(found.target),
        "tasks": [
            {
                "name": task.workload.name, "workload": task.workload.key, "operator": task.workload.operator,
                "weight": task.weight, "tunable": task.tunable, "task": task.key, "kind": task.workload.kind,
                "flop": plain(task.workload.flop),
            }
            for task in found.tasks
        ],
        "elsewhere": dict(found.elsewhere),
        "batch_of_one": list(found.network.batch_of_one),
        "bindings": max(len(found.parts), 1),
    }  # fmt: skip


EXTRACT = JobKind(name="extract", options=Options, run=_extract)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureOptions(Options):
    """Which task of the model is measured ("": the only one), and the body of the candidate ("": its default)."""

    task: str = ""
    candidate: str = ""

    def check(self, request: Request) -> None:
        check_one_shape(request)


async def _measure(work: Work, options: MeasureOptions) -> Answer:
    answer: Answer = plain(await measure(work, options.task, options.candidate))
    return answer


MEASURE = JobKind(
    name="measure",
    options=MeasureOptions,
    check=MeasureOptions.check,
    run=_measure,
    measures=lambda _: True,
    refused="use POST /v1/measurements",
)
