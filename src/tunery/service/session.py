"""What a user can do: tune, extract, compile, bench, query. Each opens what it needs and leaves nothing running."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from tunery._errors import NothingFoundError, TuneryError, UsageError
from tunery.delivery import KnownTask, choose, publish
from tunery.delivery.compare import Output, check, check_rivals, compare, onnxruntime_outputs, with_tasks
from tunery.delivery.predict import fill, get_ready
from tunery.devices.cpu.device import this_device
from tunery.dialects import get_dialect
from tunery.domain import Calibration, Candidate, Choice, Network, Provenance, Rung, Target, Task, digest
from tunery.domain.request import (
    CONTESTANTS,
    BenchReport,
    CompileReport,
    FillPolicy,
    Progress,
    Request,
    TaskShare,
    TuneReport,
)
from tunery.engines import Role
from tunery.measuring.inputs import size_bytes
from tunery.measuring.settings import Settings
from tunery.runtime.calibrate import calibrate
from tunery.runtime.importing import IMPORT_DEADLINE_S, ImportedModel, both, import_model
from tunery.runtime.opening import cache_directory, open_runtime
from tunery.runtime.pools import Runtime
from tunery.service.checks import check_limits
from tunery.service.manager import JobManager
from tunery.store import Skipped, Store, open_store
from tunery.tuning.calls import BUILD_DEADLINE_S
from tunery.tuning.learning import InitialModel

T = TypeVar("T")


@contextmanager
def _runtime(request: Request) -> Iterator[Runtime]:
    with open_runtime(request) as runtime:
        yield runtime


def _run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def tune(
    request: Request,
    on_progress: Callable[[Progress], None] = lambda _: None,
    stop: threading.Event | None = None,
    job_id: str = "",
) -> TuneReport:
    """Tune a model: measured and verified records go into the store; an unfinished equal job is resumed.

    `on_progress` is called from this thread after every batch; setting `stop` ends the job cleanly and resumably.
    `job_id` names the job to go on with, which `request` must be the request of.

    Raises:
        UsageError: the model, shapes, target, effort, or store are wrong, or no longer those of job `job_id`.
        WorkError: there is nothing to tune, or another process works on the same job.
        NothingFoundError: there is no job `job_id`.
    """
    check_limits(request)
    with open_store(request.store) as store:
        return _run(_alone(store, request, None, on_progress, stop or threading.Event(), job_id))


async def _alone(  # noqa: PLR0917 - what a job needs, passed on
    store: Store,
    request: Request,
    imported: ImportedModel | None,
    notify: Callable[[Progress], None] = lambda _: None,
    stop: threading.Event | None = None,
    job_id: str = "",
) -> TuneReport:
    async with JobManager(store) as room:
        return await room.run(request, notify, stop or threading.Event(), job_id=job_id, imported=imported)


def tune_tasks(request: Request, tasks: Sequence[Task]) -> TuneReport:
    """Tune tasks that were extracted before, of one target; the request's model is only a name.

    Raises:
        UsageError: no tasks, tasks of several targets, or a wrong limit.
    """
    if len({task.target.key for task in tasks}) != 1:
        raise UsageError("tune_tasks needs tasks of one target; group them by `task.target` first")
    check_limits(request)
    target = tasks[0].target
    network = Network(request.model, request.model, digest(*sorted(t.key for t in tasks)), "", (), (), 0)
    imported = ImportedModel(network, target, get_dialect(request.dialect).compiler, tuple(tasks))
    with open_store(request.store) as store:
        return _run(_alone(store, request, imported))


def extract(request: Request) -> ImportedModel:
    """Return the model's network, target and tasks.

    Raises:
        UsageError: the model, shapes or target are wrong.
        WorkError: the model cannot be imported.
    """
    with open_store(request.store) as store, _runtime(request) as runtime:
        runtime.submit("extract")
        return _run(import_model(runtime, store, request, cache_directory(), "extract"))


def calibrate_device(request: Request, say: Callable[[str], None] = lambda _: None) -> Calibration:
    """Measure what sharing this device costs with kernels of the request's threads, and store it.

    Raises:
        UsageError: the target, the threads or the store are wrong, or the dialect has no reference kernels.
        WorkError: the reference kernels do not build or run.
    """
    with open_store(request.store) as store, _runtime(request) as runtime:
        return _run(_calibrate(runtime, store, request, say))


async def _calibrate(runtime: Runtime, store: Store, request: Request, say: Callable[[str], None]) -> Calibration:
    runtime.submit("setup")
    async with runtime.stage("setup", "import", Role.IMPORTER) as grant:
        target, _ = await runtime.call(
            grant.worker, "target", request.target, runtime.threads, deadline_s=IMPORT_DEADLINE_S, tries=3
        )
    runtime.end("setup")
    return await calibrate(runtime, store, target, request.dialect, say)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the store knows of a network: one choice per task, and what it holds but did not use, with reasons.

    `open` are the keys of tunable tasks that were neither searched nor predicted.
    """

    network: Network
    target: Target
    tasks: tuple[Task, ...]
    choices: tuple[Choice, ...]
    skipped: tuple[tuple[str, Skipped], ...]
    refused: Mapping[str, str] = field(default_factory=dict)
    open: frozenset[str] = frozenset()


