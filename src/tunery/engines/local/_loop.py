"""The thread that owns all workers: it waits for messages, exits and the nearest deadline, and acts on them."""

import contextlib
import logging
import math
import os
import selectors
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tunery._errors import CrashError, DeadlineError, EngineError, TuneryError
from tunery.domain import Environment
from tunery.engines._base import OnUsage
from tunery.engines._payload import error_from_data
from tunery.engines.local import _frames, ahead
from tunery.engines.local._nursery import Nursery
from tunery.engines.local._process import bare_cpu_s, cpu_s, is_stopped, kill_group
from tunery.engines.local._record import Call, Process, Worker, WorkerState, describe_exit, quote_log, ran_out

REAP_S = 10.0
"""How long a killed process may take to vanish before its call is answered anyway (a driver that does not let go)."""

_FORK_SHARE = 0.25
"""Of the time that a process has to come up: for a zygote that is up to answer, which it does at once."""

_log = logging.getLogger(__name__)


class Loop:
    """All state of a LocalEngine. Other threads only `post`; whatever is private here runs on the loop's thread."""

    def __init__(self, logs: Path, startup_s: float, on_usage: OnUsage | None) -> None:
        self._logs = logs
        self._startup_s = startup_s
        self._on_usage = on_usage
        self._owner = os.getpid()
        self._workers: dict[str, Worker] = {}
        self._nurseries: dict[str, Nursery] = {}
        self._posted: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()
        self._closed = False
        self._close_limit = math.inf
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake, selectors.EVENT_READ, self._on_wake)
        self._thread = threading.Thread(target=self._run, name="tunery-engine", daemon=True)
        self._thread.start()

    # What other threads may use.

    def post(self, action: Callable[[], None]) -> None:
        with self._lock:
            if self._closed:
                raise EngineError("the engine is closed")
            self._posted.append(action)
            os.eventfd_write(self._wake, 1)

    def add(self, worker: Worker) -> None:
        """Take in a worker and start its process."""

        def admit() -> None:
            self._workers[worker.name] = worker
            if not self._closed:
                self._launch(worker)

        self.post(admit)

    def enqueue(self, worker: Worker, call: Call) -> None:
        """Have a worker take up a call after those before it."""

        def append() -> None:
            if self._closed:
                call.fail(_unanswered(worker, call))
                return
            worker.queue.append(call)
            self._pump(worker)

        self.post(append)

    def kill(self, worker: Worker) -> None:
        """Send a worker's process SIGKILL; it is sent when this returns, except on the loop's own thread."""
        done = threading.Event()

        def end() -> None:
            try:
                self._end(worker, CrashError(f"{worker.name} was killed on request", exitcode=-9))
            finally:
                done.set()

        self.post(end)
        if threading.current_thread() is not self._thread:
            done.wait()

    def used_cpu_s(self, worker: Worker) -> float:
        """Return the CPU seconds of all processes a worker has had, the present one included."""
        with self._lock:
            ended_s, process = worker.ended_cpu_s, worker.process
        return ended_s + (_seen_cpu_s(process) if process is not None else 0.0)

    def nursery_cpu_s(self) -> float:
        """Return the CPU seconds of the zygotes that live, without their children's."""
        return sum(bare_cpu_s(nursery.pid) for nursery in list(self._nurseries.values()))

    def stopped_nursery(self) -> int | None:
        """Return the process id of a zygote that somebody has stopped, None where there is none."""
        return next((nursery.pid for nursery in list(self._nurseries.values()) if is_stopped(nursery.pid)), None)

    def close(self) -> None:
        """End everything and wait for it; again, in a forked child, and on the loop's own thread: no wait."""
        if os.getpid() != self._owner:
            return
        with contextlib.suppress(EngineError):
            self.post(self._begin_close)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # The loop.

    def _run(self) -> None:
        while not (self._closed and not self._nurseries):
            try:
                for key, mask in self._selector.select(self._timeout()):
                    key.data(mask)
                self._expire()
            except Exception as error:  # noqa: BLE001 - whoever waits hears of it, and the next call is made
                self._fail_all(error)
        with self._lock:
            self._selector.close()
            os.close(self._wake)

    def _timeout(self) -> float | None:
        nearest = min((worker.limit for worker in self._workers.values()), default=math.inf)
        nearest = min(nearest, self._close_limit)
        return None if nearest == math.inf else min(max(0.0, nearest - time.monotonic()), 3600.0)

    def _on_wake(self, _mask: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        while self._posted:
            try:
                self._posted.popleft()()
            except Exception as error:  # noqa: BLE001 - what was posted behind it is waited for
                self._fail_all(error)

    def _fail_all(self, error: Exception) -> None:
        """End every call after a failure of the loop itself: nobody can say which of them it has lost."""
        _log.exception("the engine met a fault of its own")
        reason = EngineError(f"the engine failed ({type(error).__name__}: {error}); give the same command again")
        for worker in self._workers.values():
            calls, worker.queue = [*filter(None, [worker.current]), *worker.queue], deque()
            worker.current = None
            self._end(worker, reason)
            for call in calls:
                call.fail(reason)

    def _expire(self) -> None:
        now = time.monotonic()
        for worker in [w for w in self._workers.values() if w.limit <= now]:
            self._overdue(worker)
        if self._close_limit <= now:
            self._close_limit = math.inf
            for nursery in self._nurseries.values():
                nursery.kill()

    def _overdue(self, worker: Worker) -> None:
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

    # A worker's life.

    def _launch(self, worker: Worker) -> None:
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
        worker.process = process = Process(key, _frames.Channel(ours), nursery, asked_up=nursery.up)
        worker.state, worker.reason = WorkerState.STARTING, None
        worker.limit = time.monotonic() + self._startup_s * (_FORK_SHARE if nursery.up else 1)
        self._selector.register(ours, selectors.EVENT_READ, lambda mask: self._on_channel(worker, process, mask))
        self._send(process, _frames.pack(worker.begin(), worker.settings))

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
            nursery = ahead.take(environment) or Nursery(environment, self._logs / f"zygote-{key}.log")
            self._nurseries[key] = nursery
            self._selector.register(nursery.control, selectors.EVENT_READ, lambda _: self._on_nursery(key, nursery))
        return nursery

    def _pump(self, worker: Worker) -> None:
        """Give a worker its next call if it can take one."""
        if worker.state is WorkerState.DOWN and worker.queue and not self._closed:
            worker.generation += 1
            self._launch(worker)
            return
        process = worker.process
        if worker.state is WorkerState.IDLE and process is not None and not process.doomed and (call := worker.pop()):
            call.taken_at = time.monotonic()
            worker.current, worker.state = call, WorkerState.BUSY
            worker.limit = call.taken_at + call.deadline_s
            self._send(process, call.message)

    def _end(self, worker: Worker, reason: TuneryError) -> None:
        if worker.process is None:
            return
        if worker.state is WorkerState.STARTING:
            worker.current = worker.pop()
        worker.state = WorkerState.ENDING
        worker.reason = worker.reason or reason
        worker.limit = time.monotonic() + REAP_S
        worker.process.kill()

    def _gone(self, worker: Worker, process: Process, code: int | None, used_s: float, peak_bytes: int = 0) -> None:
        """Settle the account of a process that has ended, answer its call, and start the next if calls wait."""
        if worker.process is not process:
            return
        process.doomed = True
        with contextlib.suppress(ValueError):
            for header, body in process.channel.read()[0]:  # a call that was finished before the end is finished
                self._on_frame(worker, process, header, body)
        during = "start"
        if worker.state is WorkerState.STARTING:
            worker.current = worker.pop()
        call, worker.current = worker.current, None
        if call is not None and call.taken_at:
            during = call.method
            self._report(worker, during, time.monotonic() - call.taken_at, max(0.0, used_s - process.reported_cpu_s))
        reason = worker.reason
        if call is not None and reason is None:
            log = worker.log if process.pid is not None else process.nursery.log
            said, full = quote_log(log), ran_out(worker, code, peak_bytes, log)
            reason = CrashError(f"{worker.name} {describe_exit(code)} during {during}{said}", code, out_of_memory=full)
        with self._lock:
            worker.ended_cpu_s += used_s
            worker.process = None
        worker.state, worker.limit, worker.reason = WorkerState.DOWN, math.inf, None
        self._release(process)
        if call is not None and reason is not None:
            call.fail(reason)
        self._pump(worker)

    def _release(self, process: Process) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(process.channel.connection)
        process.channel.close()
        if process.pidfd is not None:
            os.close(process.pidfd)

    # What comes in.

    def _on_channel(self, worker: Worker, process: Process, mask: int) -> None:
        if worker.process is not process:
            return
        if mask & selectors.EVENT_WRITE:
            process.channel.flush()
        try:
            frames, there = process.channel.read()
        except ValueError as error:  # code in the process has written into its socket
            self._selector.unregister(process.channel.connection)
            self._end(worker, CrashError(f"{worker.name} answered with {error}"))
            return
        for header, body in frames:
            self._on_frame(worker, process, header, body)
        if worker.process is not process:
            return
        if there:
            self._watch(process)
        else:
            self._selector.unregister(process.channel.connection)  # its exit is told by the zygote

    def _on_frame(self, worker: Worker, process: Process, header: dict[str, Any], body: bytes) -> None:
        used_s = max(0.0, header["cpu_s"] - process.reported_cpu_s)
        process.reported_cpu_s = header["cpu_s"]
        if "done" not in header:
            self._report(worker, "__init__", header["wall_s"], used_s)
            if worker.state is WorkerState.STARTING:
                if "failed" in header:
                    self._end(worker, error_from_data(header["failed"], f"{worker.name} (starting)"))
                else:
                    worker.state, worker.limit = WorkerState.IDLE, math.inf
                    worker.keep_place()
                    self._pump(worker)
            return
        call = worker.current
        if worker.state is not WorkerState.BUSY or call is None:
            return  # killed meanwhile: the call's answer is the kill
        worker.current, worker.state, worker.limit = None, WorkerState.IDLE, math.inf
        try:
            self._report(worker, call.method, header["wall_s"], used_s)
            self._answer(worker, call, header, body)
        finally:
            if not call.future.done():
                worker.queue.appendleft(call)  # for who ends all calls after such a failure
        self._pump(worker)

    def _answer(self, worker: Worker, call: Call, header: dict[str, Any], body: bytes) -> None:
        if "failed" in header:
            call.future.set_exception(error_from_data(header["failed"], f"{worker.name}.{call.method}"))
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
        """Go on without a zygote that has ended, or ends, and so without its workers."""
        if self._nurseries.get(key) is not nursery:
            return
        del self._nurseries[key]
        self._selector.unregister(nursery.control)
        for worker in list(self._workers.values()):
            process = worker.process
            if process is not None and process.nursery is nursery:
                if process.pid is not None:
                    kill_group(process.pid)
                self._gone(worker, process, None, _seen_cpu_s(process))
        nursery.close()

    def _on_child(self, worker: Worker, process: Process, message: dict[str, Any], pidfd: int | None) -> None:
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
                worker.ended_cpu_s += message["cpu_s"]  # a process the worker had started and left to itself

    def _on_stray(self, worker: Worker | None, message: dict[str, Any], pidfd: int | None) -> None:
        """Hear of a process that no worker has any more: it was given up, or its worker had left it behind."""
        if message["event"] == "exit" and worker is not None and not message["leader"]:
            worker.ended_cpu_s += message["cpu_s"]
        if pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)

    # Small things.

    def _send(self, process: Process, message: bytes) -> None:
        process.channel.send(message)
        self._watch(process)

    def _watch(self, process: Process) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if process.channel.pending else 0)
        key = self._selector.get_map().get(process.channel.connection)
        if key is not None and key.events != events:
            self._selector.modify(process.channel.connection, events, key.data)

    def _report(self, worker: Worker, method: str, wall_s: float, used_s: float) -> None:
        if self._on_usage is None:
            return
        try:
            self._on_usage(worker.name, method, wall_s, used_s)
        except Exception:  # noqa: BLE001 - a ledger's fault is not the call's
            _log.exception("the listener of the engine's usage failed")

    def _begin_close(self) -> None:
        with self._lock:
            self._closed = True
        self._close_limit = time.monotonic() + REAP_S / 2
        for worker in self._workers.values():
            waiting, worker.queue = worker.queue, deque()
            self._end(worker, CrashError(f"{worker.name} was ended: the engine was closed", exitcode=-9))
            for call in waiting:
                call.fail(_unanswered(worker, call))
        for nursery in self._nurseries.values():
            nursery.end()


def _seen_cpu_s(process: Process) -> float:
    live_s = cpu_s(process.pid) if process.pid is not None else 0.0
    return max(process.reported_cpu_s, live_s)


def _unanswered(worker: Worker, call: Call) -> CrashError:
    return CrashError(f"{worker.name} did not take up {call.method}: the engine was closed")
