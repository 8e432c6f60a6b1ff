"""Further hosts: those that build, which join and leave while jobs run, and the one that is measured on."""

import asyncio
import logging
import platform
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from tunery._errors import EngineError, FullHostError, GoneDeviceError, LostWorkerError
from tunery._sandbox import lacking
from tunery.devices import open_device
from tunery.domain import DeviceDescription, HostFacts
from tunery.engines import Engine, HostUse
from tunery.runtime.foreign_load import Foreign

_READY_DEADLINE_S = 300.0
_AWAY_S, _LOOK_S, _FULL_LOOK_S = 600.0, 0.5, 5.0  # how long measuring waits for its host, and how often it looks
_QUIET_S = 600.0  # a host that is away again is not named again so soon
_UNHEARD_S = 0.1  # between looks at hosts that have not answered: a short job names them as well
_log = logging.getLogger(__name__)


class FurtherHosts:
    """Which of an engine's further hosts take builds now. A host joins when it answers, runs machine code of our kind,
    and its builders have the compiler that `builder`, one here, has: `start` then starts them, once, and returns their
    ids. `resized` hears how many builds a host takes from now on: fewer while others are at work there (`others`, of a
    host and its use, says with how many cores), 0 when it has left. A host that is away is named in a warning, unless
    it is one of `named`: one that comes and goes is named once in ten minutes."""

    def __init__(
        self,
        engine: Engine,
        builder: str,
        start: Callable[[str, HostFacts], list[str]],
        resized: Callable[[str, int], None],
        others: Callable[[str, HostUse], float],
        *,
        named: dict[str, float],
    ) -> None:
        self._engine, self._builder, self._start, self._resized, self._others = engine, builder, start, resized, others
        self._named = named
        self._builders: dict[str, list[str]] = {}
        self._foreign: dict[str, Foreign] = {}
        self._room: dict[str, int] = {}
        self._following: asyncio.Task[None] | None = None
        self._joining: dict[str, asyncio.Task[None]] = {}
        self._here = _vectors(open_device("cpu").describe())
        self.up: list[str] = []

    def delivers(self, host: str) -> bool:
        """Return whether a host may build what is run here as our own, and its processor does what ours does."""
        facts = self._engine.facts(host)
        return facts is not None and self._engine.trusts(host) and self._here <= _vectors(facts.devices[0])

    def follow(self) -> None:
        """Keep up with the hosts from now on; the event loop ends it with itself."""
        if (self._engine.grows or len(self._engine.hosts) > 1) and (self._following is None or self._following.done()):
            self._following = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        loop, news = asyncio.get_running_loop(), asyncio.Queue[str]()

        def tell(host: str) -> None:
            with suppress(RuntimeError):  # the loop is over
                loop.call_soon_threadsafe(news.put_nowait, host)

        self._engine.watch(tell)
        for host in self._engine.hosts[1:]:
            news.put_nowait(host)
        while True:
            try:
                host = await asyncio.wait_for(news.get(), _UNHEARD_S if self._unheard() else None)
            except TimeoutError:
                for host in self._unheard():
                    self._name(host, self._engine.trouble(host))
                continue
            if host in self._joining:
                self._joining.pop(host).cancel()
            facts = self._engine.facts(host) if host in self._engine.hosts[1:] else None
            if facts is None:
                self.leave(host, self._engine.trouble(host))
            elif host in self.up:
                self._look(host)
            else:
                self._joining[host] = asyncio.create_task(self._join(host, facts))

    def _unheard(self) -> list[str]:
        """Return the hosts that have not answered, which was not said yet."""
        return [host for host in self._engine.hosts[1:] if self._engine.facts(host) is None and host not in self._named]

    def _name(self, host: str, why: str) -> None:
        if why and host in self._engine.hosts and host not in self._named:
            self._named[host] = time.monotonic()
            _log.warning("no builds on host %s: %s; the work goes on without it. `tunery hosts check %s` says what is "
                         "missing, `tunery hosts remove %s` forgets it", host, why, host, host,
                         extra={"host": host})  # fmt: skip

    def _look(self, host: str) -> None:
        if (use := self._engine.use(host)) is None:
            return
        foreign = self._foreign[host]
        foreign.look(time.monotonic(), self._others(host, use))
        room = min(foreign.share.cores, len(self._builders[host]))
        if room != self._room[host]:
            self._room[host] = room
            self._resized(host, room)

    def taken(self, host: str) -> float | None:
        return self._foreign[host].taken if host in self.up and self._engine.use(host) is not None else None

    async def _join(self, host: str, facts: HostFacts) -> None:
        if facts.machine != platform.machine():
            _log.info("host %s does not build: it is %s, this is %s", host, facts.machine, platform.machine(),
                      extra={"host": host})  # fmt: skip
            return
        if not self._engine.trusts(host) and (parts := lacking()):
            _log.warning("host %s does not build: to run what it builds confined, this machine lacks %s; where you "
                         "trust the host, add it again with --trust", host, ", ".join(parts),
                         extra={"host": host})  # fmt: skip
            return
        try:
            if host not in self._builders:
                self._builders[host] = self._start(host, facts)
            ours, theirs = await asyncio.gather(self._compiler(self._builder), self._compiler(self._builders[host][0]))
        except EngineError as error:
            _log.warning("host %s does not build: %s; see `tunery hosts check %s`", host, error, host,
                         extra={"host": host})  # fmt: skip
            return
        if ours != theirs:
            _log.warning("host %s does not build: it has %s, this has %s", host, theirs, ours, extra={"host": host})
        elif self._engine.facts(host) is not None:
            self.up.append(host)
            if self._named.get(host, 0.0) + _QUIET_S < time.monotonic():
                self._named.pop(host, None)
            self._foreign[host], self._room[host] = Foreign(len(facts.cores)), len(self._builders[host])
            self._resized(host, self._room[host])

    async def _compiler(self, builder: str) -> str:
        found: str = await asyncio.wrap_future(self._engine.call(builder, "compiler", deadline_s=_READY_DEADLINE_S))
        return found

    def leave(self, host: str, why: str) -> None:
        if host in self.up:
            self._name(host, why)
            self.up.remove(host)
            self._resized(host, 0)