def query(request: Request, guess: FillPolicy | None = None) -> Answer:
    """Return the best verified records for a model on this device; with `guess`, predicted schedules beside them.

    Raises:
        UsageError: the model, shapes or target are wrong.
        NothingFoundError: no task of the model has a record that may be delivered; the message says why.
    """
    # A guess needs no records, and stores those that it measures.
    with open_store(request.store, create=guess is not None) as store, _runtime(request) as runtime:
        for name in ("query", "compile"):
            runtime.submit(name)
        imported = _run(import_model(runtime, store, request, cache_directory(), "query"))
        known = _run(_guessed(runtime, store, request, imported, guess))
        if not any(choice.candidate for choice in known.choices):
            skipped = {str(why) for _, why in known.skipped} | set(known.refused.values())
            reasons = "; ".join(sorted(skipped)) or "nothing was measured yet"
            raise NothingFoundError(
                f"no verified record for {imported.network.name} on {imported.target}: {reasons}; "
                f"run `tunery tune {request.model}`"
            )
        return Answer(
            imported.network, imported.target, imported.tasks, known.choices, known.skipped, known.refused,
            _open(imported, known),
        )  # fmt: skip


def _open(imported: ImportedModel, known: KnownTask) -> frozenset[str]:
    predicted = {choice.task_key for choice in known.choices if choice.rung is Rung.ZERO_SHOT}
    return frozenset(task.key for task in imported.tasks if task.tunable and task.key in known.open - predicted)


async def _guessed(  # noqa: PLR0917 - passed on
    runtime: Runtime,
    store: Store,
    request: Request,
    imported: ImportedModel,
    guess: FillPolicy | None,
    ready: Awaitable[InitialModel | None] | None = None,
) -> KnownTask:
    if guess is None:
        return _choices(store, request, imported, runtime)
    provenance = _provenance(request, imported, runtime)
    return await fill(runtime, store, request, imported.tasks, provenance, guess, ready)


def _provenance(request: Request, imported: ImportedModel, runtime: Runtime) -> Provenance:
    return Provenance(request.dialect, imported.compiler, this_device(runtime.cores).fingerprint, Settings().key)


def _choices(store: Store, request: Request, imported: ImportedModel, runtime: Runtime) -> KnownTask:
    return choose(store, imported.tasks, _provenance(request, imported, runtime))


def compile_model(
    request: Request, output: Path, guess: FillPolicy | None = None, say: Callable[[str], None] = lambda _: None
) -> tuple[CompileReport, Network]:
    """Build the model with the best verified records to one loadable file; what has none uses the compiler's default.

    With `guess` such operators, and those of which only that default was measured, use what the cost model predicts to
    be fastest, verified but not measured. `say` hears what it is busy with.

    Raises:
        UsageError: the model, shapes or target are wrong, or `output` cannot be written.
        WorkError: the model does not compile, or computes something else than ONNX Runtime.
    """
    if not output.parent.is_dir():
        raise UsageError(f"there is no directory {output.parent}; create it, or choose another place with -o")
    if output.exists() and not output.is_file():  # a device or a pipe would be replaced by a file
        raise UsageError(f"{output} is not a file; choose another place with -o")
    with _runtime(request) as runtime, open_store(request.store) as store:  # workers take the longer to start
        for name in ("compile", "check"):
            runtime.submit(name)
        return _run(_compile_checked(runtime, store, request, output, guess, say))


