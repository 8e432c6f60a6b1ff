"""What a user can do on this machine: tune, extract, compile, bench, query, calibrate.

A `Session` does any number of these over one job runner: one set of workers, each model read and lowered once. The
functions of the same names open a session for one call.
"""

import asyncio
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import wraps
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from tunery._errors import UsageError
from tunery._outputs import NETWORK, publish
from tunery.delivery.comparing.bench import bench as bench_work
from tunery.delivery.comparing.compare import check_rivals
from tunery.delivery.compile import check_place, inputs_of
from tunery.delivery.files.combining import combine
from tunery.delivery.query import Answer
from tunery.delivery.query import query as query_work
from tunery.delivery.several import compile_request
from tunery.dialects import get_dialect
from tunery.domain import Calibration, Network, Task, digest
from tunery.domain.request import (
    FROM_RECORDS,
    BenchReport,
    CompileOptions,
    CompileReport,
    FillPolicy,
    Progress,
    Request,
    TargetReport,
    TuneReport,
)
from tunery.reports.data import tune_report
from tunery.runtime.calibrate import calibrate_target
from tunery.runtime.importing import ImportedModel
from tunery.service.checks import check_limits
from tunery.service.job import Job
from tunery.service.kinds import KINDS, options_of, resumable
from tunery.service.kinds.answers import CollectOptions
from tunery.service.running import run_here
from tunery.service.runtimes import Runtimes
from tunery.store import open_store
from tunery.tuning.collect import CollectReport
from tunery.tuning.collect import collect as collect_work
from tunery.tuning.work import Work

P = ParamSpec("P")
R = TypeVar("R")

__all__ = [
    "Answer", "Session", "bench", "calibrate_device", "collect", "compile_model", "extract", "query", "tune",
    "tune_tasks",
]  # fmt: skip


def _ignore(_: object) -> None:
    """Show nothing."""


