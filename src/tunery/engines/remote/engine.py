"""Another host's processes as an engine, through the agent that a command reaches there."""

import itertools
import json
import logging
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter
from typing_extensions import override

from tunery._errors import BlobError, CrashError, EngineError, HostError, LostWorkerError
from tunery.blobs import Blobs
from tunery.domain import Check, HostFacts
from tunery.engines._base import Engine, HostControl, OnUsage, WorkerSpec, check_deadline
from tunery.engines._followed import FollowedBlobs
from tunery.engines._payload import Signatures, error_from_data, signatures
from tunery.engines.remote._connection import Connection, agent_command, on_thread, open_blob
from tunery.engines.remote._protocol import pack
from tunery.engines.remote.agent import MISSED_KEEP_ALIVES

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Timing:
    """When a silent host counts as gone, in seconds, and how long calls wait for one that is."""

    keep_alive_s: float = 5.0
    greeting_s: float = 60.0
    patience_s: float = 60.0
    first_retry_s: float = 0.5
    last_retry_s: float = 30.0


@dataclass(slots=True, eq=False)
class _Call:
    """One call, from its making to its future's end. `needs` are the blobs that are still on their way."""

    number: int
    worker: "_Worker"
    method: str
    frame: bytes
    blobs: tuple[str, ...]
    future: Future[Any] = field(default_factory=Future)
    needs: set[str] = field(default_factory=set)
    result: Any = None
    sent: bool = False

    def fail(self, error: BaseException) -> None:
        """End the call with an error, unless it has ended or was cancelled."""
        if not self.future.done() and (self.future.running() or self.future.set_running_or_notify_cancel()):
            self.future.set_exception(error)


@dataclass(slots=True, eq=False)
class _Worker:
    """A worker as it is wished, and what the agent has said of it; sums over earlier connections are `past`."""

    name: str
    spec: WorkerSpec
    methods: Signatures
    settings: bytes
    blobs: tuple[str, ...]
    queue: deque[_Call] = field(default_factory=deque)
    current: _Call | None = None
    pid: int | None = None
    generation: int = 1
    past_generations: int = 0
    cpu_s: float = 0.0
    past_cpu_s: float = 0.0


