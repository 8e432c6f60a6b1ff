"""What a user can do: tune, extract, compile, bench, query. Each opens what it needs and leaves nothing running."""

import asyncio
import json
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from tunery._errors import NothingFoundError, UsageError, WorkError
from tunery.budgets import check_effort, load_prices
from tunery.delivery import Known, choose
from tunery.dialects import get_dialect
from tunery.domain import Budget, Calibration, Choice, JobState, JobStatus, Network, Provenance, Target, Task, digest
from tunery.engines import Engine, LocalEngine, Role
from tunery.jobs._request import BenchReport, CompileReport, Guess, Progress, Request, TuneReport
from tunery.jobs.bench import check, check_rivals, compare
from tunery.jobs.calibrate import calibrate
from tunery.jobs.foreign import watch_for
from tunery.jobs.job import IMPORT_DEADLINE_S, Imported, Job, import_model
from tunery.jobs.runtime import Runtime, make_scratch
from tunery.measure import Settings, granted_cores, this_device, usable_cores
from tunery.store import Skipped, Store, open_store

T = TypeVar("T")
_PRELOAD = {"metaschedule": "tunery.jobs._preload"}


def cache_directory() -> Path:
    """Return where prepared networks and scratch files live (`TUNERY_CACHE` overrides it)."""
    chosen = os.environ.get("TUNERY_CACHE")
    return Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "tunery")


@contextmanager
def workplace(request: Request) -> Iterator[tuple[Engine, Path, int]]:
    """Open an engine and a scratch directory, and say how many threads a kernel gets; all of it goes with the block.

    Raises:
        UsageError: the cache cannot be written, or there are not as many cores as threads.
    """
    import shutil

    cache = cache_directory()
    try:
        scratch = make_scratch(cache)
    except OSError as error:
        raise UsageError(f"cannot write {cache}: {error.strerror}; set TUNERY_CACHE to a writable directory") from error
    threads, cores = request.threads or granted_cores(), granted_cores()
    if threads > cores:
        shutil.rmtree(scratch, ignore_errors=True)
        raise UsageError(f"{threads} threads on {cores} usable cores; use at most {cores}")
    try:
        with LocalEngine(_PRELOAD.get(request.dialect), scratch / "logs") as engine:
            yield engine, scratch, threads
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def _runtime(request: Request) -> Iterator[Runtime]:
    with workplace(request) as (engine, scratch, threads):
        yield Runtime(engine, request.dialect, threads, scratch, foreign=watch_for(usable_cores()))


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
    check_effort(request.effort)
    load_prices(request.prices).check(request.budget)
    with open_store(request.store) as store, _runtime(request) as runtime:
        return _run(_tune(runtime, store, request, on_progress, stop or threading.Event(), job_id))


async def _tune(  # noqa: PLR0917 - what a job needs, passed on
    runtime: Runtime,
    store: Store,
    request: Request,
    notify: Callable[[Progress], None],
    stop: threading.Event,
    job_id: str,
) -> TuneReport:
    setup, began = "setup", time.monotonic()
    runtime.submit(setup)
    notify(Progress("", "importing", 0.0, request.budget.seconds, 0, request.budget.trials, None, None))
    imported = await import_model(runtime, store, request, cache_directory(), setup)
    runtime.end(setup)
    return await _tune_imported(runtime, store, request, imported, notify, stop, job_id, began)


async def _tune_imported(  # noqa: PLR0917 - what a job needs, passed on
    runtime: Runtime,
    store: Store,
    request: Request,
    imported: Imported,
    notify: Callable[[Progress], None],
    stop: threading.Event,
    job_id: str = "",
    began: float | None = None,
) -> TuneReport:
    plain = request_data(request, imported)
    found = _named(store, job_id, plain) if job_id else store.resumable(plain)
    if found is None:
        _refuse_twin(store, plain)
    status = found or store.create_job(plain)
    if not store.acquire_job(status.job_id):
        raise WorkError(f"another process is working on job {status.job_id}; wait for it, or see `tunery jobs list`")
    runtime.submit(status.job_id)
    job = Job(runtime, store, request, store.job(status.job_id), imported, notify, stop, began)
    done = await job.run()
    runtime.end(status.job_id)
    return _report(done, imported, resumed=found is not None, store=store)


def _named(store: Store, job_id: str, request: Mapping[str, Any]) -> JobStatus:
    """Return the job of this id; what it was submitted for must still be what its words mean today."""
    status = store.job(job_id)
    for part, what in (("network", "its model has changed"), ("target_key", "its target means another one here")):
        if status.request.get(part) != request[part]:
            raise UsageError(
                f"job {job_id} cannot go on, for {what} since it began; start anew with "
                f"`tunery tune {request['model']}`"
            )
    return status