class Session:
    """Jobs over one store and one set of workers, which end with the block; use it as a context manager.

    What a model's file holds is read once: a later verb of the same request works on the same bytes. A session that
    only delivers need not `keep` what it stores, and then works on a read-only store too (`open_store`).

    Example:
        with Session() as session:
            session.tune(request)
            session.compile(request, Path("model.tunery"), CompileOptions(predict=True))

    Raises:
        StoreError: the store cannot be opened.
    """

    def __init__(self, store: str = "", *, create: bool = True, keep: bool = True) -> None:
        self._url, self._create, self._keep = store, create, keep
        self._stack = ExitStack()
        self._models: dict[tuple[object, ...], ImportedModel] = {}
        self._at_work: asyncio.Task[Any] | None = None
        self._cancelled = False

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            store = stack.enter_context(open_store(self._url, create=self._create, keep=self._keep))
            self._loop = stack.enter_context(asyncio.Runner())
            self._runtimes = Runtimes(store)
            stack.callback(lambda: self._loop.run(self._runtimes.__aexit__(None, None, None)))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def tune(
        self,
        request: Request,
        on_progress: Callable[[Progress], None] = _ignore,
        stop: threading.Event | None = None,
        job_id: str = "",
        began: float | None = None,
        *,
        known: Callable[[Request], ImportedModel | None] | None = None,
    ) -> TuneReport:
        """Tune a model: measured and verified records go into the store; an unfinished equal job is resumed.

        Of several dialects each gets its share of the one budget: most goes where the faster network is expected.
        `on_progress` is called from this thread after every batch; setting `stop` ends the job cleanly and resumably.
        `job_id` names the job to go on with, which `request` must be the request of. The budget counts from `began`
        (monotonic seconds; None: from now).
        """
        check_limits(request)
        if not resumable(request.kind):
            raise UsageError(f"a job of kind {request.kind} answers, and has nothing to go on with")
        job = Job(
            request, self._runtimes, notify=on_progress, known=known or self._known, stop=stop or threading.Event(),
            job_id=job_id, began=time.monotonic() if began is None else began,
        )  # fmt: skip
        report = tune_report(self._done(job), job.beginning, job.store.place, resumed=job.resumed)
        tasks = tuple(task for work in job.works for task in work.model_read.tasks)
        return replace(
            report, network=job.work.model_read.network, tasks=tasks, compiled=job.compiled,
            undelivered=job.undelivered,
        )  # fmt: skip

    def tune_tasks(self, request: Request, tasks: Sequence[Task]) -> TuneReport:
        """Tune tasks that were extracted before, of one target; the request's model is only a name."""
        if len({task.target.key for task in tasks}) != 1:
            raise UsageError("tune_tasks needs tasks of one target; group them by `task.target` first")
        network = Network(request.model, request.model, digest(*sorted(t.key for t in tasks)), "", (), (), 0)
        imported = ImportedModel(network, tasks[0].target, get_dialect(request.dialect).compiler, tuple(tasks))
        return self.tune(request, known=lambda _: imported)

    def extract(self, request: Request) -> ImportedModel:
        """Return the model's network, target and tasks."""
        return self._do("extract", request, Work.model)

    def query(self, request: Request, policy: FillPolicy | None = None) -> Answer:
        """Return the best verified records for a model on this device; with a `policy`, predictions beside them."""
        measures = policy is not None and policy.few_shot > 0
        return self._do("query", request, lambda work: query_work(work, policy), charged=measures)

    def compile(
        self,
        request: Request,
        output: Path,
        options: CompileOptions = FROM_RECORDS,
        say: Callable[[str], None] = _ignore,
    ) -> tuple[CompileReport, Network]:
        """Build the model with the best verified records to one loadable file, checked against ONNX Runtime.

        What has no record uses the compiler's default; where `options` predict, such operators, and those of which only
        that default was measured, use what the cost model expects to be fastest, verified but not measured. `say` is
        called with what goes on. A file of several targets holds all of them (`combine`); where ONNX Runtime runs the
        network for the request's target, it does for all.
        """
        if options.targets and len(request.dialects) > 1:
            raise UsageError("a file is for several targets, or the fastest of several dialects; name one --dialect")
        check_place(output, request, options)

        def compiled(one: Request, place: Path, options: CompileOptions) -> tuple[CompileReport, Network]:
            alone = replace(options, targets=())
            return self._do(
                "compile", one, lambda work: compile_request(work, place, alone, say), charged=options.few_shot > 0
            )

        if not options.targets:
            return compiled(request, output, options)
        self._check_targets(request, [request.target, *options.targets])
        with tempfile.TemporaryDirectory(prefix="tunery-", dir=output.absolute().parent) as scratch:
            report, network = compiled(request, Path(scratch, "0.tunery"), options)
            others = _with_kernels(request, report)
            found, further = {request.target: Path(report.path)}, list[TargetReport]()
            for number, target in enumerate(options.targets if others else (), 1):
                say(f"compiling for {target}")
                place = Path(scratch, f"{number}.tunery")
                other, _ = compiled(replace(others or request, target=target), place, options.for_further_target())
                kept = not (other.no_kernels or any(shape.by_onnxruntime for shape in other.shapes))
                further.append(TargetReport(target, kept, other.max_abs_error, other.latency_s, other.onnxruntime_s))
                if kept:
                    found[target] = Path(other.path)
            if len(found) > 1:
                _combined(found, output, options)
            else:
                publish(
                    Path(report.path), output, NETWORK, inputs=inputs_of(request, options), force=options.force
                )  # fmt: skip
        size_bytes = output.stat().st_size
        report = replace(
            report, path=str(output), size_bytes=size_bytes, targets=tuple(found), further=tuple(further)
        )  # fmt: skip
        return report, network

    def _check_targets(self, request: Request, targets: Sequence[str]) -> None:
        """Check targets before anything is done for one of them."""
        known: dict[str, str] = {}
        for target in targets:
            one = self._do("compile", replace(request, target=target), Work.target)
            if one.key in known:
                raise UsageError(f"the targets {known[one.key]} and {target} are the same; name one of them")
            known[one.key] = target

    def bench(
        self,
        request: Request,
        against: Sequence[str] = ("onnxruntime",),
        seconds: float = 5.0,
        compiled: Path | None = None,
        on_progress: Callable[[Progress], None] = _ignore,
        *,
        others: Mapping[str, Path] = MappingProxyType({}),
    ) -> BenchReport:
        """Time a compiled model against rivals, interleaved, `seconds` for each.

        `compiled` is the file to time; without it the model is compiled from the best records. `others` are further
        compiled files of the same model, by the label that the report gives them. All run on the first set of the
        `inputs` in the request's options, if any. `on_progress` is called with what is compiled, and whose turn it is.
        """
        check_rivals(against)
        inputs = str(request.options.get("inputs", ""))
        return self._do(
            "bench",
            request,
            lambda work: bench_work(work, against, seconds, compiled, others, inputs=inputs),
            on_progress,
        )

    def calibrate(self, request: Request, say: Callable[[str], None] = _ignore) -> Calibration:
        """Measure what sharing this device costs with kernels of the request's threads, and store it."""

        async def run(work: Work) -> Calibration:
            return await calibrate_target(work.runtime, work.store, request, work.job_id, say)

        return self._do("calibrate", request, run, charged=True)

    def collect(
        self,
        request: Request,
        options: CollectOptions,
        on_progress: Callable[[Progress], None] = _ignore,
        stop: threading.Event | None = None,
    ) -> CollectReport:
        """Measure candidates of many tasks of the request's model and further ones, to train cost models on.

        What the store holds already is counted and not measured again; setting `stop` ends it cleanly. Where the
        request's trimming does not abandon, every candidate is sampled to the end.
        """
        options.check(request)

        async def run(work: Work) -> CollectReport:
            assert work.account is not None
            return await collect_work(
                work.runtime, work.store, work.request, work.account, work.job_id, options.plan(request), work.notify,
                stop,
            )  # fmt: skip

        return self._do("collect", replace(request, options=asdict(options)), run, on_progress, charged=True)

    def answer(self, request: Request, notify: Callable[[Progress], None] = _ignore) -> Mapping[str, Any]:
        """Do a job of the request's kind with its options; return its answer as plain data, as a service gives it."""
        options, kind = options_of(request), KINDS[request.kind]
        assert kind.run is not None, "a resumable job does not answer"
        check_limits(request)
        job = Job(request, self._runtimes, notify=notify, known=self._known)
        answer: Mapping[str, Any] = self._done(job, charged=kind.measures(options))
        return answer

    def note(self, job_id: str, kind: str, payload: Mapping[str, Any]) -> None:
        """Store an event of a job."""
        self._loop.run(self._runtimes.store.write(lambda store: store.events.append(kind, payload, job_id)))

    def cancel(self) -> bool:
        """End the verb that is at work, which raises KeyboardInterrupt then; return whether one is.

        A signal handler or another thread may call this.
        """
        task = self._at_work
        if task is None or task.done():
            return False
        self._cancelled = True
        task.get_loop().call_soon_threadsafe(task.cancel)
        return True

    def _do(
        self,
        kind: str,
        request: Request,
        run: Callable[[Work], Awaitable[R]],
        notify: Callable[[Progress], None] = _ignore,
        *,
        charged: bool = False,
    ) -> R:
        check_limits(request)
        job = Job(replace(request, kind=kind), self._runtimes, notify=notify, known=self._known)
        done: R = self._done(job, run, charged=charged)
        return done

    def _done(self, job: Job, answer: Callable[[Work], Awaitable[Any]] | None = None, *, charged: bool = False) -> Any:
        """Do a job to its end; where `cancel` ends it, that raises KeyboardInterrupt."""

        async def work() -> Any:
            self._at_work = asyncio.current_task()
            return await run_here(job, answer, charged=charged)

        self._cancelled = False
        try:
            return self._loop.run(work())
        except asyncio.CancelledError:
            if self._cancelled:
                raise KeyboardInterrupt from None
            raise
        finally:
            self._at_work = None
            for part in job.works if job.known == self._known else ():
                if part.imported is not None:
                    self._models[_source(part.request)] = replace(part.imported, wall_s=0.0, core_s=0.0)

    def _known(self, request: Request) -> ImportedModel | None:
        return self._models.get(_source(request))


