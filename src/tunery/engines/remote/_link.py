"""The connection to a host's agent: made, kept alive, and made again after it was lost."""

import logging
import math
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from tunery._errors import EngineError, HostError, LostWorkerError
from tunery.blobs import Blobs
from tunery.domain import HostFacts
from tunery.engines._base import HostUse
from tunery.engines.remote._connection import Connection, agent_command, on_thread
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


class Listener(Protocol):
    """What a link tells of its host, on the link's thread."""

    def begun(self, connection: Connection) -> None:
        """The agent has greeted; everything goes over `connection` until `lost`."""

    def heard(self, header: dict[str, Any], body: bytes) -> None:
        """A frame came."""

    def received(self, digest: str, failed: str) -> None:
        """A blob that was asked for has come, or `failed` says why it has not."""

    def lost(self) -> None:
        """The connection is gone: what is in flight has failed, what waits may wait for the next."""

    def given_up(self) -> None:
        """What waits is not to wait any longer."""

    @property
    def waits(self) -> bool: ...

    def overdue(self, late_s: float) -> str:
        """Return what the agent should have answered `late_s` ago; "" where that is nothing."""

    def closed(self) -> None:
        """The engine was closed."""


class Link:
    """Runs the connect command at once and again whenever it ends, later and later, on a thread of its own.

    `listener` hears of it once `begin` was called; `post` has something done on the same thread.

    Raises:
        HostError: the command is empty or cannot be read.
    """

    def __init__(self, host: str, connect: str, blobs: Blobs, timing: Timing) -> None:
        self.host, self._command, self._blobs, self._timing = host, agent_command(connect), blobs, timing
        self.facts: HostFacts | None = None
        self.trouble = ""
        self.hopeless = False
        self.own_cpu_s = 0.0
        self.use: HostUse | None = None
        self._used: tuple[float, float] | None = None  # when, and the CPU seconds of this connection until then
        self._past_own_cpu_s = 0.0
        self._clock_off_s: float | None = None
        self._losses = 0
        self._is_slow = False
        self._watchers: list[Callable[[str], None]] = []
        self._connection: Connection | None = None
        self._talking: threading.Thread | None = None
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = self._over = False
        self._changed = threading.Condition()
        now_s = time.monotonic()
        self._heard_s = self._pinged_s = self._away_s = self._retry_at_s = now_s
        self._retry_s = timing.first_retry_s
        self._listener: Listener
        self._thread: threading.Thread

    @property
    def most_cpu_s(self) -> float:
        """How many CPU seconds its processes cannot have used on this connection; nothing that it tells may be more."""
        cores = 1 if self.facts is None else self.facts.granted
        return 0.0 if self._connection is None else self._connection.most_cpu_s(cores)

    def begin(self, listener: Listener) -> None:
        """Start to connect; `listener` hears of it."""
        self._listener = listener
        self._thread = on_thread(f"tunery-host-{self.host}", self._run)

    # What other threads may use.

    def watch(self, changed: Callable[[str], None]) -> None:
        """Have `changed` called with the host's name whenever it comes or goes, or its use changes."""
        self.post(lambda: self._watchers.append(changed))

    def wait(self, seconds: float, tries: int) -> HostFacts:
        """Return the host's facts once it has answered."""
        with self._changed:
            self._changed.wait_for(
                lambda: self.facts is not None or self.hopeless or self._closed or self._losses >= tries, seconds
            )
            if self.facts is None:
                raise HostError(f"host {self.host} cannot be used: {self.trouble or 'it has not answered yet'}")
            return self.facts

    def try_again(self) -> None:
        """Connect at once if the host is away."""

        def soon() -> None:
            self._retry_at_s, self._retry_s = time.monotonic(), self._timing.first_retry_s

        self.post_if_open(soon)

    def reach_by(self, connect: str) -> None:
        """Use a connect command from now on; a host that was given up is tried again."""
        command = agent_command(connect)

        def change() -> None:
            if command == self._command and not self.hopeless:
                return
            self._command = command
            if self._connection is not None:
                self._lose(HostError("its connect command was changed"), hopeless=False)
            self.hopeless = False
            self._retry_at_s, self._retry_s = time.monotonic(), self._timing.first_retry_s

        self.post_if_open(change)

    def give_up(self, why: str) -> None:
        """End the connection, for the reason that is given, and do not connect again."""
        self.post_if_open(lambda: self._lose(HostError(why), hopeless=True))

    def clock_off_s(self, seconds: float) -> float | None:
        """Return by how much the host's clock is ahead of ours; None where that is not known within so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._clock_off_s is not None, seconds)
            return self._clock_off_s

    def post(self, action: Callable[[], None]) -> None:
        """Have something done on the link's thread."""
        if not self.post_if_open(action):
            raise EngineError("the engine is closed")

    def post_if_open(self, action: Callable[[], None]) -> bool:
        """Have something done on the link's thread, unless the engine is closed."""
        with self._lock:
            if not self._closed:
                self._inbox.put(action)
            return not self._closed

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                self._inbox.put(self._close)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def lost(self, what: str = "") -> LostWorkerError:
        return LostWorkerError(f"{what}host {self.host} is away: {self.trouble}")

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
            _log.exception("the engine of host %s met a fault of its own", self.host)

    def _due_s(self) -> float:
        now_s, timing = time.monotonic(), self._timing
        if self._connection is None:
            retry_at_s = math.inf if self.hopeless else self._retry_at_s
            return max(0.0, min(retry_at_s, self._away_s + timing.patience_s if self._listener.waits else math.inf,
                                now_s + 3600.0) - now_s)  # fmt: skip
        if self.facts is None:
            limit_s = timing.greeting_s if self._is_slow else min(timing.slow_greeting_s, timing.greeting_s)
            return max(0.0, self._heard_s + limit_s - now_s)
        return max(0.0, min(self._pinged_s, self._heard_s + (MISSED_KEEP_ALIVES - 1) * timing.keep_alive_s)
                   + timing.keep_alive_s - now_s)  # fmt: skip

    def _tick(self) -> None:
        now_s, timing = time.monotonic(), self._timing
        if self._connection is None:
            if now_s >= self._away_s + timing.patience_s:
                self._listener.given_up()
            if now_s >= self._retry_at_s and not self.hopeless:
                self._connect()
            return
        silent_s = now_s - self._heard_s
        if self.facts is None:
            but = (said := self._connection.said) and f", but {said}"
            slow = silent_s >= timing.slow_greeting_s
            why = slow and self._connection.no_greeting
            if why or silent_s >= timing.greeting_s:
                what = f"its command gave no agent's greeting within {silent_s:.0f} s{but}"
                self._lose(HostError(f"{what}: {why}" if why else what), hopeless=False)
            elif slow and not self._is_slow:
                self._is_slow = True
                self.trouble = f"its command has given no agent's greeting for {timing.slow_greeting_s:g} s{but}"
            return
        if silent_s >= MISSED_KEEP_ALIVES * timing.keep_alive_s:
            self._lose(HostError(f"it has not answered for {silent_s:.0f} s"), hopeless=False)
        elif now_s >= self._pinged_s + timing.keep_alive_s:
            self._ping()

    def _connect(self) -> None:
        self._heard_s = time.monotonic()
        try:
            connection = Connection(self._command, self._blobs)
        except HostError as error:
            self._lose(error, hopeless=False)
            return
        self._connection = connection
        self._talking = on_thread(
            f"tunery-talk-{self.host}",
            lambda: connection.talk(
                greeted=lambda facts: self._hear(connection, lambda: self._greeted(facts)),
                heard=lambda header, body: self._hear(connection, lambda: self._heard(header, body)),
                received=lambda digest, failed: self._hear(connection, lambda: self._listener.received(digest, failed)),
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
        self._listener.begun(self._connection)
        self._ping()
        self._tell(facts, "")

    def _tell(self, facts: HostFacts | None, trouble: str) -> None:
        with self._changed:
            changed = (facts is None) != (self.facts is None) or self.hopeless
            self.facts, self.trouble = facts, trouble
            self._changed.notify_all()
        if changed:
            self._call_watchers()

    def _call_watchers(self) -> None:
        for watcher in self._watchers:
            watcher(self.host)

    def _ping(self) -> None:
        assert self._connection is not None
        self._pinged_s = time.monotonic()
        self._connection.writer.send({"do": "ping"})

    def _lose(self, error: HostError, *, hopeless: bool) -> None:
        """Give up a connection: what is in flight fails, what waits goes on waiting for the next."""
        connection, self._connection = self._connection, None
        now_s = time.monotonic()
        if self.facts is not None:
            self._away_s = now_s
        self.hopeless = hopeless
        self._losses += 1
        self._retry_at_s = now_s + self._retry_s
        self._retry_s = min(2 * self._retry_s, self._timing.last_retry_s)
        self._tell(None, str(error))
        if connection is not None:
            connection.end(orderly=False)
        self._past_own_cpu_s = self.own_cpu_s
        self.use = self._used = None
        self._listener.lost()
        if hopeless:
            self._listener.given_up()

    def _heard(self, header: dict[str, Any], body: bytes) -> None:
        if header["do"] == "pong":
            own_s = seconds_of(header["own_cpu_s"], self.most_cpu_s)
            self._clock_off_s = float(header["clock_s"]) - (time.time() - (time.monotonic() - self._pinged_s) / 2)
            self.own_cpu_s = self._past_own_cpu_s + own_s
            self._take_use(own_s + sum(header["cpu_s"].values()), float(header["others_cores"]))
        self._listener.heard(header, body)
        if header["do"] == "pong":
            with self._changed:
                self._changed.notify_all()
            if late := self._listener.overdue(self._timing.late_s):
                self._lose(HostError(f"it has given no answer to {late}, long after its deadline"), hopeless=False)

    def _take_use(self, cpu_s: float, others: float) -> None:
        """Take in what the agent's processes have used since its last answer, and what others have."""
        before, now_s = self._used, time.monotonic()
        self._used = now_s, cpu_s
        if before is None:
            return
        ours = max(cpu_s - before[1], 0.0) / max(now_s - before[0], 1e-9)
        past, self.use = self.use, HostUse(round(ours, 1), round(others, 1))
        if self.use != past:
            self._call_watchers()

    def _close(self) -> None:
        self._over = True
        connection, self._connection = self._connection, None
        self._listener.closed()
        if connection is not None:
            connection.end(orderly=True)
        if self._talking is not None:
            self._talking.join(0.5)
