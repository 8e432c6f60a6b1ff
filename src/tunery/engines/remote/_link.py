"""The connection to a host's agent: made, kept alive, and made again after it was lost."""

import logging
import math
import threading
import time
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

from typing_extensions import override

from tunery._errors import EngineError, HostError, LostWorkerError
from tunery.blobs import Blobs
from tunery.domain import HostFacts
from tunery.engines._base import HostUse, OnUsage
from tunery.engines._loop import FrameError, seconds_of
from tunery.engines._table import Call, TableEngine
from tunery.engines.remote._connection import AgentConnection, RemoteWorker, agent_command
from tunery.engines.remote.agent import MISSED_KEEP_ALIVES

_log = logging.getLogger(__name__)
_MOST_SHARE, _START_S = 4.0, 60.0  # a host may have more cores than it grants; its agent runs before it is connected


@dataclass(frozen=True, slots=True)
class Timing:
    """When a silent host counts as gone, in seconds, and how long calls wait for one that is. An agent that has not
    greeted after `slow_greeting_s` is in trouble, and waited for as long as it may still greet: Python takes up to 40 s
    to start on a slow board. One that gives no answer for `late_s` after a call's deadline has lost it; until then the
    worker may still have to start."""

    keep_alive_s: float = 5.0
    slow_greeting_s: float = 10.0
    greeting_s: float = 60.0
    patience_s: float = 60.0
    first_retry_s: float = 0.5
    last_retry_s: float = 30.0
    late_s: float = 150.0


