"""This machine's processes as an engine."""

import itertools
import os
import resource
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Self

from typing_extensions import override

from tunery._errors import BlobError, EngineError, UsageError
from tunery._outputs import check_room
from tunery.blobs import Blobs, DirectoryBlobs
from tunery.engines._base import Engine, OnUsage, WorkerSpec, check_deadline
from tunery.engines._payload import Signatures, signatures
from tunery.engines.local import _frames
from tunery.engines.local._loop import Loop
from tunery.engines.local._record import Call, Worker

_LEAST_DESCRIPTORS = 128


class LocalEngine(Engine):
    """Workers as processes of this machine, forked from a zygote and killed from outside when they do not answer.

    There is a zygote for each environment of workers; what it preloads costs a fresh worker milliseconds.
    Each worker prints to its own log in `logs`, and all share `blobs`; the default of both is a directory that ends
    with the engine. A process that is not ready after `startup_s` seconds is given up. `on_usage` hears what each call
    used. Linux only.

    Example:
        with LocalEngine() as engine:
            worker = engine.start(WorkerSpec(Role.BUILDER, "package.module:Builder"))
            engine.call(worker, "build", task, candidate, deadline_s=10).result()
    """

    def __init__(
        self,
        logs: Path | None = None,
        startup_s: float = 120.0,
        on_usage: OnUsage | None = None,
        blobs: Blobs | None = None,
    ) -> None:
        _check_descriptors()
        own = tempfile.mkdtemp(prefix="tunery-") if logs is None or blobs is None else None
        self.logs = Path(logs or own or "").resolve()
        self.logs.mkdir(parents=True, exist_ok=True)
        self.blobs = DirectoryBlobs(Path(own or "", "blobs")) if blobs is None else blobs
        self._ids = itertools.count(1)
        self._workers: dict[str, Worker] = {}
        self._methods: dict[str, Signatures] = {}
        self._loop = Loop(self.logs, startup_s, on_usage)
        place = self.blobs.place
        self._blob_place = None if place is None else asdict(place)
        # Runs at close, at garbage collection and at the interpreter's exit, whichever is first.
        self._end = weakref.finalize(self, _close, self._loop, own, self.blobs if blobs is None else None, os.getpid())

    @classmethod
    @override
    def open(cls, scratch: Path, blobs: Blobs) -> Self:
        return cls(scratch / "logs", blobs=blobs)

    @override
    def start(self, spec: WorkerSpec) -> str:
        self.host_of(spec)
        methods = signatures(spec.service)
        name = self.start_encoded(spec, list(spec.settings), methods.encode_settings(spec.settings))
        self._methods[name] = methods
        return name

    def start_encoded(self, spec: WorkerSpec, names: Sequence[str], settings: bytes) -> str:
        """Start a worker whose settings, called `names`, are JSON already; those in `spec` are not looked at.

        The service is imported in the worker alone: where it cannot be, each call fails with that.
        """
        cores = spec.cores or tuple(sorted(os.sched_getaffinity(os.getpid())))
        name = f"{spec.role.value}-{next(self._ids)}"
        worker = Worker(name, spec, names, settings, cores, self.logs / f"{name}.log", self._blob_place)
        self._loop.add(worker)
        self._workers[name] = worker
        return name

    @override
    def call(self, worker: str, method: str, *args: object, deadline_s: float) -> Future[Any]:
        check_deadline(deadline_s)
        record, methods = self._record(worker), self._methods[worker]
        body = methods.encode_arguments(method, args)
        message = _frames.pack({"method": method, "count": len(args)}, body)
        call = Call(method, message, deadline_s, partial(methods.decode_result, method))
        self._loop.enqueue(record, call)
        return call.future

    def call_encoded(self, worker: str, method: str, count: int, body: bytes, deadline_s: float) -> Future[bytes]:
        """Call a method with `count` arguments that are JSON already; the future gives the result as JSON."""
        call = Call(method, _frames.pack({"method": method, "count": count}, body), deadline_s, bytes)
        self._loop.enqueue(self._record(worker), call)
        return call.future

    @override
    def kill(self, worker: str) -> None:
        self._loop.kill(self._record(worker))

    @override
    def generation(self, worker: str) -> int:
        return self._record(worker).generation

    @override
    def close(self) -> None:
        self._end()
        self._loop.close()  # where another thread, or a callback, has begun it: wait for the end

    @override
    def place(self, worker: str, cores: tuple[int, ...]) -> None:
        record = self._record(worker)
        record.cores = cores  # first: a process that is just being started is put right when it reports
        record.keep_place()

    @override
    def pid(self, worker: str) -> int | None:
        process = self._record(worker).process
        return None if process is None or process.doomed else process.pid

    @override
    def cpu_s(self, worker: str) -> float:
        return self._loop.used_cpu_s(self._record(worker))

    @override
    def own_cpu_s(self) -> float:
        return self._loop.nursery_cpu_s()

    @override
    def obstacle(self) -> str:
        stopped = self._loop.stopped_nursery()
        if stopped is not None:
            return f"process {stopped}, which starts workers, is stopped; continue or end it"
        try:
            with self.blobs.scratch() as directory:
                check_room(directory)
        except BlobError as error:
            return str(error)
        except OSError as error:
            return f"what workers build cannot be kept ({error.strerror}); make room in TUNERY_CACHE"
        return ""

    def _record(self, name: str) -> Worker:
        if name not in self._workers:
            raise EngineError(f"there is no worker {name!r}; this engine has {', '.join(self._workers) or 'none'}")
        return self._workers[name]


def _check_descriptors() -> None:
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if allowed < _LEAST_DESCRIPTORS:
        raise UsageError(
            f"this process may open {allowed} files at once, and its workers need {_LEAST_DESCRIPTORS}; raise the "
            "limit, as with `ulimit -n 1024`, and give the same command again"
        )


def _close(loop: Loop, own: str | None, own_blobs: Blobs | None, owner: int) -> None:
    loop.close()
    if own_blobs is not None:
        own_blobs.close()
    if own is not None and os.getpid() == owner:
        shutil.rmtree(own, ignore_errors=True)
