"""Workers in one table, each with its queue, the call in flight and what it has used, whatever carries the frames."""

import itertools
import logging
import math
import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from typing_extensions import override

from tunery._errors import CrashError, EngineError
from tunery.blobs import Blobs
from tunery.domain import Task
from tunery.engines._base import Engine, OnUsage, WorkerSpec, check_deadline
from tunery.engines._loop import MOST_BODY_BYTES, MOST_SENT_BYTES, Loop, pack
from tunery.engines._payload import Signatures, signatures

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Call:
    """One call, from its making to its future's end. `needs` are the `blobs` that are on their way between two hosts,
    `task` what it measures."""

    number: int
    method: str
    message: bytes
    deadline_s: float
    decode: Callable[[bytes], Any] = bytes
    blobs: tuple[str, ...] = ()
    task: Task | None = None
    future: Future[Any] = field(default_factory=Future)
    taken_s: float = 0.0
    needs: set[str] = field(default_factory=set)
    result: Any = None

    def claim(self) -> bool:
        """Mark the future as running; False where its owner has cancelled it, or it has ended."""
        return not self.future.done() and (self.future.running() or self.future.set_running_or_notify_cancel())

    def fail(self, error: BaseException) -> None:
        """End the call with an error, unless it has ended or was cancelled."""
        if self.claim():
            self.future.set_exception(error)


@dataclass(slots=True, eq=False)
class Worker:
    """A worker as it is wished, its queue and the call in flight; `past_cpu_s` is what its ended processes have used.
    `methods` is None where its calls come encoded."""

    name: str
    spec: WorkerSpec
    methods: Signatures | None
    setting_names: Sequence[str]
    settings: bytes
    queue: deque[Call] = field(default_factory=deque)
    current: Call | None = None
    generation: int = 1
    past_cpu_s: float = 0.0

    def pop(self) -> Call | None:
        while self.queue:
            call = self.queue.popleft()
            if call.claim():
                return call
        return None


AWorker = TypeVar("AWorker", bound=Worker)