def _with_kernels(request: Request, report: CompileReport) -> Request | None:
    if not report.shapes:
        return None if report.no_kernels else request
    each = zip(request.each_shape, report.shapes, strict=True)
    kept = [one for one, shape in each if not shape.by_onnxruntime]
    return replace(kept[0], more_shapes=tuple(one.shapes for one in kept[1:])) if kept else None


def _combined(files: Mapping[str, Path], output: Path, options: CompileOptions) -> None:
    try:
        combine([*files.values()], output, force=options.force, sign=options.key)
    except UsageError as error:
        said = str(error)
        for target, file in files.items():
            said = said.replace(str(file), f"what was compiled for {target}")
        raise UsageError(said) from error


def _source(request: Request) -> tuple[object, ...]:
    shapes = tuple(tuple(sorted(one.shapes.items())) for one in request.each_shape)
    return request.model, shapes, request.target, request.dialect, request.threads


def _once(
    verb: Callable[Concatenate[Session, Request, P], R], *, keep: bool = True
) -> Callable[Concatenate[Request, P], R]:
    @wraps(verb)
    def once(request: Request, /, *args: P.args, **more: P.kwargs) -> R:
        check_limits(request)
        with Session(request.store, keep=keep) as session:
            return verb(session, request, *args, **more)

    return once


tune = _once(Session.tune)
tune_tasks = _once(Session.tune_tasks)
calibrate_device = _once(Session.calibrate)
extract = _once(Session.extract, keep=False)
compile_model = _once(Session.compile, keep=False)
bench = _once(Session.bench, keep=False)


def query(request: Request, policy: FillPolicy | None = None) -> Answer:
    """Do as `Session.query` in a session of its own."""
    # A prediction needs no records, and stores those that it measures.
    with Session(request.store, create=policy is not None, keep=False) as session:
        return session.query(request, policy)


def collect(
    request: Request,
    models: Sequence[str],
    *,
    tasks: int,
    per_task: int,
    hold_out: Sequence[str] = (),
    kinds: Sequence[str] = (),
    on_progress: Callable[[Progress], None] = _ignore,
    stop: threading.Event | None = None,
) -> CollectReport:
    """Do as `Session.collect`, with all of `models`, in a session of its own."""
    check_limits(request)
    if not models:
        raise UsageError("there is no network to collect from; name one that is not held out")
    options = CollectOptions(
        networks=tuple(models[1:]), tasks=tasks, per_task=per_task, hold_out=tuple(hold_out), kinds=tuple(kinds)
    )
    with Session(request.store) as session:
        return session.collect(replace(request, model=models[0]), options, on_progress, stop)