async def _compile_checked(  # noqa: PLR0917 - passed on from `compile_model`
    runtime: Runtime, store: Store, request: Request, output: Path, guess: FillPolicy | None, say: Callable[[str], None]
) -> tuple[CompileReport, Network]:
    """Compile in the scratch directory, and put the file at `output` once its outputs are those of ONNX Runtime."""
    fresh = runtime.scratch / "compiled"
    prepared: asyncio.Future[Network] = asyncio.get_running_loop().create_future()

    async def expected() -> Sequence[Output]:
        return await onnxruntime_outputs(runtime, await prepared)

    # Extracting tasks keeps one core busy; what the result will be compared with is made on another.
    say("reading the model")
    made = _compile_beside(runtime, store, request, fresh, guess, prepared.set_result, say)
    (report, network), theirs = await both(made, expected())
    error = None
    if network.path:
        say("checking the network's outputs")
        # No measurement, so it need not wait until others leave the machine alone.
        async with runtime.stage("check", "check", Role.IMPORTER):
            error = await check(runtime, network, fresh, theirs)
    publish(fresh, output)
    return replace(report, path=str(output), max_abs_error=error), network


async def _compile_beside(  # noqa: PLR0917 - passed on from `_compile_checked`
    runtime: Runtime,
    store: Store,
    request: Request,
    output: Path,
    guess: FillPolicy | None,
    allow: Callable[[Network], None],
    say: Callable[[str], None],
) -> tuple[CompileReport, Network]:
    """Compile, and `allow` others to run the network's file as soon as that disturbs no measurement."""
    measuring = guess is not None and guess.few_shot > 0
    ready: list[asyncio.Task[InitialModel | None]] = []

    def extracting(target: Target, compiler: str) -> None:
        if guess is not None and not measuring:
            ready.append(asyncio.create_task(get_ready(runtime, request, target, compiler)))

    try:
        imported = await import_model(
            runtime, store, request, cache_directory(), "compile",
            prepared=(lambda _: None) if measuring else allow, extracting=extracting,
        )  # fmt: skip
        say(f"{_choosing(guess)} {len(imported.tasks)} tasks")
        known, chosen = await _chosen(runtime, store, request, imported, guess, ready=ready[0] if ready else None)
    finally:
        await asyncio.gather(*ready, return_exceptions=True)
    if measuring:
        allow(imported.network)
    say("compiling the network")
    return await _link(runtime, imported, known, chosen, output), imported.network


def _choosing(guess: FillPolicy | None) -> str:
    if guess is None:
        return "building what is known of"
    return "measuring predictions for what is not known of" if guess.few_shot else "predicting what is not known of"


async def _compile(
    runtime: Runtime,
    store: Store,
    request: Request,
    output: Path,
    *,
    tuned: bool = True,
    begun: Callable[[], None] = lambda: None,
) -> tuple[CompileReport, Network]:
    imported = await import_model(runtime, store, request, cache_directory(), "compile", begun)
    known, chosen = await _chosen(runtime, store, request, imported, FillPolicy() if tuned else None, tuned=tuned)
    return await _link(runtime, imported, known, chosen, output), imported.network


async def _chosen(
    runtime: Runtime,
    store: Store,
    request: Request,
    imported: ImportedModel,
    guess: FillPolicy | None,
    *,
    tuned: bool = True,
    ready: Awaitable[InitialModel | None] | None = None,
) -> tuple[KnownTask, dict[str, Candidate]]:
    """Return what is known, and the candidates by workload key, with their code where that spares the linking time."""
    known = await _guessed(runtime, store, request, imported, guess, ready)
    workloads = {task.key: task.workload for task in imported.tasks}
    chosen = {workloads[c.task_key].key: c.candidate for c in known.choices if c.candidate and tuned}
    if chosen:
        await _build_parts(runtime, imported.tasks, known.choices)
    return known, chosen


async def _link(
    runtime: Runtime, imported: ImportedModel, known: KnownTask, chosen: Mapping[str, Candidate], output: Path
) -> CompileReport:
    workloads = {task.key: task.workload for task in imported.tasks}
    async with runtime.stage("compile", "compile", Role.IMPORTER) as grant:
        compiled = await runtime.call(
            grant.worker, "compile", imported.network, imported.target, chosen, output.resolve(), runtime.artifacts,
            deadline_s=IMPORT_DEADLINE_S,
        )  # fmt: skip
    rungs = {workloads[c.task_key].key: (workloads[c.task_key].label, c.rung) for c in known.choices}
    coverage = {  # a candidate that could not be used left its place to the default
        rungs[key][0]: ((rungs[key][1] if used else Rung.DEFAULT).value, used)
        for key, used in compiled.coverage.items()
        if key in rungs
    }
    size = output.stat().st_size
    shares = _shares(imported, known)
    refused = {workloads[key].name: why for key, why in known.refused.items()}
    return CompileReport(
        imported.network.name, str(output), size, coverage, tasks=shares, refused=refused, measured=known.measured,
        untuned=len(_open(imported, known)),
        left_out={rungs[key][0]: why for key, why in compiled.left_out.items() if key in rungs},
    )  # fmt: skip