def _refuse_twin(store: Store, request: Mapping[str, Any]) -> None:
    """Refuse to work on what another live process is working on: both would pay for the same candidates."""
    asked = {name: value for name, value in request.items() if not name.startswith("budget")}
    for job in store.jobs(50):
        theirs = {name: value for name, value in job.request.items() if not name.startswith("budget")}
        if job.state is JobState.RUNNING and theirs == asked:
            raise WorkError(
                f"another process is tuning this as job {job.job_id}; wait for it (`tunery jobs show {job.job_id}`), "
                "or tune with another --seed"
            )


def tune_tasks(request: Request, tasks: Sequence[Task]) -> TuneReport:
    """Tune tasks that were extracted before, of one target; the request's model is only a name.

    Raises:
        UsageError: no tasks, or tasks of several targets.
    """
    if len({task.target.key for task in tasks}) != 1:
        raise UsageError("tune_tasks needs tasks of one target; group them by `task.target` first")
    target = tasks[0].target
    network = Network(request.model, request.model, digest(*sorted(t.key for t in tasks)), "", (), (), 0)
    with open_store(request.store) as store, _runtime(request) as runtime:
        imported = Imported(network, target, get_dialect(request.dialect).compiler, tuple(tasks))
        return _run(_tune_imported(runtime, store, request, imported, lambda _: None, threading.Event()))


def request_data(request: Request, imported: Imported) -> dict[str, str | int | float | bool | None]:
    """Return the request as plain data, as stored: what `jobs resume` needs to go on."""
    return {
        "model": request.model if request.model.startswith(("zoo:", "fake:")) else str(Path(request.model).resolve()),
        "network": imported.network.digest,
        "name": imported.network.name,
        "shapes": json.dumps({name: list(shape) for name, shape in sorted(request.shapes.items())}),
        "target": request.target,
        "target_key": imported.target.key,
        "dialect": request.dialect,
        "threads": request.threads,
        "effort": request.effort,
        "budget_s": request.budget.seconds,
        "budget_trials": request.budget.trials,
        "budget_money": request.budget.money,
        "budget_currency": request.budget.currency,
        "budget_joules": request.budget.joules,
        "budget_prices": request.prices,
        "seed": request.seed,
        "pretrained": request.pretrained,
    }


def request_of(status: JobStatus, store: str) -> Request:
    """Return the request a stored job was submitted with."""
    data: Mapping[str, Any] = status.request
    return Request(
        model=data["model"],
        shapes={name: tuple(shape) for name, shape in json.loads(data["shapes"]).items()},
        target=data["target"],
        dialect=data["dialect"],
        threads=data["threads"],
        budget=Budget(
            data["budget_s"],
            data["budget_trials"],
            data.get("budget_money"),
            data.get("budget_currency", ""),
            data.get("budget_joules"),
        ),
        prices=data.get("budget_prices", ""),
        effort=data["effort"],
        store=store,
        seed=data["seed"],
        pretrained=data.get("pretrained", True),  # jobs of earlier versions do not say
    )


def _report(status: JobStatus, imported: Imported, *, resumed: bool, store: Store) -> TuneReport:
    before = [task.weight * task.baseline_s for task in status.tasks if task.baseline_s is not None]
    after = [task.weight * task.best_s for task in status.tasks if task.best_s is not None]
    complete = len(before) == len(after) == len(status.tasks)
    return TuneReport(
        job=status,
        network=imported.network,
        tasks=imported.tasks,
        before_s=sum(before) if complete else None,
        after_s=sum(after) if complete else None,
        resumed=resumed,
        store=store.place,
    )


def extract(request: Request) -> Imported:
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
    """What the store knows of a network: one choice per task, and what it holds but did not use, with reasons."""

    network: Network
    target: Target
    tasks: tuple[Task, ...]
    choices: tuple[Choice, ...]
    skipped: tuple[tuple[str, Skipped], ...]


def query(request: Request, guess: Guess | None = None) -> Answer:
    """Return the best verified records for a model on this device; with `guess`, predicted schedules beside them.

    Raises:
        UsageError: the model, shapes or target are wrong.
        NothingFoundError: no task of the model has a record that may be delivered; the message says why.
    """
    with open_store(request.store) as store, _runtime(request) as runtime:
        for name in ("query", "compile"):
            runtime.submit(name)
        imported = _run(import_model(runtime, store, request, cache_directory(), "query"))
        known = _run(_guessed(runtime, store, request, imported, guess))
        if not any(choice.candidate for choice in known.choices):
            reasons = "; ".join(sorted({str(why) for _, why in known.skipped})) or "nothing was measured yet"
            raise NothingFoundError(
                f"no verified record for {imported.network.name} on {imported.target}: {reasons}; "
                f"run `tunery tune {request.model}`"
            )
        return Answer(imported.network, imported.target, imported.tasks, known.choices, known.skipped)


