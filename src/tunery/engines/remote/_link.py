"""The connection to a host's agent: made, kept alive, and made again after it was lost."""

import logging
import math
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from typing_extensions import override

from tunery._errors import EngineError, HostError, LostWorkerError
from tunery.blobs import Blobs
from tunery.domain import HostFacts
from tunery.engines._base import Engine, HostUse
from tunery.engines.remote._connection import AgentConnection, agent_command, on_thread
from tunery.engines.remote._protocol import ProtocolError, seconds_of
from tunery.engines.remote.agent import MISSED_KEEP_ALIVES

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Timing:
    """When a silent host counts as gone, in seconds, and how long calls wait for one that is.

    An agent that has not greeted after `slow_greeting_s` is in trouble, and waited for as long as it may still greet:
    Python takes up to 40 s to start on a slow board. One that gives no answer for `late_s` after a call's deadline has
    lost it; until then the worker may still have to start.
    """

    keep_alive_s: float = 5.0
    slow_greeting_s: float = 10.0
    greeting_s: float = 60.0
    patience_s: float = 60.0
    first_retry_s: float = 0.5
    last_retry_s: float = 30.0
    late_s: float = 150.0


class HostLink(Engine):
    """An engine on another host: runs the connect command at once and again whenever it ends, later and later.

    All that is private runs on a thread of its own, and what subclasses add to it is called there; `_post` has
    something done on it. `_begin` starts it.

    Raises:
        HostError: the command is empty or cannot be read.
    """

    def __init__(self, name: str, connect: str, blobs: Blobs, timing: Timing | None) -> None:
        self.name, self._command, self._home, self._timing = name, agent_command(connect), blobs, timing or Timing()
        self._facts: HostFacts | None = None
        self._trouble = ""
        self._hopeless = False
        self._own_cpu_s = self._past_own_cpu_s = 0.0
        self._use: HostUse | None = None
        self._used: tuple[float, float] | None = None  # when, and the CPU seconds of this connection until then
        self._clock_off_s: float | None = None
        self._losses = 0
        self._is_slow = False
        self._watchers: list[Callable[[str], None]] = []
        self._connection: AgentConnection | None = None
        self._live: AgentConnection | None = None  # the same once its agent has greeted
        self._talking: threading.Thread | None = None
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = self._over = False
        self._changed = threading.Condition()
        now_s = time.monotonic()
        self._heard_s = self._pinged_s = self._away_s = self._retry_at_s = now_s
        self._retry_s = self._timing.first_retry_s
        self._thread: threading.Thread

    def _begin(self) -> None:
        self._thread = on_thread(f"tunery-host-{self.name}", self._run)

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
        self._post(lambda: self._watchers.append(changed))

    # What is made over the link, on its thread.

    def _begun(self) -> None:
        """Make what waits: the agent has greeted, and everything goes over `_live` until it is lost."""

    def _take(self, header: dict[str, Any], body: bytes) -> None:
        """Act on a frame."""

    def _received(self, digest: str, failed: str) -> None:
        """Act on a blob that was asked for and has come; `failed` says why it has not."""

    def _fail_in_flight(self) -> None:
        """Fail what is in flight: the connection is gone. What waits may wait for the next."""

    def _fail_waiting(self) -> None:
        """Fail what waits for a host that is away."""

    def _fail_all(self) -> None:
        """Fail everything: the engine is closed."""

    def _waits(self) -> bool:
        """Return whether anything waits."""
        return False

    def _overdue(self, late_s: float) -> str:  # noqa: ARG002
        """Return what the agent should have answered `late_s` ago; "" where that is nothing."""
        return ""

    def _seconds(self, value: object) -> float:
        """Return CPU seconds that the host tells; its processes cannot have used more on this connection."""
        cores = 1 if self._facts is None else self._facts.granted
        return seconds_of(value, 0.0 if self._connection is None else self._connection.most_cpu_s(cores))

    # What other threads may use.

    def wait(self, seconds: float, tries: int = 1 << 30) -> HostFacts:
        """Wait until the host answers and return its facts."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._facts is not None or self._hopeless or self._closed or self._losses >= tries, seconds
            )
            if self._facts is None:
                raise HostError(f"host {self.name} cannot be used: {self._trouble or 'it has not answered yet'}")
            return self._facts

    def try_again(self) -> None:
        """Connect at once if the host is away: somebody has seen that it is back."""

        def soon() -> None:
            self._retry_at_s, self._retry_s = time.monotonic(), self._timing.first_retry_s

        self._post_if_open(soon)

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

        self._post_if_open(change)

    def give_up(self, why: str) -> None:
        """End the connection and do not connect again, unless `reach_by` says so; calls fail with LostWorkerError."""
        self._post_if_open(lambda: self._lose(HostError(why), hopeless=True))

    def clock_off_s(self, seconds: float = 0.0) -> float | None:
        """Return by how much the host's clock is ahead of ours; None where that is not known within so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._clock_off_s is not None, seconds)
            return self._clock_off_s

    def _post(self, action: Callable[[], None]) -> None:
        """Have something done on the link's thread."""
        if not self._post_if_open(action):
            raise EngineError("the engine is closed")

    def _post_if_open(self, action: Callable[[], None]) -> bool:
        """Have something done on the link's thread, unless the engine is closed."""
        with self._lock:
            if not self._closed:
                self._inbox.put(action)
            return not self._closed

    @override
    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                self._inbox.put(self._close)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _lost(self, what: str = "") -> LostWorkerError:
        return LostWorkerError(f"{what}host {self.name} is away: {self._trouble}")

    # What follows runs on the link's thread.

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
            return max(0.0, min(retry_at_s, self._away_s + timing.patience_s if self._waits() else math.inf,
                                now_s + 3600.0) - now_s)  # fmt: skip
        if self._facts is None:
            limit_s = timing.greeting_s if self._is_slow else min(timing.slow_greeting_s, timing.greeting_s)
            return max(0.0, self._heard_s + limit_s - now_s)
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
            connection = AgentConnection(self._command, self._home)
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

    def _hear(self, connection: AgentConnection, action: Callable[[], None]) -> None:
        """Have something that a connection said acted on, unless there is another one by then."""

        def act() -> None:
            if self._connection is connection:
                self._heard_s = time.monotonic()
                try:
                    action()
                except ProtocolError as error:
                    self._lose(HostError(f"its agent sent {error}"), hopeless=False)
                except HostError as error:
                    self._lose(error, hopeless=True)
                except Exception as error:  # noqa: BLE001 - a call that nobody answers would wait for ever
                    _log.debug("what the agent sent could not be acted on", exc_info=True)
                    self._lose(HostError(f"its agent sent what cannot be: {error!r}"), hopeless=False)

        self._inbox.put(act)

    def _greeted(self, facts: HostFacts) -> None:
        assert self._connection is not None
        self._connection.writer.send({"do": "welcome", "keep_alive_s": self._timing.keep_alive_s})
        self._retry_s = self._timing.first_retry_s
        self._is_slow = False
        self._live = self._connection
        self._begun()
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
        self._connection.writer.send({"do": "ping"})

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
        self._fail_in_flight()
        if hopeless:
            self._fail_waiting()

    def _heard(self, header: dict[str, Any], body: bytes) -> None:
        if header["do"] == "pong":
            own_s = self._seconds(header["own_cpu_s"])
            self._clock_off_s = float(header["clock_s"]) - (time.time() - (time.monotonic() - self._pinged_s) / 2)
            self._own_cpu_s = self._past_own_cpu_s + own_s
            self._take_use(own_s + sum(header["cpu_s"].values()), float(header["others_cores"]))
        self._take(header, body)
        if header["do"] == "pong":
            with self._changed:
                self._changed.notify_all()
            if late := self._overdue(self._timing.late_s):
                self._lose(HostError(f"it has given no answer to {late}, long after its deadline"), hopeless=False)

    def _take_use(self, cpu_s: float, others: float) -> None:
        """Take in what the agent's processes have used since its last answer, and what others have."""
        before, now_s = self._used, time.monotonic()
        self._used = now_s, cpu_s
        if before is None:
            return
        ours = max(cpu_s - before[1], 0.0) / max(now_s - before[0], 1e-9)
        past, self._use = self._use, HostUse(round(ours, 1), round(others, 1))
        if self._use != past:
            self._call_watchers()

    def _close(self) -> None:
        self._over = True
        connection, self._connection, self._live = self._connection, None, None
        self._fail_all()
        if connection is not None:
            connection.end(orderly=True)
        if self._talking is not None:
            self._talking.join(0.5)
