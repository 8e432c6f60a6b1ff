"""Another host's processes as an engine, through the agent that a command reaches there. The workers and their calls
are here: each call waits its turn, then for its blobs, then for its answer."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any

from pydantic import TypeAdapter
from typing_extensions import override

from tunery._errors import BlobError, CrashError, EngineError, FullHostError, HostError, TuneryError
from tunery.blobs import Blobs
from tunery.domain import Check
from tunery.engines._base import OnUsage, WorkerSpec
from tunery.engines._loop import FrameError
from tunery.engines._payload import Signatures, error_from_data
from tunery.engines._table import Call
from tunery.engines.remote._connection import AgentConnection, RemoteWorker
from tunery.engines.remote._link import HostLink, Timing
from tunery.engines.remote._protocol import check_told


class AgentEngine(HostLink):
    """Workers on the host that `connect`, any command that passes its input and output on, reaches.

    The command is started at once and again whenever it ends, later and later; a call that is in flight then fails with
    LostWorkerError, calls that wait are made when the host is back, or fail so after `patience_s`. A host whose agent
    is of another version is not tried again. `blobs` are the caller's: what a call's arguments and settings name
    (`BlobDigest`) is copied to the host before it is made, once, and what its result names is copied back before its
    future is done.

    Example:
        with AgentEngine("pi4", "ssh pi@10.0.0.7", blobs) as engine:
            worker = engine.start(WorkerSpec(Role.BUILDER, "package.module:Builder"))
            engine.call(worker, "build", task, candidate, deadline_s=10).result()
    """

    def __init__(
        self, name: str, connect: str, blobs: Blobs, on_usage: OnUsage | None = None, timing: Timing | None = None
    ) -> None:
        super().__init__(name, connect, blobs, on_usage, timing)
        blobs.followers = (*blobs.followers, self._released)
        self._holds: dict[int, Future[Callable[[], None]]] = {}
        self._checks: list[Future[tuple[Check, ...]]] = []
        self._thread.start()

    def checks(self, *, measuring: bool = False) -> Future[tuple[Check, ...]]:
        """Have the host look at what its workers need, all of them or those that only run kernels (`measuring`). The
        future fails with LostWorkerError if it is away."""
        future: Future[tuple[Check, ...]] = Future()

        def ask(connection: AgentConnection) -> None:
            self._checks.append(future)
            connection.channel.send({"do": "check", "measuring": measuring})

        self._loop.ask(lambda: self._ask(future, ask))
        return future

    @override
    def hold_device(self, host: str = "") -> Future[Callable[[], None]]:
        future: Future[Callable[[], None]] = Future()
        number = next(self._numbers)

        def ask(connection: AgentConnection) -> None:
            self._holds[number] = future
            connection.channel.send({"do": "hold", "id": number})

        self._loop.ask(lambda: self._ask(future, ask))
        return future

    def _ask(self, future: Future[Any], ask: Callable[[AgentConnection], None]) -> None:
        if self._live is None:
            future.set_exception(self._lost())
        else:
            ask(self._live)

    @override
    def start(self, spec: WorkerSpec) -> str:
        if spec.environment.python:
            raise EngineError(f"{spec.environment.python} is a Python of this host, and {self.name} is another one")
        return super().start(spec)

    @override
    def kill(self, worker: str) -> None:
        record = self._record(worker)
        record.pid = None
        self._loop.ask(lambda: self._kill(record))

    @override
    def place(self, worker: str, cores: tuple[int, ...]) -> None:
        record = self._record(worker)
        record.spec = replace(record.spec, cores=cores)
        self._loop.ask(lambda: self._send_to(record, {"do": "place", "cores": list(cores)}))

    @override
    def pid(self, worker: str) -> int | None:
        return self._record(worker).pid

    @override
    def cpu_s(self, worker: str) -> float:
        return self._record(worker).cpu_s

    # What follows runs on the engine's thread.

    @override
    def _worker(
        self, name: str, spec: WorkerSpec, methods: Signatures | None, names: Sequence[str], settings: bytes
    ) -> RemoteWorker:
        blobs = () if methods is None else methods.blobs_in_settings(spec.settings)
        return RemoteWorker(name, spec, methods, names, settings, blobs=blobs)

    @override
    def _begin(self, worker: RemoteWorker) -> None:
        """Have the agent start a worker, unless it waits for a blob: then its first call does."""
        if self._live is not None and not worker.blobs:
            self._start(self._live, worker)

    def _kill(self, worker: RemoteWorker) -> None:
        call = worker.current
        self._send_to(worker, {"do": "kill"})
        if call is not None and not call.taken_s:
            worker.current = None
            call.fail(CrashError(f"{worker.name} was killed on request", exitcode=-9))
            self._pump(worker)

    def _send_to(self, worker: RemoteWorker, what: dict[str, Any]) -> None:
        if self._live is not None and worker.name in self._live.started:
            self._live.channel.send({**what, "worker": worker.name})

    def _released(self, digest: str) -> None:
        def forget() -> None:
            if self._live is not None and digest in self._live.there:
                self._live.there.discard(digest)
                self._live.channel.send({"do": "release", "blob": digest})

        self._loop.post(forget)

    @override
    def _closed(self) -> None:
        self.blobs.followers = tuple(follower for follower in self.blobs.followers if follower != self._released)

    @override
    def _fail_questions(self, error: EngineError) -> None:
        questions: list[Future[Any]] = [*self._holds.values(), *self._checks]
        self._holds, self._checks = {}, []
        for future in questions:
            if not future.done():
                future.set_exception(error)

    @override
    def _take(self, header: dict[str, Any], body: bytes) -> None:
        known: Mapping[str, Callable[[dict[str, Any], bytes], None]] = {
            "answer": self._answered, "usage": self._told_usage, "wanted": self._wanted, "stored": self._stored,
            "held": self._held, "checked": self._checked, "chunk": self._chunk,
        }  # fmt: skip
        known[header["do"]](header, body)

    # How a call is made.

    @override
    def _pump(self, worker: RemoteWorker) -> None:
        """Make a worker's next call if it can take one: first what the call needs is copied."""
        connection = self._live
        if self._hopeless:
            self._fail_queues()
        if connection is None or worker.current is not None or (call := worker.pop()) is None:
            return
        worker.current = call
        started = worker.name in connection.started
        for digest in (*call.blobs, *(() if started else worker.blobs)):
            if digest not in connection.there:
                self._want(worker, call, digest, connection.sending, {"do": "want", "blob": digest})
        if not call.needs:
            self._make(worker, call)

    def _want(
        self,
        worker: RemoteWorker,
        call: Call,
        digest: str,
        on_their_way: dict[str, list[tuple[RemoteWorker, Call]]],
        question: dict[str, Any],
    ) -> None:
        """Have a call wait for a blob; the first that does asks for it."""
        assert self._live is not None
        call.needs.add(digest)
        waiting = on_their_way.setdefault(digest, [])
        waiting.append((worker, call))
        if len(waiting) == 1:
            self._live.channel.send(question)

    def _make(self, worker: RemoteWorker, call: Call) -> None:
        assert self._live is not None
        self._start(self._live, worker)
        call.taken_s = time.monotonic()
        self._live.channel.send_packed(call.message)

    def _start(self, connection: AgentConnection, worker: RemoteWorker) -> None:
        if worker.name in connection.started:
            return
        connection.started.add(worker.name)
        spec = {
            **{key: getattr(worker.spec, key) for key in ("service", "threads", "nice", "memory_bytes", "confined")},
            "role": worker.spec.role.value, "cores": list(worker.spec.cores),
            "environment": asdict(replace(worker.spec.environment, variables=dict(worker.spec.environment.variables))),
        }  # fmt: skip
        header = {"do": "start", "worker": worker.name, "spec": spec, "settings": list(worker.setting_names)}
        connection.channel.send(header, worker.settings)

    # What the agent says.

    def _answered(self, header: dict[str, Any], body: bytes) -> None:
        worker = self._workers[header["worker"]]
        call = worker.current
        if call is None or call.number != header["id"] or not call.taken_s:
            return  # it was answered before
        worker.generation = worker.past_generations + int(header["generation"])
        worker.cpu_s = worker.past_cpu_s + self._seconds(header["cpu_s"])
        worker.pid, worker.current = header["pid"], None
        if header["failed"]:
            call.fail(error_from_data(json.loads(body), f"{worker.name}.{call.method}"))
        else:
            try:
                self._take_result(worker, call, body)
            except BaseException:
                worker.current = call  # which goes with the connection
                raise
        self._pump(worker)

    def _take_result(self, worker: RemoteWorker, call: Call, body: bytes) -> None:
        assert self._live is not None
        assert worker.methods is not None
        try:
            call.result = call.decode(body)
        except ValueError as error:
            raise FrameError(f"an answer to {call.method} that cannot be read") from error
        check_told(call.result, call.task)
        for digest in worker.methods.blobs_in_result(call.method, call.result):
            self._live.there.add(digest)
            if not self.blobs.has(digest):
                self._want(worker, call, digest, self._live.fetching, {"do": "fetch", "blob": digest})
        if not call.needs:
            call.future.set_result(call.result)

    def _told_usage(self, header: dict[str, Any], _body: bytes) -> None:
        wall_s, cpu_s = (self._seconds(header[name]) for name in ("wall_s", "cpu_s"))
        self._report(header["worker"], header["method"], wall_s, cpu_s)

    def _chunk(self, header: dict[str, Any], body: bytes) -> None:
        assert self._live is not None
        whole = self._live.receiver.take(header, body)
        if whole is None:
            return
        digest, failed = whole
        for _, call in self._live.fetching.pop(digest, ()):
            call.needs.discard(digest)
            if failed:
                call.fail(BlobError(failed))
            elif not call.needs and not call.future.done():
                call.future.set_result(call.result)

    def _wanted(self, header: dict[str, Any], _body: bytes) -> None:
        assert self._live is not None
        digest = header["blob"]
        file = None if header["here"] else _opened(self.blobs, digest)
        if file is not None:
            self._live.channel.stream(digest, file)
        else:  # it is there; or nobody has it, and the call will say so
            self._arrived(digest, there=header["here"])

    def _stored(self, header: dict[str, Any], _body: bytes) -> None:
        self._arrived(header["blob"], there=not header["failed"], failed=header["failed"])

    def _arrived(self, digest: str, *, there: bool, failed: str = "") -> None:
        assert self._live is not None
        if there:
            self._live.there.add(digest)
        for worker, call in self._live.sending.pop(digest, ()):
            call.needs.discard(digest)
            if worker.current is not call:
                continue
            if failed:
                worker.current = None
                call.fail(FullHostError(f"host {self.name} takes no more: {failed}"))
                self._pump(worker)
            elif not call.needs:
                self._make(worker, call)

    def _held(self, header: dict[str, Any], _body: bytes) -> None:
        number, connection = header["id"], self._live
        future = self._holds.pop(number, None)
        if future is None:
            return

        def free() -> None:
            if connection is not None and self._live is connection:
                connection.channel.send({"do": "free", "id": number})

        if header["failed"]:
            future.set_exception(HostError(header["failed"]))
        elif not future.set_running_or_notify_cancel():
            free()
        else:
            future.set_result(lambda: (self._loop.post(free), None)[1])

    def _checked(self, _header: dict[str, Any], body: bytes) -> None:
        found = TypeAdapter(tuple[Check, ...]).validate_json(body)
        asked, self._checks = self._checks, []
        for future in asked:
            future.set_result(found)


def _opened(blobs: Blobs, digest: str) -> IO[bytes] | None:
    try:
        return Path(blobs.get(digest)).open("rb")
    except (TuneryError, OSError):
        return None