async def _guessed(runtime: Runtime, store: Store, request: Request, imported: Imported, guess: Guess | None) -> Known:
    if guess is None:
        return _choices(store, request, imported, runtime)
    from tunery.jobs.zeroshot import fill

    return (await fill(runtime, store, request, imported.tasks, _provenance(request, imported, runtime), guess))[0]


def _provenance(request: Request, imported: Imported, runtime: Runtime) -> Provenance:
    return Provenance(request.dialect, imported.compiler, this_device(runtime.cores).fingerprint, Settings().key)


def _choices(store: Store, request: Request, imported: Imported, runtime: Runtime) -> Known:
    return choose(store, imported.tasks, _provenance(request, imported, runtime))


def compile_model(request: Request, output: Path, guess: Guess | None = None) -> tuple[CompileReport, Network]:
    """Build the model with the best verified records to one loadable file; what has none uses the compiler's default.

    With `guess` it uses what the cost model predicts to be fastest, verified but not measured.

    Raises:
        UsageError: the model, shapes or target are wrong, or `output` cannot be written.
        WorkError: the model does not compile, or computes something else than ONNX Runtime.
    """
    if not output.parent.is_dir():
        raise UsageError(f"there is no directory {output.parent}; create it, or choose another place with -o")
    if output.exists() and not output.is_file():  # a device or a pipe would be replaced by a file
        raise UsageError(f"{output} is not a file; choose another place with -o")
    with open_store(request.store) as store, _runtime(request) as runtime:
        for name in ("compile", "check"):
            runtime.submit(name)
        return _run(_compile_checked(runtime, store, request, output, guess))


async def _compile_checked(
    runtime: Runtime, store: Store, request: Request, output: Path, guess: Guess | None
) -> tuple[CompileReport, Network]:
    """Compile beside `output`, and put it there once its outputs are those of ONNX Runtime."""
    pending = output.with_name(f".{output.name}.{os.getpid()}.unchecked")
    try:
        report, network = await _compile(runtime, store, request, pending, guess=guess)
        error = None
        if network.path:
            async with runtime.stage("check", "check", Role.MEASURER):
                error = await check(runtime, network, pending)
        pending.replace(output)
    finally:
        pending.unlink(missing_ok=True)
    return replace(report, path=str(output), max_abs_error=error), network


async def _compile(
    runtime: Runtime, store: Store, request: Request, output: Path, *, tuned: bool = True, guess: Guess | None = None
) -> tuple[CompileReport, Network]:
    imported = await import_model(runtime, store, request, cache_directory(), "compile")
    known = await _guessed(runtime, store, request, imported, guess)
    workloads = {task.key: task.workload for task in imported.tasks}
    chosen = {workloads[c.task_key].key: c.candidate for c in known.choices if c.candidate and tuned}
    async with runtime.stage("compile", "compile", Role.IMPORTER) as grant:
        compiled = await runtime.call(
            grant.worker, "compile", imported.network, imported.target, chosen, output.resolve(),
            deadline_s=IMPORT_DEADLINE_S,
        )  # fmt: skip
    rungs = {workloads[c.task_key].key: (workloads[c.task_key].name, c) for c in known.choices}
    coverage = {
        f"{rungs[key][0]}:{key[:8]}": (rungs[key][1].rung.value, used)
        for key, used in compiled.coverage.items()
        if key in rungs
    }
    return CompileReport(imported.network.name, str(output), output.stat().st_size, coverage), imported.network


def bench(
    request: Request, against: Sequence[str] = ("onnxruntime",), seconds: float = 5.0, compiled: Path | None = None
) -> BenchReport:
    """Time a compiled model against rivals, interleaved, `seconds` for each.

    `compiled` is the file to time; without it the model is compiled from the best records.

    Raises:
        UsageError: the model, shapes, target or a rival's name are wrong.
        WorkError: the model does not compile.
    """
    check_rivals(against)
    with open_store(request.store) as store, _runtime(request) as runtime:
        for name in ("compile", "bench"):
            runtime.submit(name)
        return _run(_bench(runtime, store, request, against, seconds, compiled))


async def _bench(  # noqa: PLR0917 - passed on from `bench`
    runtime: Runtime, store: Store, request: Request, against: Sequence[str], seconds: float, compiled: Path | None
) -> BenchReport:
    paths = {"tunery": compiled or runtime.scratch / "tuned"}
    if compiled:
        network = (await import_model(runtime, store, request, cache_directory(), "compile")).network
    else:
        _, network = await _compile(runtime, store, request, paths["tunery"])
    if not network.path:
        raise UsageError(f"{network.source} has no ONNX file to compare with; bench an ONNX model or zoo:NAME")
    if "untuned" in against:
        paths["untuned"] = runtime.scratch / "untuned"
        await _compile(runtime, store, request, paths["untuned"], tuned=False)
    async with runtime.stage("bench", "bench", Role.MEASURER):
        return await compare(runtime, network, paths, against, seconds)
