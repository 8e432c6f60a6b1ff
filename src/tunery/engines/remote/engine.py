"""Another host's processes as an engine, through the agent that a command reaches there.

The workers and their calls are here: each call waits its turn, then for its blobs, then for its answer.
"""

import itertools
import json
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pydantic import TypeAdapter
from typing_extensions import override

from tunery._errors import BlobError, CrashError, EngineError, FullHostError, HostError, LostWorkerError
from tunery.blobs import Blobs
from tunery.domain import Check, Task
from tunery.engines._base import OnUsage, WorkerSpec, check_deadline
from tunery.engines._payload import Signatures, error_from_data, signatures
from tunery.engines.remote._connection import AgentConnection, open_blob
from tunery.engines.remote._link import HostLink, Timing
from tunery.engines.remote._protocol import ProtocolError, check_told, pack


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


class AgentEngine(HostLink):
    """Workers on the host that `connect`, any command that passes its input and output on, reaches.

    The command is started at once and again whenever it ends, later and later; a call that is in flight then fails with
    LostWorkerError, calls that wait are made when the host is back, or fail so after `patience_s`. A host whose agent
    is of another version is not tried again. `blobs` are the caller's: what a call's arguments and settings name
    (`BlobDigest`) is copied to the host before it is made, once, and what its result names is copied back before its
    future is done.

    Raises:
        HostError: the command is empty or cannot be read.

    Example:
        with AgentEngine("pi4", "ssh pi@10.0.0.7", blobs) as engine:
            worker = engine.start(WorkerSpec(Role.BUILDER, "package.module:Builder"))
            engine.call(worker, "build", task, candidate, deadline_s=10).result()
    """

    def __init__(
        self, name: str, connect: str, blobs: Blobs, on_usage: OnUsage | None = None, timing: Timing | None = None
    ) -> None:
        super().__init__(name, connect, blobs, timing)
        self.blobs = blobs
        blobs.followers = (*blobs.followers, self._released)
        self._on_usage = on_usage
        self._numbers = itertools.count(1)
        self._workers: dict[str, RemoteWorker] = {}
        self._in_flight: dict[int, RemoteCall] = {}
        self._holds: dict[int, Future[Callable[[], None]]] = {}
        self._checks: list[Future[tuple[Check, ...]]] = []
        self._begin()

    def checks(self, *, measuring: bool = False) -> Future[tuple[Check, ...]]:
        """Have the host look at what its workers need, all of them or those that only run kernels (`measuring`).

        The future fails with LostWorkerError if it is away.
        """
        future: Future[tuple[Check, ...]] = Future()

        def ask(connection: AgentConnection) -> None:
            self._checks.append(future)
            connection.writer.send({"do": "check", "measuring": measuring})

        self._post(lambda: self._ask(future, ask))
        return future

    @override
    def hold_device(self, host: str = "") -> Future[Callable[[], None]]:
        future: Future[Callable[[], None]] = Future()
        number = next(self._numbers)

        def ask(connection: AgentConnection) -> None:
            self._holds[number] = future
            connection.writer.send({"do": "hold", "id": number})

        self._post(lambda: self._ask(future, ask))
        return future

    def _ask(self, future: Future[Any], ask: Callable[[AgentConnection], None]) -> None:
        if self._live is None:
            future.set_exception(self._lost())
        else:
            ask(self._live)

    @override
    def start(self, spec: WorkerSpec) -> str:
        self.host_of(spec)
        if spec.environment.python:
            raise EngineError(f"{spec.environment.python} is a Python of this host, and {self.name} is another one")
        methods = signatures(spec.service)
        worker = RemoteWorker(
            f"{spec.role.value}-{next(self._numbers)}", spec, methods, methods.encode_settings(spec.settings),
            methods.blobs_in_settings(spec.settings),
        )  # fmt: skip
        self._post(lambda: None)  # refuses where this is closed
        self._workers[worker.name] = worker
        self._post(lambda: self._prepare(worker))
        return worker.name

    @override
    def call(self, worker: str, method: str, *args: object, deadline_s: float) -> Future[Any]:
        check_deadline(deadline_s)
        record = self._record(worker)
        body = record.methods.encode_arguments(method, args)
        number = next(self._numbers)
        header = {
            "do": "call", "id": number, "worker": worker, "method": method, "count": len(args),
            "deadline_s": None if deadline_s == math.inf else deadline_s,
        }  # fmt: skip
        frame, blobs = pack(header, body), record.methods.blobs_in_arguments(method, args)
        call = RemoteCall(number, record, method, frame, blobs, deadline_s)
        call.task = next((one for one in args if isinstance(one, Task)), None)
        self._post(lambda: self._enqueue(call))
        return call.future

    @override
    def kill(self, worker: str) -> None:
        record = self._record(worker)
        record.pid = None
        self._post(lambda: self._kill(record))

    @override
    def generation(self, worker: str) -> int:
        return self._record(worker).generation

    @override
    def place(self, worker: str, cores: tuple[int, ...]) -> None:
        record = self._record(worker)
        record.spec = replace(record.spec, cores=cores)
        self._post(lambda: self._send_to(record, {"do": "place", "cores": list(cores)}))

    @override
    def pid(self, worker: str) -> int | None:
        return self._record(worker).pid

    @override
    def cpu_s(self, worker: str) -> float:
        return self._record(worker).cpu_s

    def _record(self, name: str) -> RemoteWorker:
        if name not in self._workers:
            known = ", ".join(self._workers) or "none"
            raise EngineError(f"there is no worker {name!r}; {self.name} has {known}")
        return self._workers[name]

    # What follows runs on the link's thread.

    def _prepare(self, worker: RemoteWorker) -> None:
        """Have the agent start a worker, unless it waits for a blob: then its first call does."""
        if self._live is not None and not worker.blobs:
            self._start(self._live, worker)

    def _enqueue(self, call: RemoteCall) -> None:
        call.worker.queue.append(call)
        self._pump(call.worker)

    def _kill(self, worker: RemoteWorker) -> None:
        call = worker.current
        self._send_to(worker, {"do": "kill"})
        if call is not None and not call.sent:
            self._end(call, CrashError(f"{worker.name} was killed on request", exitcode=-9))
            self._pump(worker)

    def _send_to(self, worker: RemoteWorker, what: dict[str, Any]) -> None:
        """Send the agent a word for a worker that runs."""
        if self._live is not None and worker.name in self._live.started:
            self._live.writer.send({**what, "worker": worker.name})

    def _released(self, digest: str) -> None:
        def forget() -> None:
            if self._live is not None and digest in self._live.there:
                self._live.there.discard(digest)
                self._live.writer.send({"do": "release", "blob": digest})

        self._post_if_open(forget)

    # What the link tells.

    @override
    def _begun(self) -> None:
        for worker in self._workers.values():
            self._prepare(worker)
        for worker in self._workers.values():
            self._pump(worker)

    @override
    def _fail_in_flight(self) -> None:
        for worker in self._workers.values():
            worker.past_generations = worker.generation
            worker.past_cpu_s, worker.pid, worker.current = worker.cpu_s, None, None
        calls, self._in_flight = list(self._in_flight.values()), {}
        for call in calls:
            call.fail(self._lost_during(call))
        self._fail_questions(self._lost())

    @override
    def _waits(self) -> bool:
        return any(worker.queue for worker in self._workers.values())

    @override
    def _overdue(self, late_s: float) -> str:
        before_s = time.monotonic() - late_s
        late = (call for call in self._in_flight.values() if call.due_s < before_s and call.worker.current is call)
        return next((f"{call.worker.name}.{call.method}" for call in late), "")

    @override
    def _fail_waiting(self) -> None:
        for worker in self._workers.values():
            calls, worker.queue = worker.queue, deque()
            for call in calls:
                call.fail(self._lost_during(call))

    @override
    def _fail_all(self) -> None:
        self.blobs.followers = tuple(one for one in self.blobs.followers if one != self._released)
        waiting = [call for worker in self._workers.values() for call in worker.queue]
        for call in (*self._in_flight.values(), *waiting):
            call.fail(CrashError(f"{call.worker.name} was ended: the engine was closed", exitcode=-9))
        self._fail_questions(EngineError("the engine is closed"))

    def _fail_questions(self, error: EngineError) -> None:
        questions: list[Future[Any]] = [*self._holds.values(), *self._checks]
        self._holds, self._checks = {}, []
        for future in questions:
            if not future.done():
                future.set_exception(error)

    def _lost_during(self, call: RemoteCall) -> LostWorkerError:
        return self._lost(f"{call.worker.name} was lost during {call.method}: ")

    @override
    def _take(self, header: dict[str, Any], body: bytes) -> None:
        known: Mapping[str, Callable[[dict[str, Any], bytes], None]] = {
            "answer": self._answered, "usage": self._told_usage, "wanted": self._wanted, "stored": self._stored,
            "pong": self._ponged, "held": self._held, "checked": self._checked,
        }  # fmt: skip
        known[header["do"]](header, body)

    @override
    def _received(self, digest: str, failed: str) -> None:
        assert self._live is not None
        for call in self._live.fetching.pop(digest, ()):
            call.needs.discard(digest)
            if call.number in self._in_flight and (failed or not call.needs):
                self._end(call, BlobError(failed) if failed else None)

    # How a call is made.

    def _pump(self, worker: RemoteWorker) -> None:
        """Make a worker's next call if it can take one: first what the call needs is copied."""
        connection = self._live
        if self._hopeless:
            self._fail_waiting()
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
        assert self._live is not None
        call.needs.add(digest)
        waiting = on_their_way.setdefault(digest, [])
        waiting.append(call)
        if len(waiting) == 1:
            self._live.writer.send(question)

    def _make(self, call: RemoteCall) -> None:
        assert self._live is not None
        self._start(self._live, call.worker)
        call.sent, call.due_s = True, time.monotonic() + call.deadline_s
        self._live.writer.send_packed(call.frame)

    def _start(self, connection: AgentConnection, worker: RemoteWorker) -> None:
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
        worker.cpu_s = worker.past_cpu_s + self._seconds(header["cpu_s"])
        worker.pid, worker.current = header["pid"], None
        if header["failed"]:
            self._end(call, error_from_data(json.loads(body), f"{worker.name}.{call.method}"))
        else:
            self._take_result(call, body)
        self._pump(worker)

    def _take_result(self, call: RemoteCall, body: bytes) -> None:
        """End a call with its result, when the blobs that it names are here."""
        assert self._live is not None
        methods = call.worker.methods
        try:
            call.result = methods.decode_result(call.method, body)
        except ValueError as error:
            raise ProtocolError(f"an answer to {call.method} that cannot be read") from error
        check_told(call.result, call.task)
        for digest in methods.blobs_in_result(call.method, call.result):
            self._live.there.add(digest)
            if not self._home.has(digest):
                self._want(call, digest, self._live.fetching, {"do": "fetch", "blob": digest})
        if not call.needs:
            self._end(call)

    def _told_usage(self, header: dict[str, Any], _body: bytes) -> None:
        if self._on_usage is not None:
            used = (self._seconds(header[name]) for name in ("wall_s", "cpu_s"))
            self._on_usage(header["worker"], header["method"], *used)

    def _wanted(self, header: dict[str, Any], _body: bytes) -> None:
        assert self._live is not None
        digest = header["blob"]
        file = None if header["here"] else open_blob(self._home, digest)
        if file is not None:
            self._live.writer.stream(digest, file)
        else:  # it is there; or nobody has it, and the call will say so
            self._arrived(digest, there=header["here"])

    def _stored(self, header: dict[str, Any], _body: bytes) -> None:
        self._arrived(header["blob"], there=not header["failed"], failed=header["failed"])

    def _arrived(self, digest: str, *, there: bool, failed: str = "") -> None:
        assert self._live is not None
        if there:
            self._live.there.add(digest)
        for call in self._live.sending.pop(digest, ()):
            call.needs.discard(digest)
            if call.number not in self._in_flight:
                continue
            if failed:
                self._end(call, FullHostError(f"host {self.name} takes no more: {failed}"))
                self._pump(call.worker)
            elif not call.needs:
                self._make(call)

    def _ponged(self, header: dict[str, Any], _body: bytes) -> None:
        for name, used_s in header["cpu_s"].items():
            worker = self._workers[name]
            worker.cpu_s = max(worker.cpu_s, worker.past_cpu_s + self._seconds(used_s))

    def _held(self, header: dict[str, Any], _body: bytes) -> None:
        """Take the answer to `hold_device`."""
        number, connection = header["id"], self._live
        future = self._holds.pop(number, None)
        if future is None:
            return

        def free() -> None:
            if connection is not None and self._live is connection:
                connection.writer.send({"do": "free", "id": number})

        if header["failed"]:
            future.set_exception(HostError(header["failed"]))
        elif not future.set_running_or_notify_cancel():
            free()
        else:
            future.set_result(lambda: (self._post_if_open(free), None)[1])

    def _checked(self, _header: dict[str, Any], body: bytes) -> None:
        found = TypeAdapter(tuple[Check, ...]).validate_json(body)
        asked, self._checks = self._checks, []
        for future in asked:
            future.set_result(found)
