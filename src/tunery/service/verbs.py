"""The kinds of jobs: what each is given; and what those beside tuning do, and answer as plain data."""

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from tunery._errors import UsageError, misfit
from tunery.delivery.comparing.bench import bench, check_one_shape
from tunery.delivery.comparing.compare import check_rivals
from tunery.delivery.compile import check_place
from tunery.delivery.measure import measure
from tunery.delivery.query import query
from tunery.delivery.shaping.compiling import compile_request
from tunery.delivery.work import Work
from tunery.domain.request import FillPolicy, Progress, Request
from tunery.reports.data import bench_data, collect_data, compile_data, described, plain, query_data
from tunery.runtime.calibrate import calibrate_target
from tunery.tuning.collect import CollectPlan, collect

_MOST_FEW_SHOT, _LONGEST_S = 64, 1e6

Answer = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryOptions:
    """Whether operators without a record are predicted, or measured first."""

    predict: bool = False
    few_shot: int = 0
    few_shot_seconds: float | None = None

    def policy(self) -> FillPolicy | None:
        """Return how what no record answers is filled."""
        seconds = math.inf if self.few_shot_seconds is None else self.few_shot_seconds
        return FillPolicy(self.few_shot, seconds) if self.predict or self.few_shot else None

    def check(self, _: Request) -> None:
        """Raise UsageError where a number is out of its range."""
        if not 0 <= self.few_shot <= _MOST_FEW_SHOT:
            raise UsageError(f"few_shot={self.few_shot} is not between 0 and {_MOST_FEW_SHOT}")
        if self.few_shot_seconds is not None and not 0 < self.few_shot_seconds <= _LONGEST_S:
            raise UsageError(
                f"few_shot_seconds={self.few_shot_seconds:g} is no time to measure for; write for example 20"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileOptions(QueryOptions):
    """Where the compiled network goes.

    With `force` the file may replace one of another kind. It is signed with the private key in `sign` ("": not at all).
    With `any_shape` ONNX Runtime runs shapes that it was not compiled for.
    """

    output: str
    predict: bool = True
    force: bool = False
    sign: str = ""
    any_shape: bool = False

    def check(self, request: Request) -> None:
        """Raise UsageError where the file may not be written."""
        QueryOptions.check(self, request)
        check_place(Path(self.output), request, force=self.force, sign=Path(self.sign) if self.sign else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions(CompileOptions):
    """Where the network is compiled to once it is tuned ("": nowhere)."""

    output: str = ""

    def check(self, request: Request) -> None:
        """Raise UsageError where the file may not be written."""
        if self.output:
            CompileOptions.check(self, request)


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """Which rivals are timed, for how many seconds each, and the file to time ("": compile the best records)."""

    against: tuple[str, ...] = ("onnxruntime",)
    seconds: float = 5.0
    compiled: str = ""

    def check(self, request: Request) -> None:
        """Raise UsageError where a rival is unknown, the time is not positive, or there are several shapes."""
        check_rivals(self.against)
        if not 0 < self.seconds <= _LONGEST_S:
            raise UsageError(f"{self.seconds:g} s is no time to measure a network for; write for example 5")
        check_one_shape(request)


@dataclass(frozen=True, slots=True)
class CollectOptions:
    """Which further `networks` are collected from, and how much; `hold_out` and `kinds` as in `CollectPlan`."""

    networks: tuple[str, ...] = ()
    tasks: int = 300
    per_task: int = 100
    hold_out: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()

    def check(self, request: Request) -> None:
        """Raise UsageError where a number is not positive, or the budget is of another kind than time or trials."""
        if min(self.tasks, self.per_task) < 1:
            raise UsageError(f"tasks={self.tasks} and per_task={self.per_task} must be 1 or more")
        if request.budget.money is not None or request.budget.joules is not None:
            raise UsageError("a collection is limited by time or trials only; write for example 30min")

    def plan(self, request: Request) -> CollectPlan:
        """Return what is collected for a request."""
        return CollectPlan((request.model, *self.networks), self.tasks, self.per_task, self.hold_out, self.kinds)


@dataclass(frozen=True, slots=True)
class MeasureOptions:
    """Which task of the model is measured ("": the only one), and the body of the candidate ("": its default)."""

    task: str = ""
    candidate: str = ""

    def check(self, request: Request) -> None:
        """Raise UsageError where there are several shapes."""
        check_one_shape(request)


@dataclass(frozen=True, slots=True)
class NoOptions:
    """A job that needs nothing beside its request."""

    def check(self, _: Request) -> None:
        """Accept."""


Options = TuneOptions | CompileOptions | QueryOptions | BenchOptions | CollectOptions | MeasureOptions | NoOptions


async def compile_network(work: Work, options: CompileOptions) -> Answer:
    """Compile a network to the file that the options name; return the report with what the network is."""
    report, network = await compile_request(
        work, Path(options.output), options.policy(), lambda text: _say(work, text), force=options.force,
        sign=Path(options.sign) if options.sign else None, any_shape=options.any_shape,
    )  # fmt: skip
    return {**compile_data(report), "described": described(network)}


async def _bench(work: Work, options: BenchOptions) -> Answer:
    compiled = Path(options.compiled) if options.compiled else None
    return bench_data(await bench(work, options.against, options.seconds, compiled))


async def _query(work: Work, options: QueryOptions) -> Answer:
    return query_data(await query(work, options.policy()))


async def _extract(work: Work, _: NoOptions) -> Answer:
    found = await work.model()
    tasks = [
        {
            "task": t.key, "name": t.workload.name, "kind": t.workload.kind, "weight": t.weight,
            "workload": t.workload.key, "operator": t.workload.operator,
        }
        for t in found.tasks
    ]  # fmt: skip
    batch_of_one = list(found.network.batch_of_one)
    return {"network": found.network.name, "target": str(found.target), "tasks": tasks, "batch_of_one": batch_of_one}


async def _calibrate(work: Work, _: NoOptions) -> Answer:
    found = await calibrate_target(work.runtime, work.store, work.request, work.job_id, lambda text: _say(work, text))
    answer: Answer = plain(found)
    return answer


async def _collect(work: Work, options: CollectOptions) -> Answer:
    assert work.account is not None, "what is measured is charged"
    return collect_data(
        await collect(
            work.runtime, work.store, work.request, work.account, work.job_id, options.plan(work.request), work.notify
        )
    )


async def _measure(work: Work, options: MeasureOptions) -> Answer:
    answer: Answer = plain(await measure(work, options.task, options.candidate))
    return answer


def _say(work: Work, text: str) -> None:
    work.notify(Progress(work.job_id, text, 0.0, None, 0, None, None, None))


@dataclass(frozen=True, slots=True)
class Verb:
    """One kind of job: the options it takes, and the coroutine that does it."""

    options: type[Any]
    run: Callable[[Work, Any], Awaitable[Answer]]


TUNE = "tune"
VERBS: Mapping[str, Verb] = {
    "compile": Verb(CompileOptions, compile_network),
    "bench": Verb(BenchOptions, _bench),
    "query": Verb(QueryOptions, _query),
    "extract": Verb(NoOptions, _extract),
    "calibrate": Verb(NoOptions, _calibrate),
    "collect": Verb(CollectOptions, _collect),
    "measure": Verb(MeasureOptions, _measure),
}


def options_of(request: Request) -> Options:
    """Return the options of a request, checked: every key known, every value of its type.

    Raises:
        UsageError: the kind is unknown, or an option is not one of its.
    """
    kind, data = request.kind, request.options
    if kind != TUNE and kind not in VERBS:
        raise UsageError(f"there is no job of kind {kind!r}; use {', '.join([TUNE, *VERBS])}")
    wanted = TuneOptions if kind == TUNE else VERBS[kind].options
    known = {field.name for field in fields(wanted)}
    if unknown := sorted(data.keys() - known):
        takes = f"takes {', '.join(sorted(known))}" if known else "takes no options"
        raise UsageError(f"a job of kind {kind} has no option {unknown[0]!r}; it {takes}")
    try:
        options: Options = TypeAdapter(wanted).validate_python(dict(data))
    except ValidationError as error:
        raise UsageError(f"the option {misfit(error.errors())}") from error
    options.check(request)
    return options
