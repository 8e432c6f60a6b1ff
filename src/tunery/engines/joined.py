"""Several hosts as one engine: each host has an engine and blobs of its own; blobs move between them by content."""

import re
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Self, TypeVar

from typing_extensions import override

from tunery._errors import BlobNotFoundError, EngineError
from tunery.blobs import BlobPlace, Blobs
from tunery.engines._base import Engine, HostControl, WorkerSpec

_T = TypeVar("_T")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class JoinedEngine(Engine):
    """The engines of several hosts, by the host's name; the first host is the one that its caller works on.

    A worker is started on the host that its spec names, on the first where it names none. Its id is `HOST/ID`. What a
    call's arguments name by digest is copied to the worker's host before the call is made. The engines are closed with
    this one. There is a host control only where every host has one.

    Raises:
        EngineError: there is no host.
    """

    def __init__(self, engines: Mapping[str, Engine]) -> None:
        if not engines:
            raise EngineError("an engine of several hosts needs at least one")
        self._engines = dict(engines)
        self._joined = JoinedBlobs([engine.blobs for engine in self._engines.values()])
        self.blobs = self._joined
        controls = {host: engine.control for host, engine in self._engines.items() if engine.control is not None}
        self.control = _JoinedControl(controls) if len(controls) == len(self._engines) else None

    @classmethod
    @override
    def open(cls, scratch: Path, blobs: Blobs) -> Self:
        raise EngineError("an engine of several hosts is made of their engines")

    @property
    @override
    def hosts(self) -> tuple[str, ...]:
        return tuple(self._engines)

    def blobs_of(self, host: str) -> Blobs:
        """Return a host's own blobs."""
        return self._engines[host].blobs

    @override
    def start(self, spec: WorkerSpec) -> str:
        host = self.host_of(spec)
        return f"{host}/{self._engines[host].start(replace(spec, host=''))}"

    @override
    def call(self, worker: str, method: str, *args: object, deadline_s: float) -> Future[Any]:
        engine, name = _find(self._engines, worker)
        for digest in set(digests_in(args)):
            if not engine.blobs.has(digest) and self.blobs.has(digest):
                self._joined.copy(digest, engine.blobs)
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
    def close(self) -> None:
        for engine in self._engines.values():
            engine.close()


class JoinedBlobs(Blobs):
    """The blobs of several hosts seen from the first, which takes what is put; their owners close them."""

    def __init__(self, hosts: list[Blobs]) -> None:
        self._hosts, self._home = hosts, hosts[0]

    def copy(self, digest: str, to: Blobs) -> None:
        """Copy a blob's bytes to another host; it ends there with its release.

        Raises:
            BlobNotFoundError: no host has it.
            BlobError: the other host cannot keep it.
        """
        for blobs in self._hosts:
            if blobs.has(digest):
                to.put(blobs.get(digest).read_bytes(), temporary=True)
                return
        raise BlobNotFoundError(f"blob {digest} is on no host", digest)

    @override
    def put(self, source: bytes | Path, *, temporary: bool = False, move: bool = False, sync: bool = True) -> str:
        return self._home.put(source, temporary=temporary, move=move, sync=sync)

    @override
    def get(self, digest: str, *, verify: bool = False) -> Path:
        self._fetch(digest)
        return self._home.get(digest, verify=verify)

    @override
    def has(self, digest: str) -> bool:
        return any(blobs.has(digest) for blobs in self._hosts)

    @override
    def release(self, digest: str) -> None:
        for blobs in self._hosts:
            blobs.release(digest)

    @override
    def take(self, digest: str, path: Path) -> None:
        self._fetch(digest)
        self._home.take(digest, path)
        self.release(digest)

    @override
    def remember(self, key: str, digest: str) -> None:
        self._fetch(digest)
        self._home.remember(key, digest)

    @override
    def find(self, key: str) -> str | None:
        return self._home.find(key)

    @override
    def scratch(self) -> AbstractContextManager[Path]:
        return self._home.scratch()

    @override
    def sweep(self) -> int:
        return sum(blobs.sweep() for blobs in self._hosts)

    @property
    @override
    def place(self) -> BlobPlace | None:
        return self._home.place

    @override
    def close(self) -> None:
        """Nothing: each host's blobs are closed by who made them."""

    def _fetch(self, digest: str) -> None:
        if not self._home.has(digest):
            self.copy(digest, self._home)


class _JoinedControl(HostControl):
    def __init__(self, controls: Mapping[str, HostControl]) -> None:
        self._controls = controls

    @override
    def place(self, worker: str, cores: tuple[int, ...]) -> None:
        control, name = _find(self._controls, worker)
        control.place(name, cores)

    @override
    def pid(self, worker: str) -> int | None:
        control, name = _find(self._controls, worker)
        return control.pid(name)

    @override
    def cpu_s(self, worker: str) -> float:
        control, name = _find(self._controls, worker)
        return control.cpu_s(name)

    @override
    def own_cpu_s(self) -> float:
        return sum(control.own_cpu_s() for control in self._controls.values())


def _find(by_host: Mapping[str, _T], worker: str) -> tuple[_T, str]:
    host, _, name = worker.partition("/")
    if host not in by_host:
        raise EngineError(f"there is no worker {worker!r}; the hosts are {', '.join(by_host)}")
    return by_host[host], name


def digests_in(value: object) -> Iterator[str]:
    """Yield what may be a blob's digest in plain data: whether it is one, blobs say."""
    if isinstance(value, str):
        if _DIGEST.fullmatch(value):
            yield value
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from digests_in(getattr(value, field.name))
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from digests_in(inner)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for inner in value:
            yield from digests_in(inner)