class HostLink(TableEngine[RemoteWorker]):
    """An engine on another host: runs the connect command at once and again whenever it ends, later and later."""

    is_elsewhere = True

    def __init__(self, name: str, connect: str, blobs: Blobs, on_usage: OnUsage | None, timing: Timing | None) -> None:
        self.name, self._command, self._timing = name, agent_command(connect), timing or Timing()
        super().__init__(blobs, on_usage, f"tunery-host-{name}")
        self._facts: HostFacts | None = None
        self._trouble = ""
        self._hopeless = self._is_slow = self._over = False
        self._own_cpu_s = self._past_own_cpu_s = 0.0
        self._use: HostUse | None = None
        self._used: tuple[float, float] | None = None  # when, and the CPU seconds of this connection until then
        self._clock_off_s: float | None = None
        self._losses = 0
        self._watchers: list[Callable[[str], None]] = []
        self._connection: AgentConnection | None = None
        self._live: AgentConnection | None = None  # the same once its agent has greeted
        self._changed = threading.Condition()
        now_s = time.monotonic()
        self._heard_s = self._pinged_s = self._away_s = self._retry_at_s = now_s
        self._retry_s = self._timing.first_retry_s

    @classmethod
    @override
    def open(cls, scratch: Path, blobs: Blobs) -> Self:
        raise EngineError("an engine on another host needs the command that reaches it; see `tunery hosts add`")

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
    def use(self, host: str = "") -> HostUse | None:
        return self._use

    @override
    def own_cpu_s(self) -> float:
        return self._own_cpu_s

    @override
    def watch(self, changed: Callable[[str], None]) -> None:
        self._loop.ask(lambda: self._watchers.append(changed))

    def wait(self, seconds: float, tries: int = 1 << 30) -> HostFacts:
        with self._changed:
            self._changed.wait_for(
                lambda: self._facts is not None or self._hopeless or self._loop.closed or self._losses >= tries, seconds
            )
            if self._facts is None:
                raise HostError(f"host {self.name} cannot be used: {self._trouble or 'it has not answered yet'}")
            return self._facts

    def try_again(self) -> None:
        """Connect at once if the host is away: somebody has seen that it is back."""

        def soon() -> None:
            self._retry_at_s, self._retry_s = time.monotonic(), self._timing.first_retry_s

        self._loop.post(soon)

    def reach_by(self, connect: str) -> None:
        """Use a connect command from now on; a host that was given up, or refused, is tried again."""
        command = agent_command(connect)

        def change() -> None:
            if command == self._command and not self._hopeless:
                return
            self._command = command
            if self._connection is not None:
                self._lose(HostError("its connect command was changed"), hopeless=False)
            self._hopeless = False
            self._retry_at_s, self._retry_s = time.monotonic(), self._timing.first_retry_s

        self._loop.post(change)

    def give_up(self, why: str) -> None:
        """End the connection and do not connect again, unless `reach_by` says so; calls fail with LostWorkerError."""
        self._loop.post(lambda: self._lose(HostError(why), hopeless=True))

    def clock_off_s(self, seconds: float = 0.0) -> float | None:
        """Return by how much the host's clock is ahead of ours; None where that is not known within so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._clock_off_s is not None, seconds)
            return self._clock_off_s

    # What follows runs on the engine's thread.

    @abstractmethod
    def _take(self, header: dict[str, Any], body: bytes) -> None:
        """Act on a frame."""

    def _lost(self, what: str = "") -> LostWorkerError:
        return LostWorkerError(f"{what}host {self.name} is away: {self._trouble}", for_good=self._hopeless)

    def _lost_during(self, worker: RemoteWorker, call: Call) -> LostWorkerError:
        return self._lost(f"{worker.name} was lost during {call.method}: ")

    def _fail_queues(self) -> None:
        for worker in self._every():
            self._fail_waiting(worker, partial(self._lost_during, worker))

    def _fail_flying(
        self, connection: AgentConnection | None, reason: Callable[[RemoteWorker, Call], EngineError]
    ) -> None:
        waiting = [] if connection is None else [call for calls in connection.fetching.values() for call in calls]
        for worker in self._every():
            if worker.current is not None:
                waiting.append((worker, worker.current))
                worker.current = None
        for worker, call in waiting:
            call.fail(reason(worker, call))

    @abstractmethod
    def _fail_questions(self, error: EngineError) -> None:
        """Fail what was asked beside calls."""

    def _seconds(self, value: object) -> float:
        """Return CPU seconds that the host tells; its processes cannot have used more on this connection."""
        if self._connection is None:
            return seconds_of(value, 0.0)
        cores = 1 if self._facts is None else max(self._facts.granted, 1)
        return seconds_of(value, _MOST_SHARE * cores * (time.monotonic() - self._connection.began_s + _START_S))

    @override
    def _is_over(self) -> bool:
        return self._over

    @override
    def _due_s(self) -> float:
        now_s, timing = time.monotonic(), self._timing
        if self._connection is None:
            retry_at_s = math.inf if self._hopeless else self._retry_at_s
            waits = any(worker.queue for worker in self._every())
            return max(0.0, min(retry_at_s, self._away_s + timing.patience_s if waits else math.inf) - now_s)
        if self._facts is None:
            limit_s = timing.greeting_s if self._is_slow else min(timing.slow_greeting_s, timing.greeting_s)
            return max(0.0, self._heard_s + limit_s - now_s)
        return max(0.0, min(self._pinged_s, self._heard_s + (MISSED_KEEP_ALIVES - 1) * timing.keep_alive_s)
                   + timing.keep_alive_s - now_s)  # fmt: skip

    @override
    def _tick(self) -> None:
        now_s, timing = time.monotonic(), self._timing
        if self._connection is None:
            if now_s >= self._away_s + timing.patience_s:
                self._fail_queues()
            if now_s >= self._retry_at_s and not self._hopeless:
                self._connect()
            return
        silent_s = now_s - self._heard_s
        if self._facts is None:
            but = (said := self._connection.said) and f", but {said}"
            slow = silent_s >= timing.slow_greeting_s
            why = slow and self._connection.no_greeting
            if why or silent_s >= timing.greeting_s:
                what = f"its command gave no agent's greeting within {silent_s:.0f} s{but}"
                self._lose(HostError(f"{what}: {why}" if why else what), hopeless=False)
            elif slow and not self._is_slow:
                self._is_slow = True
                self._trouble = f"its command has given no agent's greeting for {timing.slow_greeting_s:g} s{but}"
            return
        if silent_s >= MISSED_KEEP_ALIVES * timing.keep_alive_s:
            self._lose(HostError(f"it has not answered for {silent_s:.0f} s"), hopeless=False)
        elif now_s >= self._pinged_s + timing.keep_alive_s:
            self._ping()

    def _connect(self) -> None:
        self._heard_s = time.monotonic()
        try:
            self._connection = AgentConnection(
                self._command, self.blobs, self._loop, self._on_frame, lambda why: self._lose(why, hopeless=False)
            )
        except HostError as error:
            self._lose(error, hopeless=False)

    def _on_frame(self, header: dict[str, Any], body: bytes) -> None:
        self._heard_s = time.monotonic()
        try:
            if self._live is None:
                self._greeted(header)
            elif header["do"] == "refused":
                self._lose(HostError(str(header.get("why"))), hopeless=False)
            else:
                self._heard(header, body)
        except FrameError as error:
            self._lose(HostError(f"its agent sent {error}"), hopeless=False)
        except HostError as error:
            self._lose(error, hopeless=True)
        except Exception as error:  # noqa: BLE001 - a call that nobody answers would wait for ever
            _log.debug("what the agent sent could not be acted on", exc_info=True)
            self._lose(HostError(f"its agent sent what cannot be: {error!r}"), hopeless=False)

    def _greeted(self, header: dict[str, Any]) -> None:
        assert self._connection is not None
        facts = self._connection.greet(header)
        self._connection.channel.send({"do": "welcome", "keep_alive_s": self._timing.keep_alive_s})
        self._retry_s = self._timing.first_retry_s
        self._is_slow = False
        self._live = self._connection
        for worker in self._every():
            self._begin(worker)
        for worker in self._every():
            self._pump(worker)
        self._ping()
        self._tell(facts, "")

    def _tell(self, facts: HostFacts | None, trouble: str) -> None:
        with self._changed:
            changed = (facts is None) != (self._facts is None) or self._hopeless
            self._facts, self._trouble = facts, trouble
            self._changed.notify_all()
        if changed:
            self._call_watchers()

    def _call_watchers(self) -> None:
        for watcher in self._watchers:
            watcher(self.name)

    def _ping(self) -> None:
        assert self._connection is not None
        self._pinged_s = time.monotonic()
        self._connection.channel.send({"do": "ping"})

    def _lose(self, error: HostError, *, hopeless: bool) -> None:
        """Give up a connection: what is in flight fails, what waits goes on waiting for the next."""
        connection, self._connection, self._live = self._connection, None, None
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
        self._past_own_cpu_s = self._own_cpu_s
        self._use = self._used = None
        for worker in self._every():
            worker.past_generations = worker.generation
            worker.past_cpu_s, worker.pid = worker.cpu_s, None
        self._fail_flying(connection, self._lost_during)
        self._fail_questions(self._lost())
        if hopeless:
            self._fail_queues()

    def _heard(self, header: dict[str, Any], body: bytes) -> None:
        if header["do"] != "pong":
            self._take(header, body)
            return
        own_s, used_s = self._seconds(header["own_cpu_s"]), header["cpu_s"]
        self._clock_off_s = float(header["clock_s"]) - (time.time() - (time.monotonic() - self._pinged_s) / 2)
        self._own_cpu_s = self._past_own_cpu_s + own_s
        self._take_use(own_s + sum(used_s.values()), float(header["others_cores"]))
        for name, cpu_s in used_s.items():
            worker = self._workers[name]
            worker.cpu_s = max(worker.cpu_s, worker.past_cpu_s + self._seconds(cpu_s))
        with self._changed:
            self._changed.notify_all()
        late_s = time.monotonic() - self._timing.late_s
        for worker in self._every():
            if (call := worker.current) is not None and call.taken_s and call.taken_s + call.deadline_s < late_s:
                what = f"{worker.name}.{call.method}"
                self._lose(HostError(f"it has given no answer to {what}, long after its deadline"), hopeless=False)
                return

    def _take_use(self, cpu_s: float, others: float) -> None:
        before, now_s = self._used, time.monotonic()
        self._used = now_s, cpu_s
        if before is None:
            return
        ours = max(cpu_s - before[1], 0.0) / max(now_s - before[0], 1e-9)
        past, self._use = self._use, HostUse(round(ours, 1), round(others, 1))
        if self._use != past:
            self._call_watchers()

    @override
    def _close(self) -> None:
        self._over = True
        connection, self._connection, self._live = self._connection, None, None
        self._fail_flying(connection, self._unanswered)
        for worker in self._every():
            self._fail_waiting(worker, partial(self._unanswered, worker))
        self._fail_questions(EngineError("the engine is closed"))
        if connection is not None:
            connection.end(orderly=True)