class AgentEngine(Engine):
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
        self.name = name
        self._command = agent_command(connect)
        self._home, self._timing, self._on_usage = blobs, timing or Timing(), on_usage
        self.blobs = FollowedBlobs(blobs, [self._released])
        self.control = AgentControl(self)
        self.workers: dict[str, _Worker] = {}
        self.own_cpu_s = 0.0
        self._past_own_cpu_s = 0.0
        self._facts: HostFacts | None = None
        self._trouble = "it has not answered yet"
        self._clock_off_s: float | None = None
        self._losses = 0
        self._listeners: list[Callable[[str], None]] = []
        self._numbers = itertools.count(1)
        self._calls: dict[int, _Call] = {}
        self._holds: dict[int, Future[Callable[[], None]]] = {}
        self._checks: list[Future[tuple[Check, ...]]] = []
        self._connection: Connection | None = None
        self._talking: threading.Thread | None = None
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = self._over = self._hopeless = False
        self._changed = threading.Condition()
        now_s = time.monotonic()
        self._heard_s = self._pinged_s = self._away_s = self._retry_at_s = now_s
        self._retry_s = self._timing.first_retry_s
        self._thread = on_thread(f"tunery-host-{name}", self._run)

    @classmethod
    @override
    def open(cls, scratch: Path, blobs: Blobs) -> Self:
        raise EngineError("an engine on another host needs the command that reaches it; see `tunery hosts add`")

    # What other threads may use.

    @property
    @override
    def hosts(self) -> tuple[str, ...]:
        return (self.name,)

    @override
    def facts(self, host: str = "") -> HostFacts | None:
        return self._facts

    @override
    def trouble(self, host: str = "") -> str:
        return self._trouble

    @override
    def watch(self, changed: Callable[[str], None]) -> None:
        self._post(lambda: self._listeners.append(changed))

    def wait(self, seconds: float, tries: int = 1 << 30) -> HostFacts:
        """Wait until the host answers and return its facts.

        Raises:
            HostError: it does not, within so many seconds, or connecting has failed so often; the message says why.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._facts is not None or self._hopeless or self._closed or self._losses >= tries, seconds
            )
            if self._facts is None:
                raise HostError(f"host {self.name} cannot be used: {self._trouble}")
            return self._facts

    def clock_off_s(self, seconds: float = 0.0) -> float | None:
        """Return by how much the host's clock is ahead of ours; None where that is not known within so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._clock_off_s is not None, seconds)
            return self._clock_off_s

    def checks(self) -> Future[tuple[Check, ...]]:
        """Have the host look at what its workers need; the future fails with LostWorkerError if it is away."""
        future: Future[tuple[Check, ...]] = Future()

        def ask() -> None:
            if self._connection is None or self._facts is None:
                future.set_exception(self._lost())
            else:
                self._checks.append(future)
                self._connection.writer.send({"do": "check"})

        self._post(ask)
        return future

    @override
    def hold_device(self, host: str = "") -> Future[Callable[[], None]]:
        future: Future[Callable[[], None]] = Future()
        number = next(self._numbers)

        def ask() -> None:
            if self._connection is None or self._facts is None:
                future.set_exception(self._lost())
            else:
                self._holds[number] = future
                self._connection.writer.send({"do": "hold", "id": number})

        self._post(ask)
        return future

    @override
    def start(self, spec: WorkerSpec) -> str:
        self.host_of(spec)
        if spec.environment.python:
            raise EngineError(f"{spec.environment.python} is a Python of this host, and {self.name} is another one")
        methods = signatures(spec.service)
        settings = methods.encode_settings(spec.settings)
        worker = _Worker(
            f"{spec.role.value}-{next(self._numbers)}", spec, methods, settings,
            methods.blobs_in_settings(spec.settings),
        )  # fmt: skip
        self._post(lambda: None)  # refuses where this is closed
        self.workers[worker.name] = worker
        self._post(lambda: self._begin(worker))
        return worker.name

    @override
    def call(self, worker: str, method: str, *args: object, deadline_s: float) -> Future[Any]:
        check_deadline(deadline_s)
        record = self.record(worker)
        body = record.methods.encode_arguments(method, args)
        number = next(self._numbers)
        header = {
            "do": "call", "id": number, "worker": worker, "method": method, "count": len(args),
            "deadline_s": None if deadline_s == math.inf else deadline_s,
        }  # fmt: skip
        call = _Call(number, record, method, pack(header, body), record.methods.blobs_in_arguments(method, args))

        def enqueue() -> None:
            record.queue.append(call)
            self._pump(record)

        self._post(enqueue)
        return call.future

    @override
    def kill(self, worker: str) -> None:
        record = self.record(worker)
        record.pid = None
        self._post(lambda: self._kill(record))

    @override
    def generation(self, worker: str) -> int:
        return self.record(worker).generation

    @override
    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                self._inbox.put(self._close)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def record(self, name: str) -> _Worker:
        """Return what is known of a worker.

        Raises:
            EngineError: there is none of that name.
        """
        if name not in self.workers:
            known = ", ".join(self.workers) or "none"
            raise EngineError(f"there is no worker {name!r}; {self.name} has {known}")
        return self.workers[name]

    def move(self, worker: _Worker, cores: tuple[int, ...]) -> None:
        """Have a worker run on these CPUs of the host."""
        worker.spec = replace(worker.spec, cores=cores)

        def tell() -> None:
            if self._connection is not None and worker.name in self._connection.started:
                self._connection.writer.send({"do": "place", "worker": worker.name, "cores": list(cores)})

        self._post(tell)

    def _post(self, action: Callable[[], None]) -> None:
        with self._lock:
            if self._closed:
                raise EngineError("the engine is closed")
            self._inbox.put(action)

    def _released(self, digest: str) -> None:
        def tell() -> None:
            connection = self._connection
            if connection is not None and digest in connection.there:
                connection.there.discard(digest)
                connection.writer.send({"do": "release", "blob": digest})

        with self._lock:
            if not self._closed:
                self._inbox.put(tell)

    # What follows runs on the engine's thread.

    def _run(self) -> None:
        while not self._over:
            try:
                action = self._inbox.get(timeout=self._due_s())
            except queue.Empty:
                self._tick()
            else:
                self._do(action)
                if self._due_s() <= 0 and not self._over:
                    self._tick()

    def _do(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception:  # noqa: BLE001 - one call's trouble must not end the others
            _log.exception("the engine of host %s met a fault of its own", self.name)

    def _due_s(self) -> float:
        now_s, timing = time.monotonic(), self._timing
        if self._connection is None:
            retry_at_s = math.inf if self._hopeless else self._retry_at_s
            return max(0.0, min(retry_at_s, self._away_s + timing.patience_s if self._waiting() else math.inf,
                                now_s + 3600.0) - now_s)  # fmt: skip
        if self._facts is None:
            return max(0.0, self._heard_s + timing.greeting_s - now_s)
        return max(0.0, min(self._pinged_s, self._heard_s + (MISSED_KEEP_ALIVES - 1) * timing.keep_alive_s)
                   + timing.keep_alive_s - now_s)  # fmt: skip

    def _tick(self) -> None:
        now_s, timing = time.monotonic(), self._timing
        if self._connection is None:
            if now_s >= self._away_s + timing.patience_s:
                self._fail_waiting()
            if now_s >= self._retry_at_s and not self._hopeless:
                self._connect()
            return
        silent_s = now_s - self._heard_s
        if self._facts is None:
            if silent_s >= timing.greeting_s:
                said = self._connection.said
                what = f"its command gave no agent's greeting within {timing.greeting_s:g} s" + (
                    said and f", but {said}"
                )
                self._lose(HostError(what), hopeless=False)
            return
        if silent_s >= MISSED_KEEP_ALIVES * timing.keep_alive_s:
            self._lose(HostError(f"it has not answered for {silent_s:.0f} s"), hopeless=False)
        elif now_s >= self._pinged_s + timing.keep_alive_s:
            self._ping()

    def _connect(self) -> None:
        self._heard_s = time.monotonic()
        try:
            connection = Connection(self._command, self._home)
        except HostError as error:
            self._lose(error, hopeless=False)
            return
        self._connection = connection
        self._talking = on_thread(
            f"tunery-talk-{self.name}",
            lambda: connection.talk(
                greeted=lambda facts: self._hear(connection, lambda: self._greeted(facts)),
                heard=lambda header, body: self._hear(connection, lambda: self._heard(header, body)),
                received=lambda digest, failed: self._hear(connection, lambda: self._received(digest, failed)),
                gone=lambda error, hopeless: self._hear(connection, lambda: self._lose(error, hopeless=hopeless)),
            ),
        )

    def _hear(self, connection: Connection, action: Callable[[], None]) -> None:
        """Have something that a connection said acted on, unless there is another one by then."""

        def act() -> None:
            if self._connection is connection:
                self._heard_s = time.monotonic()
                try:
                    action()
                except (KeyError, TypeError, ValueError) as error:
                    self._lose(HostError(f"its agent sent what cannot be: {error!r}"), hopeless=False)

        self._inbox.put(act)

    def _greeted(self, facts: HostFacts) -> None:
        assert self._connection is not None
        self._connection.writer.send({"do": "welcome", "keep_alive_s": self._timing.keep_alive_s})
        self._retry_s = self._timing.first_retry_s
        for worker in self.workers.values():
            self._begin(worker, ready=True)
        self._ping()
        self._tell(facts, "")

    def _tell(self, facts: HostFacts | None, trouble: str) -> None:
        with self._changed:
            changed = (facts is None) != (self._facts is None) or self._hopeless
            self._facts, self._trouble = facts, trouble
            self._changed.notify_all()
        if facts is not None:
            for worker in self.workers.values():
                self._pump(worker)
        for listener in self._listeners if changed else ():
            listener(self.name)

    def _ping(self) -> None:
        assert self._connection is not None
        self._pinged_s = time.monotonic()
        self._connection.writer.send({"do": "ping"})

    def _lose(self, error: HostError, *, hopeless: bool) -> None:
        """Give up a connection: what is in flight fails, what waits goes on waiting for the next."""
        connection, self._connection = self._connection, None
        now_s = time.monotonic()
        if self._facts is not None:
            self._away_s = now_s
        self._hopeless = hopeless
        self._losses += 1
        self._retry_at_s = now_s + self._retry_s
        self._retry_s = min(2 * self._retry_s, self._timing.last_retry_s)
        self._tell(None, str(error))
        if connection is not None:
            connection.end(orderly=False)
        for worker in self.workers.values():
            worker.past_generations = worker.generation
            worker.past_cpu_s, worker.pid, worker.current = worker.cpu_s, None, None
        self._past_own_cpu_s = self.own_cpu_s
        calls, self._calls = list(self._calls.values()), {}
        for call in calls:
            call.fail(self._lost(call))
        self._give_up_questions(self._lost())
        if hopeless:
            self._fail_waiting()

    def _lost(self, call: _Call | None = None) -> LostWorkerError:
        what = "" if call is None else f"{call.worker.name} was lost during {call.method}: "
        return LostWorkerError(f"{what}host {self.name} is away: {self._trouble}")

    def _give_up_questions(self, error: EngineError) -> None:
        questions: list[Future[Any]] = [*self._holds.values(), *self._checks]
        self._holds, self._checks = {}, []
        for future in questions:
            if not future.done():
                future.set_exception(error)

    def _waiting(self) -> bool:
        return any(worker.queue for worker in self.workers.values())

    def _fail_waiting(self) -> None:
        for worker in self.workers.values():
            calls, worker.queue = worker.queue, deque()
            for call in calls:
                call.fail(self._lost(call))

    # Workers and calls.

    def _begin(self, worker: _Worker, *, ready: bool = False) -> None:
        """Have the agent start a worker, unless it waits for a blob: then its first call does."""
        if self._connection is None or (self._facts is None and not ready) or worker.blobs:
            return
        self._start(worker)

    def _start(self, worker: _Worker) -> None:
        assert self._connection is not None
        if worker.name in self._connection.started:
            return
        self._connection.started.add(worker.name)
        spec = {
            **{key: getattr(worker.spec, key) for key in ("service", "threads", "nice", "memory_bytes")},
            "role": worker.spec.role.value, "cores": list(worker.spec.cores),
            "environment": asdict(replace(worker.spec.environment, variables=dict(worker.spec.environment.variables))),
        }  # fmt: skip
        names = list(worker.spec.settings)
        self._connection.writer.send(
            {"do": "start", "worker": worker.name, "spec": spec, "settings": names}, worker.settings
        )

    def _pump(self, worker: _Worker) -> None:
        """Make a worker's next call if it can take one: first what the call needs is copied."""
        connection = self._connection
        if self._hopeless:
            self._fail_waiting()
        if connection is None or self._facts is None or worker.current is not None:
            return
        while worker.queue:
            call = worker.queue.popleft()
            if call.future.set_running_or_notify_cancel():
                break
        else:
            return
        worker.current = self._calls[call.number] = call
        started = worker.name in connection.started
        for digest in (*call.blobs, *(() if started else worker.blobs)):
            if digest not in connection.there:
                call.needs.add(digest)
                waiting = connection.sending.setdefault(digest, [])
                waiting.append(call)
                if len(waiting) == 1:
                    connection.writer.send({"do": "want", "blob": digest})
        if not call.needs:
            self._make(call)

    def _make(self, call: _Call) -> None:
        assert self._connection is not None
        self._start(call.worker)
        call.sent = True
        self._connection.writer.send_packed(call.frame)

    def _kill(self, worker: _Worker) -> None:
        connection, call = self._connection, worker.current
        if connection is not None and worker.name in connection.started:
            connection.writer.send({"do": "kill", "worker": worker.name})
        if call is not None and not call.sent:
            self._ended(call)
            call.fail(CrashError(f"{worker.name} was killed on request", exitcode=-9))
            self._pump(worker)

    def _ended(self, call: _Call) -> None:
        del self._calls[call.number]
        if call.worker.current is call:
            call.worker.current = None

    # What the agent says.

    def _heard(self, header: dict[str, Any], body: bytes) -> None:
        known: Mapping[str, Callable[[dict[str, Any], bytes], None]] = {
            "answer": self._answered, "usage": self._used, "wanted": self._wanted, "stored": self._stored,
            "held": self._held, "pong": self._ponged, "checked": self._checked,
        }  # fmt: skip
        known[header["do"]](header, body)

    def _answered(self, header: dict[str, Any], body: bytes) -> None:
        call = self._calls.get(header["id"])
        if call is None or not call.sent or call.worker.current is not call:
            return  # it was answered before
        worker = call.worker
        worker.generation = worker.past_generations + int(header["generation"])
        worker.cpu_s = worker.past_cpu_s + float(header["cpu_s"])
        worker.pid, worker.current = header["pid"], None
        if header["failed"]:
            self._ended(call)
            call.fail(error_from_data(json.loads(body), f"{worker.name}.{call.method}"))
        else:
            self._take(call, body)
        self._pump(worker)

    def _take(self, call: _Call, body: bytes) -> None:
        """End a call with its result, when the blobs that it names are here."""
        assert self._connection is not None
        methods = call.worker.methods
        try:
            call.result = methods.decode_result(call.method, body)
        except ValueError as error:
            self._ended(call)
            call.fail(EngineError(f"{call.worker.name}.{call.method} gave an unreadable result: {error}"))
            return
        for digest in methods.blobs_in_result(call.method, call.result):
            self._connection.there.add(digest)
            if not self._home.has(digest):
                call.needs.add(digest)
                waiting = self._connection.fetching.setdefault(digest, [])
                waiting.append(call)
                if len(waiting) == 1:
                    self._connection.writer.send({"do": "fetch", "blob": digest})
        if not call.needs:
            self._ended(call)
            call.future.set_result(call.result)

    def _received(self, digest: str, failed: str) -> None:
        assert self._connection is not None
        for call in self._connection.fetching.pop(digest, ()):
            call.needs.discard(digest)
            if call.number in self._calls and (failed or not call.needs):
                self._ended(call)
                if failed:
                    call.fail(BlobError(failed))
                else:
                    call.future.set_result(call.result)

    def _used(self, header: dict[str, Any], _body: bytes) -> None:
        if self._on_usage is not None:
            self._on_usage(header["worker"], header["method"], header["wall_s"], header["cpu_s"])

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
            if call.number not in self._calls:
                continue
            if failed:
                self._ended(call)
                call.fail(LostWorkerError(f"host {self.name} takes no more: {failed}"))
                self._pump(call.worker)
            elif not call.needs:
                self._make(call)

    def _held(self, header: dict[str, Any], _body: bytes) -> None:
        number = header["id"]
        future = self._holds.pop(number, None)
        if future is None:
            return
        if header["failed"]:
            future.set_exception(HostError(header["failed"]))
        elif not future.set_running_or_notify_cancel():
            self._free(number, self._connection)
        else:
            future.set_result(partial(self._let_go, number, self._connection))

    def _let_go(self, number: int, connection: Connection | None) -> None:
        with self._lock:
            if not self._closed:
                self._inbox.put(lambda: self._free(number, connection))

    def _free(self, number: int, connection: Connection | None) -> None:
        if connection is not None and self._connection is connection:
            connection.writer.send({"do": "free", "id": number})

    def _ponged(self, header: dict[str, Any], _body: bytes) -> None:
        self._clock_off_s = float(header["clock_s"]) - (time.time() - (time.monotonic() - self._pinged_s) / 2)
        self.own_cpu_s = self._past_own_cpu_s + float(header["own_cpu_s"])
        for name, used_s in header["cpu_s"].items():
            worker = self.workers[name]
            worker.cpu_s = max(worker.cpu_s, worker.past_cpu_s + float(used_s))
        with self._changed:
            self._changed.notify_all()

    def _checked(self, _header: dict[str, Any], body: bytes) -> None:
        found = TypeAdapter(tuple[Check, ...]).validate_json(body)
        asked, self._checks = self._checks, []
        for future in asked:
            future.set_result(found)

    def _close(self) -> None:
        self._over = True
        connection, self._connection = self._connection, None
        waiting = [call for worker in self.workers.values() for call in worker.queue]
        for call in (*self._calls.values(), *waiting):
            call.fail(CrashError(f"{call.worker.name} was ended: the engine was closed", exitcode=-9))
        self._give_up_questions(EngineError("the engine is closed"))
        if connection is not None:
            connection.end(orderly=True)
        if self._talking is not None:
            self._talking.join(1.0)


class AgentControl(HostControl):
    """The processes of an `AgentEngine`, as its agent last told of them: with each answer and each keep-alive."""

    def __init__(self, engine: AgentEngine) -> None:
        self._engine = engine

    @override
    def place(self, worker: str, cores: tuple[int, ...]) -> None:
        self._engine.move(self._engine.record(worker), cores)

    @override
    def pid(self, worker: str) -> int | None:
        return self._engine.record(worker).pid

    @override
    def cpu_s(self, worker: str) -> float:
        return self._engine.record(worker).cpu_s

    @override
    def own_cpu_s(self) -> float:
        return self._engine.own_cpu_s