class TableEngine(Engine, Generic[AWorker]):
    """An engine with a thread, on which all runs that begins with an underscore; a subclass starts it when it is ready.
    It says when something is due (`_due_s`, `_tick`), how a worker begins (`_begin`) and is given its next call
    (`_pump`), and how it ends (`_close`)."""

    is_elsewhere = False
    """Whether its workers are on another host, which has other blobs."""

    def __init__(self, blobs: Blobs, on_usage: OnUsage | None, thread: str) -> None:
        self.blobs, self._on_usage = blobs, on_usage
        self._numbers = itertools.count(1)
        self._workers: dict[str, AWorker] = {}  # other threads add to it
        self._loop = Loop(self._due_s, self._tick, self._fault)
        self._thread = threading.Thread(target=self._loop.run, args=(self._is_over,), name=thread, daemon=True)

    @abstractmethod
    def _worker(
        self, name: str, spec: WorkerSpec, methods: Signatures | None, names: Sequence[str], settings: bytes
    ) -> AWorker: ...

    @abstractmethod
    def _begin(self, worker: AWorker) -> None: ...

    @abstractmethod
    def _pump(self, worker: AWorker) -> None: ...

    @abstractmethod
    def _due_s(self) -> float: ...

    @abstractmethod
    def _tick(self) -> None: ...

    @abstractmethod
    def _is_over(self) -> bool: ...

    @abstractmethod
    def _close(self) -> None: ...

    def _closed(self) -> None:
        """Release what is this engine's own, on the thread that has closed it."""

    def _reset(self, worker: AWorker, reason: EngineError) -> None:
        """Have a worker whose calls have failed by a fault of ours begin anew."""

    @override
    def start(self, spec: WorkerSpec) -> str:
        self.host_of(spec)
        methods = signatures(spec.service)
        return self._admit(spec, methods, list(spec.settings), methods.encode_settings(spec.settings))

    def start_encoded(self, spec: WorkerSpec, names: Sequence[str], settings: bytes) -> str:
        """Start a worker whose settings, called `names`, are JSON already; those in `spec` are not looked at. The
        service is imported in the worker alone: where it cannot be, each call fails with that."""
        return self._admit(spec, None, names, settings)

    def _admit(self, spec: WorkerSpec, methods: Signatures | None, names: Sequence[str], settings: bytes) -> str:
        name = f"{spec.role.value}-{next(self._numbers)}"
        worker = self._worker(name, spec, methods, names, settings)
        self._workers[name] = worker
        self._loop.ask(lambda: None if self._loop.closed else self._begin(worker))
        return name

    @override
    def call(self, worker: str, method: str, *args: object, deadline_s: float) -> Future[Any]:
        check_deadline(deadline_s)
        record = self._record(worker)
        methods = record.methods
        assert methods is not None
        call = self._call(record, method, len(args), methods.encode_arguments(method, args), deadline_s)
        call.decode = partial(methods.decode_result, method)
        if self.is_elsewhere:
            call.blobs = methods.blobs_in_arguments(method, args)
            call.task = next((argument for argument in args if isinstance(argument, Task)), None)
        return self._enqueue(record, call)

    def call_encoded(self, worker: str, method: str, count: int, body: bytes, deadline_s: float) -> Future[bytes]:
        """Call a method with `count` arguments that are JSON already; the future gives the result as JSON."""
        record = self._record(worker)
        return self._enqueue(record, self._call(record, method, count, body, deadline_s))

    def _call(self, worker: AWorker, method: str, count: int, body: bytes, deadline_s: float) -> Call:
        number = next(self._numbers)
        header = {
            "do": "call", "id": number, "worker": worker.name, "method": method, "count": count,
            "deadline_s": None if deadline_s == math.inf else deadline_s,
        }  # fmt: skip
        message = pack(header, body, MOST_SENT_BYTES if self.is_elsewhere else MOST_BODY_BYTES)
        return Call(number, method, message, deadline_s)

    def _enqueue(self, worker: AWorker, call: Call) -> Future[Any]:
        def append() -> None:
            if self._loop.closed:
                call.fail(self._unanswered(worker, call))
                return
            worker.queue.append(call)
            self._pump(worker)

        self._loop.ask(append)
        return call.future

    @override
    def generation(self, worker: str) -> int:
        return self._record(worker).generation

    @override
    def close(self) -> None:
        first = self._loop.post(self._close, last=True)
        if threading.current_thread() is not self._thread:
            self._thread.join()
        if first:
            self._closed()

    def _record(self, name: str) -> AWorker:
        if name not in self._workers:
            raise EngineError(f"there is no worker {name!r}; this engine has {', '.join(self._workers) or 'none'}")
        return self._workers[name]

    def _every(self) -> list[AWorker]:
        return list(self._workers.values())

    def _fault(self, error: Exception) -> None:
        """End every call after a failure of our own: nobody can say which of them it has lost."""
        _log.exception("the engine met a fault of its own")
        reason = EngineError(f"the engine failed ({type(error).__name__}: {error}); give the same command again")
        for worker in self._every():
            calls, worker.queue = [*filter(None, [worker.current]), *worker.queue], deque()
            worker.current = None
            self._reset(worker, reason)
            for call in calls:
                call.fail(reason)

    def _unanswered(self, worker: AWorker, call: Call) -> EngineError:
        return CrashError(f"{worker.name} did not take up {call.method}: the engine was closed")

    def _fail_waiting(self, worker: AWorker, reason: Callable[[Call], EngineError]) -> None:
        calls, worker.queue = worker.queue, deque()
        for call in calls:
            call.fail(reason(call))

    def _report(self, worker: str, method: str, wall_s: float, cpu_s: float) -> None:
        if self._on_usage is None:
            return
        try:
            self._on_usage(worker, method, wall_s, cpu_s)
        except Exception:  # noqa: BLE001 - a ledger's fault is not the call's
            _log.exception("the listener of the engine's usage failed")