async def _build_parts(runtime: Runtime, tasks: Sequence[Task], choices: Sequence[Choice]) -> None:
    """Have all builders generate the code of the network's kernels; what fails is left to the compilation."""
    by_key = {task.key: task for task in tasks}

    async def one(task: Task, candidate: Candidate) -> None:
        with suppress(TuneryError):
            async with runtime.stage("compile", "build", Role.BUILDER, task.workload.kind) as grant:
                await runtime.call(grant.worker, "part", task, candidate, deadline_s=BUILD_DEADLINE_S)

    # What was predicted has just been built, to be verified.
    open_ = [choice for choice in choices if choice.candidate and choice.rung is not Rung.ZERO_SHOT]
    await asyncio.gather(*(one(by_key[c.task_key], c.candidate) for c in open_ if c.candidate))


def _shares(imported: ImportedModel, known: KnownTask) -> tuple[TaskShare, ...]:
    latency_s = {choice.task_key: choice.latency_s for choice in known.choices}
    return tuple(
        TaskShare(w.name, w.key, w.kind, task.weight, w.flop, latency_s.get(task.key), size_bytes(w.arguments))
        for task in imported.tasks
        for w in (task.workload,)
    )


def _used_shares(imported: ImportedModel, known: KnownTask) -> tuple[TaskShare, ...]:
    """Do as `_shares` for a file that predicts what only the compiler's default was timed of: that is not in it."""
    used = tuple(choice for choice in known.choices if choice.task_key not in known.open)
    return _shares(imported, replace(known, choices=used))


def bench(
    request: Request,
    against: Sequence[str] = ("onnxruntime",),
    seconds: float = 5.0,
    compiled: Path | None = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
    *,
    others: Mapping[str, Path] = MappingProxyType({}),
) -> BenchReport:
    """Time a compiled model against rivals, interleaved, `seconds` for each.

    `compiled` is the file to time; without it the model is compiled from the best records. `others` are further
    compiled files of the same model, by the label that the report gives them. `on_progress` hears what is compiled, and
    whose turn it is.

    Raises:
        UsageError: the model, shapes, target or a rival's name are wrong.
        WorkError: the model does not compile.
    """
    check_rivals(against)
    with open_store(request.store) as store, _runtime(request) as runtime:
        for name in ("compile", "bench"):
            runtime.submit(name)
        return _run(_bench(runtime, store, request, against, seconds, compiled, on_progress, others))


async def _bench(  # noqa: PLR0917 - passed on from `bench`
    runtime: Runtime,
    store: Store,
    request: Request,
    against: Sequence[str],
    seconds: float,
    compiled: Path | None,
    notify: Callable[[Progress], None],
    others: Mapping[str, Path],
) -> BenchReport:
    began = time.monotonic()

    def tell(phase: str, current: str) -> None:
        notify(Progress("", phase, time.monotonic() - began, None, 0, None, None, None, current))

    paths = {"tunery": compiled or runtime.scratch / "tuned", **others}
    if compiled:
        imported = await import_model(
            runtime, store, request, cache_directory(), "compile", lambda: tell("importing", "")
        )
        network, shares = imported.network, _used_shares(imported, _choices(store, request, imported, runtime))
    else:
        begun = partial(tell, "compiling", CONTESTANTS["tunery"])
        report, network = await _compile(runtime, store, request, paths["tunery"], begun=begun)
        shares = report.tasks
    if not network.path:
        raise UsageError(f"{network.source} has no ONNX file to compare with; bench an ONNX model or zoo:NAME")
    if "untuned" in against:
        paths["untuned"] = runtime.scratch / "untuned"
        tell("compiling", CONTESTANTS["untuned"])
        await _compile(runtime, store, request, paths["untuned"], tuned=False)
    async with runtime.stage("bench", "bench", Role.MEASURER):
        return with_tasks(await compare(runtime, network, paths, against, seconds, notify), shares)
