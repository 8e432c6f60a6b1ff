"""Several hosts as one engine: each host has an engine of its own, and all of them the caller's blobs."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from typing_extensions import override

from tunery._errors import EngineError
from tunery.blobs import Blobs
from tunery.domain import HostFacts
from tunery.engines._base import Engine, HostUse, WorkerSpec


class JoinedEngine(Engine):
    """The engines of several hosts, by the host's name; the first host is the one that its caller works on. A worker is
    started on the host that its spec names, on the first where it names none. Its id is `HOST/ID`. The engines were
    made with the same blobs, and each brings to its host what a call needs. They are closed with this one."""

    def __init__(self, engines: Mapping[str, Engine], *, grows: bool = False) -> None:
        if not engines:
            raise EngineError("an engine of several hosts needs at least one")
        self.grows = self.grows or grows
        self._engines: dict[str, Engine] = {}
        self._trusted = {next(iter(engines))}
        self._left: frozenset[str] = frozenset()
        self._listeners: list[Callable[[str], None]] = []
        self.blobs = next(iter(engines.values())).blobs
        for host, engine in engines.items():
            self.add(host, engine)

    def add(self, host: str, engine: Engine) -> None:
        if host in self._engines or "/" in host:
            raise EngineError(f"two hosts are called {host!r}, or none may be; give one of them another name")
        self._engines[host] = engine
        for listener in self._listeners:
            listener(host)
            self._tell(engine, host, listener)

    def trust(self, host: str, *, trusted: bool) -> None:
        (self._trusted.add if trusted else self._trusted.discard)(host)

    @override
    def trusts(self, host: str) -> bool:
        return host in self._trusted

    def leave(self, host: str) -> None:
        """Have a further host be none any more: nothing is started on it, what it has may be asked on."""
        self._left |= {host}

    def come_back(self, host: str) -> None:
        self._left -= {host}

    @classmethod
    @override
    def open(cls, scratch: Path, blobs: Blobs) -> Self:
        raise EngineError("an engine of several hosts is made of their engines")

    @property
    @override
    def hosts(self) -> tuple[str, ...]:
        return tuple(host for host in tuple(self._engines) if host not in self._left)  # they join on another thread

    @override
    def log_directory(self) -> Path | None:
        return self._engines[self.hosts[0]].log_directory()

    @override
    def facts(self, host: str = "") -> HostFacts | None:
        return self._engines[host or self.hosts[0]].facts()

    @override
    def trouble(self, host: str = "") -> str:
        return self._engines[host or self.hosts[0]].trouble()

    @override
    def use(self, host: str = "") -> HostUse | None:
        return self._engines[host or self.hosts[0]].use()

    @override
    def watch(self, changed: Callable[[str], None]) -> None:
        self._listeners.append(changed)
        for host, engine in list(self._engines.items()):
            self._tell(engine, host, changed)

    def _tell(self, engine: Engine, host: str, changed: Callable[[str], None]) -> None:
        engine.watch(lambda _: changed(host))

    @override
    def start(self, spec: WorkerSpec) -> str:
        host = self.host_of(spec)
        return f"{host}/{self._engines[host].start(replace(spec, host=''))}"

    @override
    def call(self, worker: str, method: str, *args: object, deadline_s: float) -> Future[Any]:
        engine, name = _find(self._engines, worker)
        return engine.call(name, method, *args, deadline_s=deadline_s)

    @override
    def kill(self, worker: str) -> None:
        engine, name = _find(self._engines, worker)
        engine.kill(name)

    @override
    def generation(self, worker: str) -> int:
        engine, name = _find(self._engines, worker)
        return engine.generation(name)

    @override
    def place(self, worker: str, cores: tuple[int, ...]) -> None:
        engine, name = _find(self._engines, worker)
        engine.place(name, cores)

    @override
    def pid(self, worker: str) -> int | None:
        engine, name = _find(self._engines, worker)
        return engine.pid(name)

    @override
    def cpu_s(self, worker: str) -> float | None:
        engine, name = _find(self._engines, worker)
        return engine.cpu_s(name)

    @override
    def own_cpu_s(self) -> float:
        return sum(engine.own_cpu_s() for engine in list(self._engines.values()))

    @override
    def obstacle(self) -> str:
        return next(filter(None, (engine.obstacle() for engine in list(self._engines.values()))), "")

    @override
    def hold_device(self, host: str = "") -> Future[Callable[[], None]]:
        return self._engines[host or self.hosts[0]].hold_device()

    @override
    def close(self) -> None:
        with ThreadPoolExecutor() as threads:  # a host that does not answer holds up none of the others
            for closed in [threads.submit(engine.close) for engine in self._engines.values()]:
                closed.result()


def _find(by_host: Mapping[str, Engine], worker: str) -> tuple[Engine, str]:
    host, _, name = worker.partition("/")
    if host not in by_host:
        raise EngineError(f"there is no worker {worker!r}; the hosts are {', '.join(by_host)}")
    return by_host[host], name
