"""The workers of another host and their calls: each waits its turn, then for its blobs, then for its answer."""

import itertools
import json
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from typing_extensions import override

from tunery._errors import BlobError, CrashError, EngineError, FullHostError, LostWorkerError
from tunery.blobs import Blobs
from tunery.domain import Task
from tunery.engines._base import OnUsage, WorkerSpec
from tunery.engines._payload import Signatures, error_from_data
from tunery.engines.remote._connection import Connection, open_blob
from tunery.engines.remote._link import Link, Listener
from tunery.engines.remote._protocol import ProtocolError, check_told, seconds_of
from tunery.engines.remote._questions import Questions


@dataclass(slots=True, eq=False)
class RemoteCall:
    """One call, from its making to its future's end. `needs` are the blobs that are still on their way; an answer is
    due at `due_s`, on the monotonic clock.
    """

    number: int
    worker: "RemoteWorker"
    method: str
    frame: bytes
    blobs: tuple[str, ...]
    deadline_s: float
    future: Future[Any] = field(default_factory=Future)
    needs: set[str] = field(default_factory=set)
    result: Any = None
    sent: bool = False
    due_s: float = math.inf
    task: Task | None = None

    def fail(self, error: BaseException) -> None:
        """End the call with an error, unless it has ended or was cancelled."""
        if not self.future.done() and (self.future.running() or self.future.set_running_or_notify_cancel()):
            self.future.set_exception(error)


@dataclass(slots=True, eq=False)
class RemoteWorker:
    """A worker as it is wished, and what the agent has said of it; sums over earlier connections are `past`."""

    name: str
    spec: WorkerSpec
    methods: Signatures
    settings: bytes
    blobs: tuple[str, ...]
    queue: deque[RemoteCall] = field(default_factory=deque)
    current: RemoteCall | None = None
    pid: int | None = None
    generation: int = 1
    past_generations: int = 0
    cpu_s: float = 0.0
    past_cpu_s: float = 0.0


