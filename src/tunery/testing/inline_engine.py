"""The fake engine: services live in this process, on threads, for fast tests of the layers above."""

import itertools
import logging
import math
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

from typing_extensions import override

from tunery._errors import CrashError, DeadlineError, EngineError
from tunery.blobs import Blobs
from tunery.engines._base import Engine, OnUsage, WorkerSpec, check_deadline
from tunery.engines._payload import Signatures, error_from_data, error_to_data, signatures
from tunery.testing.fake_blobs import FakeBlobs

_log = logging.getLogger(__name__)
_KILLED = object()


@dataclass(frozen=True, slots=True)
class _Done:
    value: bytes | Exception
    wall_s: float
    cpu_s: float


@dataclass(slots=True, eq=False)
class _Call:
    method: str
    body: bytes
    count: int
    deadline_s: float
    future: Future[Any] = field(default_factory=Future)


class _Incarnation:
    """One life of a service on a thread of its own; abandoned, it finishes its work unheard."""

    def __init__(self, create: Callable[[], object], methods: Signatures, name: str) -> None:
        self.inbox: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self.outbox: queue.SimpleQueue[_Done | object] = queue.SimpleQueue()
        self._create, self._methods = create, methods
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        service: object = None

        def create() -> bytes:
            nonlocal service
            service = self._create()
            return b""

        first = self._timed(create)
        self.outbox.put(first)
        if isinstance(first.value, Exception):
            return
        while (call := self.inbox.get()) is not None:
            self.outbox.put(self._timed(lambda call=call: self._answer(service, call)))  # type: ignore[misc]

    def _answer(self, service: object, call: _Call) -> bytes:
        arguments = self._methods.decode_arguments(call.method, call.count, call.body)
        return self._methods.encode_result(call.method, getattr(service, call.method)(*arguments))

    def _timed(self, action: Callable[[], bytes]) -> _Done:
        wall, cpu = time.monotonic(), time.thread_time()
        value: bytes | Exception
        try:
            value = action()
        except BaseException as error:  # noqa: BLE001 - it is the caller's answer
            value = error_from_data(error_to_data(error), threading.current_thread().name)
        return _Done(value, time.monotonic() - wall, time.thread_time() - cpu)


class _Worker:
    """A queue, the present incarnation, and the thread that feeds it one call at a time."""

    def __init__(self, name: str, create: Callable[[], object], methods: Signatures, on_usage: OnUsage | None) -> None:
        self.name, self.methods = name, methods
        self.generation = 1
        self.calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self.closed = False
        self._create, self._on_usage = create, on_usage
        self._life: _Incarnation | None = self._incarnate()
        self._fresh = True
        self._busy = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"{name}-calls", daemon=True)
        self._thread.start()

    def kill(self) -> None:
        with self._lock:
            life, self._life = self._life, None
            if life is not None:
                life.outbox.put(_KILLED)
                life.inbox.put(None)

    def close(self) -> None:
        self.closed = True
        self.kill()
        self.calls.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _incarnate(self) -> _Incarnation:
        return _Incarnation(self._create, self.methods, self.name)

    def _run(self) -> None:
        while (call := self.calls.get()) is not None:
            if not call.future.set_running_or_notify_cancel():
                continue
            if self.closed:
                call.future.set_exception(
                    CrashError(f"{self.name} did not take up {call.method}: the engine was closed")
                )
                continue
            try:
                result = self.methods.decode_result(call.method, self._serve(call))
            except Exception as error:  # noqa: BLE001 - it is the caller's answer
                call.future.set_exception(error)
            else:
                call.future.set_result(result)

    def _serve(self, call: _Call) -> bytes:
        life = self._living()
        if self._fresh:
            self._wait(life, "__init__", math.inf)
            self._fresh = False
        life.inbox.put(call)
        return self._wait(life, call.method, call.deadline_s)

    def _living(self) -> _Incarnation:
        with self._lock:
            if self._life is None:
                self._life, self._fresh = self._incarnate(), True
                self.generation += 1
            return self._life

    def _wait(self, life: _Incarnation, method: str, deadline_s: float) -> bytes:
        began = time.monotonic()
        try:
            done = life.outbox.get(timeout=None if deadline_s == math.inf else deadline_s)
        except queue.Empty:
            self.kill()
            self._report(method, time.monotonic() - began, 0.0)
            raise DeadlineError(f"{self.name} ran {method} past its deadline of {deadline_s:g} s") from None
        if not isinstance(done, _Done):
            self._report(method, time.monotonic() - began, 0.0)
            raise CrashError(f"{self.name} was killed during {method}", exitcode=-9)
        self._report(method, done.wall_s, done.cpu_s)
        if isinstance(done.value, Exception):
            if method == "__init__":
                self.kill()
            raise done.value
        return done.value

    def _report(self, method: str, wall_s: float, cpu_s: float) -> None:
        if self._on_usage is not None:
            try:
                self._on_usage(self.name, method, wall_s, cpu_s)
            except Exception:  # noqa: BLE001 - a ledger's fault is not the call's
                _log.exception("the listener of the engine's usage failed")


class InlineEngine(Engine):
    """Services on threads of this process. Payloads cross the same border as in `LocalEngine`; nothing is isolated.

    A call that passes its deadline, or whose worker is killed, is answered so and the service is replaced by a fresh
    one, but its thread runs on unheard until the method returns. Cores, threads, nice and memory are not applied,
    and there is no host control. Without `blobs` it has temporary ones.
    """

    def __init__(self, on_usage: OnUsage | None = None, blobs: Blobs | None = None) -> None:
        self._owns_blobs = blobs is None
        self.blobs = FakeBlobs() if blobs is None else blobs
        self._on_usage = on_usage
        self._ids = itertools.count(1)
        self._workers: dict[str, _Worker] = {}
        self._closed = False

    @classmethod
    @override
    def open(cls, scratch: Path, blobs: Blobs) -> Self:
        return cls(blobs=blobs)

    @override
    def start(self, spec: WorkerSpec) -> str:
        self._check_open()
        self.host_of(spec)
        methods = signatures(spec.service)
        names, body = list(spec.settings), methods.encode_settings(spec.settings)
        name = f"{spec.role.value}-{next(self._ids)}"
        create = partial(methods.create, names, body, lambda: self.blobs)
        self._workers[name] = _Worker(name, create, methods, self._on_usage)
        return name

    @override
    def call(self, worker: str, method: str, *args: object, deadline_s: float) -> Future[Any]:
        check_deadline(deadline_s)
        record = self._record(worker)
        self._check_open()
        call = _Call(method, record.methods.encode_arguments(method, args), len(args), deadline_s)
        record.calls.put(call)
        return call.future

    @override
    def kill(self, worker: str) -> None:
        self._record(worker).kill()

    @override
    def generation(self, worker: str) -> int:
        return self._record(worker).generation

    @override
    def close(self) -> None:
        self._closed = True
        for worker in self._workers.values():
            worker.close()
        if self._owns_blobs:
            self.blobs.close()

    def _check_open(self) -> None:
        if self._closed:
            raise EngineError("the engine is closed")

    def _record(self, worker: str) -> _Worker:
        if worker not in self._workers:
            raise EngineError(f"there is no worker {worker!r}; this engine has {', '.join(self._workers) or 'none'}")
        return self._workers[worker]