def _vectors(processor: DeviceDescription) -> set[str]:
    return set(processor.facts.get("vector", ()))


class HostDevice:
    """The device of another host, which one tunery at a time holds; `now` is the clock in seconds."""

    def __init__(self, engine: Engine, host: str, now: Callable[[], float]) -> None:
        self._engine, self._host, self._now = engine, host, now

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Hold the device until the block ends; its host may have to come back first."""
        end_s = self._now() + _AWAY_S
        while True:
            try:
                let_go = await asyncio.wrap_future(self._engine.hold_device(self._host))
            except LostWorkerError as error:
                if error.for_good or self._now() > end_s or self._host not in self._engine.hosts:
                    raise self.gone(error) from error
                await asyncio.sleep(_LOOK_S)
            else:
                break
        try:
            yield
        finally:
            let_go()

    async def room(self, error: FullHostError, since_s: float) -> None:
        if self._now() == since_s:
            _log.warning("%s; measuring waits for room there", error, extra={"host": self._host})
        if self._now() > since_s + _AWAY_S:
            raise self.gone(error) from error
        await asyncio.sleep(_FULL_LOOK_S)

    def gone(self, error: LostWorkerError) -> GoneDeviceError:
        how_long = "" if error.for_good else f" for {_AWAY_S / 60:.0f} min"
        return GoneDeviceError(
            f"nothing could be measured on host {self._host}{how_long}: {error}; what was measured is kept: see "
            f"`tunery hosts check {self._host}`, then start the same job again"
        )