class Calls(Listener):
    """Makes calls over a link, one at a time for each worker; all of it runs on the link's thread but `find`."""

    def __init__(self, link: Link, blobs: Blobs, on_usage: OnUsage | None) -> None:
        self.numbers = itertools.count(1)
        self.questions = Questions(link, self.numbers)
        self.workers: dict[str, RemoteWorker] = {}
        self._link, self._home, self._on_usage = link, blobs, on_usage
        self._in_flight: dict[int, RemoteCall] = {}
        self._connection: Connection | None = None

    def find(self, name: str) -> RemoteWorker:
        """Return what is known of a worker."""
        if name not in self.workers:
            known = ", ".join(self.workers) or "none"
            raise EngineError(f"there is no worker {name!r}; {self._link.host} has {known}")
        return self.workers[name]

    def prepare(self, worker: RemoteWorker) -> None:
        """Have the agent start a worker, unless it waits for a blob: then its first call does."""
        if self._connection is not None and not worker.blobs:
            self._start(self._connection, worker)

    def enqueue(self, call: RemoteCall) -> None:
        call.worker.queue.append(call)
        self._pump(call.worker)

    def kill(self, worker: RemoteWorker) -> None:
        call = worker.current
        self.tell(worker, {"do": "kill"})
        if call is not None and not call.sent:
            self._end(call, CrashError(f"{worker.name} was killed on request", exitcode=-9))
            self._pump(worker)

    def tell(self, worker: RemoteWorker, what: dict[str, Any]) -> None:
        """Send the agent a word for a worker that runs."""
        if self._connection is not None and worker.name in self._connection.started:
            self._connection.writer.send({**what, "worker": worker.name})

    def release(self, digest: str) -> None:
        """Let the host forget a blob."""
        if self._connection is not None and digest in self._connection.there:
            self._connection.there.discard(digest)
            self._connection.writer.send({"do": "release", "blob": digest})

    # What the link tells.

    @override
    def begun(self, connection: Connection) -> None:
        self._connection = self.questions.connection = connection
        for worker in self.workers.values():
            self.prepare(worker)
        for worker in self.workers.values():
            self._pump(worker)

    @override
    def lost(self) -> None:
        self._connection = self.questions.connection = None
        for worker in self.workers.values():
            worker.past_generations = worker.generation
            worker.past_cpu_s, worker.pid, worker.current = worker.cpu_s, None, None
        calls, self._in_flight = list(self._in_flight.values()), {}
        for call in calls:
            call.fail(self._lost(call))
        self.questions.give_up(self._link.lost())

    @property
    @override
    def waits(self) -> bool:
        return any(worker.queue for worker in self.workers.values())

    @override
    def overdue(self, late_s: float) -> str:
        before_s = time.monotonic() - late_s
        late = (call for call in self._in_flight.values() if call.due_s < before_s and call.worker.current is call)
        return next((f"{call.worker.name}.{call.method}" for call in late), "")

    @override
    def given_up(self) -> None:
        for worker in self.workers.values():
            calls, worker.queue = worker.queue, deque()
            for call in calls:
                call.fail(self._lost(call))

    @override
    def closed(self) -> None:
        waiting = [call for worker in self.workers.values() for call in worker.queue]
        for call in (*self._in_flight.values(), *waiting):
            call.fail(CrashError(f"{call.worker.name} was ended: the engine was closed", exitcode=-9))
        self.questions.give_up(EngineError("the engine is closed"))

    @override
    def heard(self, header: dict[str, Any], body: bytes) -> None:
        known: Mapping[str, Callable[[dict[str, Any], bytes], None]] = {
            "answer": self._answered, "usage": self._used, "wanted": self._wanted, "stored": self._stored,
            "pong": self._ponged, "held": self.questions.held, "checked": self.questions.checked,
        }  # fmt: skip
        known[header["do"]](header, body)

    @override
    def received(self, digest: str, failed: str) -> None:
        assert self._connection is not None
        for call in self._connection.fetching.pop(digest, ()):
            call.needs.discard(digest)
            if call.number in self._in_flight and (failed or not call.needs):
                self._end(call, BlobError(failed) if failed else None)

    # How a call is made.

    def _lost(self, call: RemoteCall) -> LostWorkerError:
        return self._link.lost(f"{call.worker.name} was lost during {call.method}: ")

    def _pump(self, worker: RemoteWorker) -> None:
        """Make a worker's next call if it can take one: first what the call needs is copied."""
        connection = self._connection
        if self._link.hopeless:
            self.given_up()
        if connection is None or worker.current is not None:
            return
        while worker.queue:
            call = worker.queue.popleft()
            if call.future.set_running_or_notify_cancel():
                break
        else:
            return
        worker.current = self._in_flight[call.number] = call
        started = worker.name in connection.started
        for digest in (*call.blobs, *(() if started else worker.blobs)):
            if digest not in connection.there:
                self._want(call, digest, connection.sending, {"do": "want", "blob": digest})
        if not call.needs:
            self._make(call)

    def _want(
        self, call: RemoteCall, digest: str, on_their_way: dict[str, list[Any]], question: dict[str, Any]
    ) -> None:
        """Have a call wait for a blob; the first that does asks for it."""
        assert self._connection is not None
        call.needs.add(digest)
        waiting = on_their_way.setdefault(digest, [])
        waiting.append(call)
        if len(waiting) == 1:
            self._connection.writer.send(question)

    def _make(self, call: RemoteCall) -> None:
        assert self._connection is not None
        self._start(self._connection, call.worker)
        call.sent, call.due_s = True, time.monotonic() + call.deadline_s
        self._connection.writer.send_packed(call.frame)

    def _start(self, connection: Connection, worker: RemoteWorker) -> None:
        if worker.name in connection.started:
            return
        connection.started.add(worker.name)
        spec = {
            **{key: getattr(worker.spec, key) for key in ("service", "threads", "nice", "memory_bytes")},
            "role": worker.spec.role.value, "cores": list(worker.spec.cores),
            "environment": asdict(replace(worker.spec.environment, variables=dict(worker.spec.environment.variables))),
        }  # fmt: skip
        names = list(worker.spec.settings)
        connection.writer.send({"do": "start", "worker": worker.name, "spec": spec, "settings": names}, worker.settings)

    def _end(self, call: RemoteCall, error: Exception | None = None) -> None:
        del self._in_flight[call.number]
        if call.worker.current is call:
            call.worker.current = None
        if error is None:
            call.future.set_result(call.result)
        else:
            call.fail(error)

    # What the agent says.

    def _answered(self, header: dict[str, Any], body: bytes) -> None:
        call = self._in_flight.get(header["id"])
        if call is None or not call.sent or call.worker.current is not call:
            return  # it was answered before
        worker = call.worker
        worker.generation = worker.past_generations + int(header["generation"])
        worker.cpu_s = worker.past_cpu_s + seconds_of(header["cpu_s"], self._link.most_cpu_s)
        worker.pid, worker.current = header["pid"], None
        if header["failed"]:
            self._end(call, error_from_data(json.loads(body), f"{worker.name}.{call.method}"))
        else:
            self._take(call, body)
        self._pump(worker)

    def _take(self, call: RemoteCall, body: bytes) -> None:
        """End a call with its result, when the blobs that it names are here."""
        assert self._connection is not None
        methods = call.worker.methods
        try:
            call.result = methods.decode_result(call.method, body)
        except ValueError as error:
            raise ProtocolError(f"an answer to {call.method} that cannot be read") from error
        check_told(call.result, call.task)
        for digest in methods.blobs_in_result(call.method, call.result):
            self._connection.there.add(digest)
            if not self._home.has(digest):
                self._want(call, digest, self._connection.fetching, {"do": "fetch", "blob": digest})
        if not call.needs:
            self._end(call)

    def _used(self, header: dict[str, Any], _body: bytes) -> None:
        if self._on_usage is not None:
            used = (seconds_of(header[name], self._link.most_cpu_s) for name in ("wall_s", "cpu_s"))
            self._on_usage(header["worker"], header["method"], *used)

    def _wanted(self, header: dict[str, Any], _body: bytes) -> None:
        assert self._connection is not None
        digest = header["blob"]
        file = None if header["here"] else open_blob(self._home, digest)
        if file is not None:
            self._connection.writer.stream(digest, file)
        else:  # it is there; or nobody has it, and the call will say so
            self._arrived(digest, there=header["here"])

    def _stored(self, header: dict[str, Any], _body: bytes) -> None:
        self._arrived(header["blob"], there=not header["failed"], failed=header["failed"])

    def _arrived(self, digest: str, *, there: bool, failed: str = "") -> None:
        assert self._connection is not None
        if there:
            self._connection.there.add(digest)
        for call in self._connection.sending.pop(digest, ()):
            call.needs.discard(digest)
            if call.number not in self._in_flight:
                continue
            if failed:
                self._end(call, FullHostError(f"host {self._link.host} takes no more: {failed}"))
                self._pump(call.worker)
            elif not call.needs:
                self._make(call)

    def _ponged(self, header: dict[str, Any], _body: bytes) -> None:
        for name, used_s in header["cpu_s"].items():
            worker = self.workers[name]
            worker.cpu_s = max(worker.cpu_s, worker.past_cpu_s + seconds_of(used_s, self._link.most_cpu_s))
