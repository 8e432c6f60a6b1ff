"""The tasks of many models: extracted in worker processes, kept in the store, so that a second run only reads."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tunery._errors import TuneryError, WorkError
from tunery.devices.cpu.facts import usable_cores
from tunery.dialects import extractor
from tunery.domain import Target, Task
from tunery.domain.request import Request
from tunery.engines import Engine, Role, WorkerSpec
from tunery.runtime import worker_bytes, worker_environment
from tunery.runtime.importing import IMPORT_DEADLINE_S, held
from tunery.runtime.opening import granted_at, workplace
from tunery.runtime.runtime import Reservation, Runtime
from tunery.runtime.spec import RuntimeSpec
from tunery.store import AsyncStore, open_store


@dataclass(frozen=True, slots=True)
class Extracted:
    """One model: its tasks, or the `failure` that left it without any. `cached` says that the store knew the tasks;
    `wall_s` is what this model took."""

    model: str
    tasks: tuple[Task, ...]
    cached: bool
    wall_s: float
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Extraction:
    """What came of several models on one target, in the order they were given, by which compiler."""

    target: Target
    compiler: str
    models: tuple[Extracted, ...]
    wall_s: float


@dataclass(frozen=True, slots=True)
class TaskCount:
    """How many tasks there are of a kind of operator. `models` have at least one; `tasks` is the sum over models,
    `unique` counts each workload once, `tunable` how many of these have something to decide; `calls` is the number of
    call sites."""

    kind: str
    models: int
    tasks: int
    unique: int
    tunable: int
    calls: int


def count_tasks(kind: str, models: Iterable[Extracted]) -> TaskCount:
    """Count the tasks of one kind over models; `all` counts those of every kind."""
    per_model = [[task for task in one.tasks if kind in ("all", task.workload.kind)] for one in models]
    every = [task for tasks in per_model for task in tasks]
    unique = {task.workload.key: task for task in every}
    return TaskCount(
        kind,
        sum(bool(tasks) for tasks in per_model),
        len(every),
        len(unique),
        sum(task.tunable for task in unique.values()),
        sum(task.weight for task in every),
    )


def count_by_kind(models: Sequence[Extracted]) -> tuple[TaskCount, ...]:
    kinds = {task.workload.kind for one in models for task in one.tasks}
    return tuple(sorted((count_tasks(kind, models) for kind in kinds), key=lambda row: (-row.unique, row.kind)))


def extract_many(
    request: Request,
    models: Sequence[str],
    on_done: Callable[[Extracted], None] = lambda _: None,
    stop: threading.Event | None = None,
    *,
    programs: bool = False,
) -> Extraction:
    """Extract the tasks of `models`, as many at a time as there are usable cores; `request.model` is not read. Each
    model's tasks are in the store before the next one begins, so an interrupted run goes on where it was. A model that
    cannot be extracted, or whose worker crashes or is not done in half an hour, costs only itself. Setting `stop`
    begins no further models. Tasks come without their programs unless `programs` are asked for. Prepared files are
    removed again: those of a hundred networks take tens of gigabytes."""
    stopped, spec = stop or threading.Event(), RuntimeSpec.of(request)

    async def extracted() -> Extraction:
        importer = WorkerSpec(
            Role.IMPORTER, "tunery.runtime.services:Importer", {"dialect": request.dialect},
            memory_bytes=worker_bytes(Role.IMPORTER), environment=worker_environment(request.dialect),
        )  # fmt: skip
        idle: asyncio.Queue[str] = asyncio.Queue()
        for core in usable_cores()[: max(1, len(models))]:
            idle.put_nowait(engine.start(replace(importer, cores=(core,))))

        @asynccontextmanager
        async def worker() -> AsyncIterator[str]:
            held = await idle.get()
            try:
                yield held
            finally:
                idle.put_nowait(held)

        sweep = _Sweep(
            engine, store, request, worker, on_done, stopped, programs, engine.blobs.has, engine.blobs.release
        )
        return await sweep.run(models, spec.kernel_threads(granted_at(engine, spec.on)), idle.qsize())

    with (
        open_store(request.store) as opened,
        AsyncStore(opened) as store,
        workplace(spec.on) as (engine, _),
    ):
        return asyncio.run(extracted())


async def extract_beside(  # noqa: PLR0917 - who extracts what, where to
    runtime: Runtime,
    store: AsyncStore,
    request: Request,
    job_id: str,
    models: Sequence[str],
    paid: Callable[[Reservation], Awaitable[None]],
    on_done: Callable[[Extracted], None] = lambda _: None,
    stop: threading.Event | None = None,
) -> Extraction:
    @asynccontextmanager
    async def worker() -> AsyncIterator[str]:
        grant: Reservation | None = None
        try:
            async with runtime.stage(job_id, "import", Role.IMPORTER) as grant:
                yield grant.worker
        finally:
            if grant is not None:
                await paid(grant)

    holds, stop = runtime.holds, stop or threading.Event()
    sweep = _Sweep(runtime.engine, store, request, worker, on_done, stop, True, holds.add, holds.release)
    return await sweep.run(models, runtime.threads, len(usable_cores()))


class _Sweep:
    """The models, and the importer workers that take them one after the other, each from `worker`."""

    def __init__(  # noqa: PLR0917 - its collaborators, each used throughout
        self,
        engine: Engine,
        store: AsyncStore,
        request: Request,
        worker: Callable[[], AbstractAsyncContextManager[str]],
        on_done: Callable[[Extracted], None],
        stop: threading.Event,
        programs: bool,
        hold: Callable[[str], bool],
        release: Callable[[str], None],
    ) -> None:
        self._done: dict[int, Extracted] = {}
        self._engine, self._store, self._request, self._worker = engine, store, request, worker
        self._on_done, self._stop, self._programs = on_done, stop, programs
        self._hold, self._release = hold, release

    async def run(self, models: Sequence[str], threads: int, lanes: int) -> Extraction:
        began = time.monotonic()
        target: Target
        compiler: str
        async with self._worker() as worker:
            target, compiler = await self._call(worker, "target", self._request.target, threads)
        queue = iter(enumerate(models))
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(lanes):
                    group.create_task(self._serve(queue, target, compiler))
        except ExceptionGroup as errors:  # a model's own failure costs that model only: this one is everybody's
            raise errors.exceptions[0] from None
        done = tuple(self._done[i] for i in sorted(self._done))
        return Extraction(target, compiler, done, time.monotonic() - began)

    async def _serve(self, queue: Iterator[tuple[int, str]], target: Target, compiler: str) -> None:
        for index, model in queue:
            if self._stop.is_set():
                return
            began = time.monotonic()
            tasks: list[Task] = []
            cached, failure = False, ""
            try:
                async with self._worker() as worker:
                    tasks, cached = await self._tasks(worker, model, target, compiler)
            except _ModelError as error:
                failure = str(error)
            if not self._programs:
                tasks = [replace(task, workload=replace(task.workload, program="")) for task in tasks]
            self._done[index] = Extracted(model, tuple(tasks), cached, time.monotonic() - began, failure)
            self._on_done(self._done[index])

    async def _tasks(self, worker: str, model: str, target: Target, compiler: str) -> tuple[list[Task], bool]:
        shapes = self._request.shapes
        by = extractor(target.dialect, compiler)
        network_key = await self._try(worker, "identify", model, shapes, self._request.trust)
        known = await self._store.read(
            lambda store: store.load_tasks(network_key, target.key, by, programs=self._programs)
        )
        if known is not None:
            return known, True
        load = partial(self._try, worker, "load", model, shapes, self._request.trust, True)
        network = await held(load, self._hold, self._release)
        try:
            tasks, elsewhere = await self._try(worker, "extract", network, target)
        finally:
            for blob in network.blobs:
                self._release(blob)
        await self._store.write(
            lambda store: store.save_tasks(network, tasks, target=target, compiler=by, elsewhere=elsewhere)
        )
        return tasks, False

    async def _try(self, worker: str, method: str, *args: object) -> Any:
        try:
            return await self._call(worker, method, *args)
        except TuneryError as error:
            raise _ModelError(str(error)) from error

    async def _call(self, worker: str, method: str, *args: object) -> Any:
        return await asyncio.wrap_future(self._engine.call(worker, method, *args, deadline_s=IMPORT_DEADLINE_S))


class _ModelError(WorkError):
    """One model cannot be extracted."""
