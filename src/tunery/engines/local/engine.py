"""This machine's processes as an engine: it waits for messages, exits and the nearest deadline, and acts on them."""

import atexit
import contextlib
import json
import math
import os
import resource
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from selectors import EVENT_READ
from typing import Any, Self

from typing_extensions import override

from tunery._errors import BlobError, CrashError, DeadlineError, EngineError, TuneryError, UsageError
from tunery._outputs import check_room
from tunery.blobs import Blobs, DirectoryBlobs
from tunery.domain import Environment
from tunery.engines._base import OnUsage, WorkerSpec
from tunery.engines._loop import Channel, FrameError, FrameReader, seconds_of
from tunery.engines._payload import Signatures, error_from_data
from tunery.engines._table import Call, TableEngine
from tunery.engines.local._process import cpu_s, is_stopped, kill_group
from tunery.engines.local._record import LocalWorker, Process, WorkerState, describe_exit, quote_log, ran_out
from tunery.engines.local.nursery import Nursery, leave, take

REAP_S = 10.0
"""How long a killed process may take to vanish before its call is answered anyway (a driver that does not let go)."""

_FORK_SHARE = 0.25
"""Of the time that a process has to come up: for a zygote that is up to answer, which it does at once."""
_LEAST_DESCRIPTORS = 128


class LocalEngine(TableEngine[LocalWorker]):
    """Workers as processes of this machine, forked from a zygote and killed from outside when they do not answer.

    There is a zygote for each environment of workers; what it preloads costs a fresh worker milliseconds. One that is
    closed leaves its zygotes for a minute to the next one of the process.
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
        self._own = tempfile.mkdtemp(prefix="tunery-") if logs is None or blobs is None else ""
        self._own_blobs = DirectoryBlobs(Path(self._own, "blobs")) if blobs is None else None
        shared = self._own_blobs if blobs is None else blobs
        assert shared is not None
        super().__init__(shared, on_usage, "tunery-engine")
        self.logs = Path(logs or self._own).resolve()
        self.logs.mkdir(parents=True, exist_ok=True)
        place = self.blobs.place
        self._blob_place = None if place is None else asdict(place)
        self._startup_s, self._owner = startup_s, os.getpid()
        self._nurseries: dict[str, Nursery] = {}
        self._lock = threading.Lock()  # of a worker's process and the seconds of those before, which are read together
        self._close_limit = math.inf
        atexit.register(self.close)
        self._thread.start()

    @classmethod
    @override
    def open(cls, scratch: Path, blobs: Blobs) -> Self:
        return cls(scratch / "logs", blobs=blobs)

    @override
    def log_directory(self) -> Path | None:
        return self.logs

    @override
    def kill(self, worker: str) -> None:
        """End the process, which is sent SIGKILL when this returns, except on the engine's own thread."""
        record, done = self._record(worker), threading.Event()

        def end() -> None:
            try:
                self._end(record, CrashError(f"{worker} was killed on request", exitcode=-9))
            finally:
                done.set()

        self._loop.ask(end)
        if threading.current_thread() is not self._thread:
            done.wait()

    @override
    def close(self) -> None:
        if os.getpid() != self._owner:  # a forked child
            return
        super().close()

    @override
    def _closed(self) -> None:
        atexit.unregister(self.close)
        if self._own_blobs is not None:
            self._own_blobs.close()
        if self._own:
            shutil.rmtree(self._own, ignore_errors=True)

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
        record = self._record(worker)
        with self._lock:
            past_s, process = record.past_cpu_s, record.process
        return past_s + (_seen_cpu_s(process) if process is not None else 0.0)

    @override
    def own_cpu_s(self) -> float:
        return sum(nursery.cpu_s for nursery in list(self._nurseries.values()))

    @override
    def obstacle(self) -> str:
        stopped = next((nursery.pid for nursery in list(self._nurseries.values()) if is_stopped(nursery.pid)), None)
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

    # What follows runs on the loop's thread.

    @override
    def _worker(
        self, name: str, spec: WorkerSpec, methods: Signatures | None, names: Sequence[str], settings: bytes
    ) -> LocalWorker:
        cores = spec.cores or tuple(sorted(os.sched_getaffinity(os.getpid())))
        return LocalWorker(name, spec, methods, names, settings, cores=cores, log=self.logs / f"{name}.log")

    @override
    def _is_over(self) -> bool:
        return self._loop.closed and self._close_limit < math.inf and not self._nurseries

    @override
    def _due_s(self) -> float:
        nearest = min((worker.limit for worker in self._every()), default=math.inf)
        return max(0.0, min(nearest, self._close_limit) - time.monotonic())

    @override
    def _tick(self) -> None:
        now = time.monotonic()
        for worker in [w for w in self._every() if w.limit <= now]:
            self._overdue(worker)
        if self._close_limit <= now:
            for nursery in self._nurseries.values():
                nursery.kill()
            self._close_limit = now + REAP_S

    def _overdue(self, worker: LocalWorker) -> None:
        process, call = worker.process, worker.current
        if worker.state is WorkerState.BUSY and call is not None:
            what = f"{worker.name} ran {call.method} past its deadline of {call.deadline_s:g} s and was killed"
            self._end(worker, DeadlineError(what))
        elif worker.state is WorkerState.STARTING and process is not None and process.pid is None and process.asked_up:
            process.doomed, worker.process = True, None  # somebody has stopped the zygote: it is started from another
            worker.state, worker.limit = WorkerState.DOWN, math.inf
            self._release(process)
            process.nursery.kill()
            self._without(worker.spec.environment.key, process.nursery)
            self._pump(worker)
        elif worker.state is WorkerState.STARTING and process is not None:
            what = f"{worker.name} did not come up within {self._startup_s:g} s and was killed"
            if process.pid is None:
                process.nursery.kill()
            self._end(worker, CrashError(what + quote_log(worker.log), exitcode=-9))
        elif process is not None:
            self._gone(worker, process, None, _seen_cpu_s(process))

    @override
    def _begin(self, worker: LocalWorker) -> None:
        """Start a process for a worker that has none; what prevents it is its first call's answer."""
        ours: socket.socket | None = None
        try:
            ours, theirs = socket.socketpair()
            with contextlib.suppress(FileNotFoundError):
                worker.log.replace(worker.log.with_suffix(".previous.log"))
            key = f"{worker.name}#{worker.generation}"
            with theirs:
                nursery = self._fork(worker.spec.environment, key, theirs)
        except OSError as error:
            if ours is not None:
                ours.close()
            while call := worker.pop():
                call.fail(CrashError(f"{worker.name} cannot be started: {error}"))
            return
        worker.process = process = Process(key, ours, nursery, asked_up=nursery.up)
        process.channel = Channel(
            self._loop, FrameReader(ours.fileno()), (ours.fileno(), ours.fileno()),
            lambda header, body: self._on_frame(worker, process, header, body),
            lambda error: self._on_end(worker, process, error),
        )  # fmt: skip
        worker.state, worker.reason = WorkerState.STARTING, None
        worker.limit = time.monotonic() + self._startup_s * (_FORK_SHARE if nursery.up else 1)
        process.channel.send(worker.begin(self._blob_place, nursery.changed()), worker.settings)

    def _fork(self, environment: Environment, key: str, channel: socket.socket) -> Nursery:
        nursery = self._nursery(environment)
        try:
            nursery.fork(key, channel)
        except (BrokenPipeError, ConnectionResetError):  # somebody ended the zygote and its workers; have another
            self._on_nursery(environment.key, nursery)
            nursery = self._nursery(environment)
            nursery.fork(key, channel)
        return nursery

    def _nursery(self, environment: Environment) -> Nursery:
        key = environment.key
        nursery = self._nurseries.get(key)
        if nursery is None:
            nursery = take(environment) or Nursery(environment)
            self._nurseries[key] = nursery
            self._loop.watch(nursery.control.fileno(), EVENT_READ, lambda _: self._on_nursery(key, nursery))
        return nursery

    @override
    def _pump(self, worker: LocalWorker) -> None:
        if worker.state is WorkerState.DOWN and worker.queue and not self._loop.closed:
            worker.generation += 1
            self._begin(worker)
            return
        process = worker.process
        if worker.state is WorkerState.IDLE and process is not None and not process.doomed and (call := worker.pop()):
            call.taken_s = time.monotonic()
            worker.current, worker.state = call, WorkerState.BUSY
            worker.limit = call.taken_s + call.deadline_s
            process.channel.send_packed(call.message)

    def _end(self, worker: LocalWorker, reason: TuneryError) -> None:
        if worker.process is None:
            return
        if worker.state is WorkerState.STARTING:
            worker.current = worker.pop()
        worker.state = WorkerState.ENDING
        worker.reason = worker.reason or reason
        worker.limit = time.monotonic() + REAP_S
        worker.process.kill()

    def _gone(
        self, worker: LocalWorker, process: Process, code: int | None, used_s: float, peak_bytes: int = 0
    ) -> None:
        """Settle the account of a process that has ended, answer its call, and start the next if calls wait."""
        if worker.process is not process:
            return
        process.doomed = True
        process.channel.read()  # a call that was finished before the end is finished
        during = "start"
        if worker.state is WorkerState.STARTING:
            worker.current = worker.pop()
        call, worker.current = worker.current, None
        if call is not None and call.taken_s:
            during = call.method
            self._report(
                worker.name, during, time.monotonic() - call.taken_s, max(0.0, used_s - process.reported_cpu_s)
            )
        reason = worker.reason
        if call is not None and reason is None:
            log = worker.log if process.pid is not None else process.nursery.log
            said, full = quote_log(log), ran_out(worker, code, peak_bytes, log)
            reason = CrashError(f"{worker.name} {describe_exit(code)} during {during}{said}", code, out_of_memory=full)
        with self._lock:
            worker.past_cpu_s += used_s
            worker.process = None
        worker.state, worker.limit, worker.reason = WorkerState.DOWN, math.inf, None
        self._release(process)
        if call is not None and reason is not None:
            call.fail(reason)
        self._pump(worker)

    def _release(self, process: Process) -> None:
        process.channel.close()
        process.connection.close()
        if process.pidfd is not None:
            os.close(process.pidfd)

    # What comes in.

    def _on_end(self, worker: LocalWorker, process: Process, error: FrameError | None) -> None:
        if error is not None and not process.doomed:  # code in the process has written into its socket
            self._end(worker, CrashError(f"{worker.name} answered with {error}"))

    def _on_frame(self, worker: LocalWorker, process: Process, header: dict[str, Any], body: bytes) -> None:
        wall_s, total_s = seconds_of(header.get("wall_s")), seconds_of(header.get("cpu_s"))
        if worker.process is not process:
            return
        used_s, process.reported_cpu_s = max(0.0, total_s - process.reported_cpu_s), total_s
        failed = header.get("failed")
        if header["do"] == "ready":
            self._report(worker.name, "__init__", wall_s, used_s)
            if worker.state is WorkerState.STARTING and failed:
                self._end(worker, error_from_data(json.loads(body), f"{worker.name} (starting)"))
            elif worker.state is WorkerState.STARTING:
                worker.state, worker.limit = WorkerState.IDLE, math.inf
                worker.keep_place()
                self._pump(worker)
            return
        call = worker.current
        if worker.state is not WorkerState.BUSY or call is None:
            return  # killed meanwhile: the call's answer is the kill
        worker.current, worker.state, worker.limit = None, WorkerState.IDLE, math.inf
        try:
            self._report(worker.name, call.method, wall_s, used_s)
            self._answer(worker, call, body, failed=bool(failed))
        finally:
            if not call.future.done():
                worker.queue.appendleft(call)  # for who ends all calls after such a failure
        self._pump(worker)

    def _answer(self, worker: LocalWorker, call: Call, body: bytes, *, failed: bool) -> None:
        if failed:
            call.future.set_exception(error_from_data(json.loads(body), f"{worker.name}.{call.method}"))
            return
        try:
            result = call.decode(body)
        except ValueError as error:
            call.future.set_exception(EngineError(f"{worker.name}.{call.method} gave an unreadable result: {error}"))
        else:
            call.future.set_result(result)

    def _on_nursery(self, key: str, nursery: Nursery) -> None:
        if self._nurseries.get(key) is not nursery:
            return
        messages, there = nursery.read()
        for message, pidfd in messages:
            if message["event"] == "resting":
                del self._nurseries[key]
                self._loop.watch(nursery.control.fileno(), 0, lambda _: None)
                leave(key, nursery)
                return
            name = message["worker"]
            worker = self._workers.get(name.partition("#")[0])
            process = worker.process if worker is not None else None
            if worker is None or process is None or process.key != name:
                self._on_stray(worker, message, pidfd)
            else:
                self._on_child(worker, process, message, pidfd)
        if not there:
            self._without(key, nursery)

    def _without(self, key: str, nursery: Nursery) -> None:
        if self._nurseries.get(key) is not nursery:
            return
        del self._nurseries[key]
        self._loop.watch(nursery.control.fileno(), 0, lambda _: None)
        for worker in self._every():
            process = worker.process
            if process is not None and process.nursery is nursery:
                if process.pid is not None:
                    kill_group(process.pid)
                self._gone(worker, process, None, _seen_cpu_s(process))
        nursery.close()

    def _on_child(self, worker: LocalWorker, process: Process, message: dict[str, Any], pidfd: int | None) -> None:
        match message["event"]:
            case "forked":
                process.pid, process.pidfd = message["pid"], pidfd
                if worker.state is WorkerState.STARTING:
                    worker.limit = time.monotonic() + self._startup_s
                if process.doomed:
                    process.kill()
                worker.keep_place()
            case "refused":
                worker.reason = worker.reason or CrashError(f"{worker.name} cannot be started: {message['why']}")
                self._gone(worker, process, None, 0.0)
            case "exit" if message["leader"]:
                self._gone(worker, process, message["code"], message["cpu_s"], message["peak_bytes"])
            case "exit":
                worker.past_cpu_s += message["cpu_s"]  # a process the worker had started and left to itself

    def _on_stray(self, worker: LocalWorker | None, message: dict[str, Any], pidfd: int | None) -> None:
        """Hear of a process that no worker has any more: it was given up, or its worker had left it behind."""
        if message["event"] == "exit" and worker is not None and not message["leader"]:
            worker.past_cpu_s += message["cpu_s"]
        if pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)

    @override
    def _reset(self, worker: LocalWorker, reason: EngineError) -> None:
        self._end(worker, reason)

    @override
    def _close(self) -> None:
        self._close_limit = time.monotonic() + REAP_S / 2
        for worker in self._every():
            self._end(worker, CrashError(f"{worker.name} was ended: the engine was closed", exitcode=-9))
            self._fail_waiting(worker, partial(self._unanswered, worker))
        for key, nursery in list(self._nurseries.items()):
            try:
                nursery.rest()
            except OSError:  # somebody has ended it
                self._without(key, nursery)


def _seen_cpu_s(process: Process) -> float:
    live_s = cpu_s(process.pid) if process.pid is not None else 0.0
    return max(process.reported_cpu_s, live_s)


def _check_descriptors() -> None:
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if allowed < _LEAST_DESCRIPTORS:
        raise UsageError(
            f"this process may open {allowed} files at once, and its workers need {_LEAST_DESCRIPTORS}; raise the "
            "limit, as with `ulimit -n 1024`, and give the same command again"
        )
