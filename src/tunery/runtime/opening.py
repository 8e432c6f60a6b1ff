"""Opening an engine with the hosts that the user has added, and the workers of one dialect on it."""

import asyncio
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

from tunery._errors import EngineError, HostError, UsageError
from tunery._settings import cache_directory, hosts_file, settings
from tunery.blobs import Blobs, DirectoryBlobs
from tunery.devices.cpu.facts import usable_cores
from tunery.domain import HERE, DeviceDescription
from tunery.engines import AgentEngine, Engine, JoinedEngine, engine_class
from tunery.engines.remote.registry import added_hosts, host_named
from tunery.runtime.dispatch import Dispatch
from tunery.runtime.foreign_load import watch_for
from tunery.runtime.runtime import Runtime, make_scratch
from tunery.runtime.spec import RuntimeSpec
from tunery.store import AsyncStore

_HOST_S, _SLOW_S = 60.0, 10.0
_log = logging.getLogger(__name__)


@contextmanager
def workplace(on: str = "", *, follow: bool = False) -> Iterator[tuple[Engine, Path]]:
    """Open an engine and a scratch directory, which go with the block; a host that is measured `on` is waited for. With
    `follow`, hosts that are added and removed meanwhile join and leave."""
    with _place(on, follow=follow) as (engine, scratch):
        if on:
            came = threading.Event()
            _watch(engine, on, came.set)
            if engine.facts(on) is None and not came.wait(_SLOW_S):
                _name_slow(engine, on)
                came.wait(_HOST_S - _SLOW_S)
        yield engine, scratch


@contextmanager
def _place(on: str, *, follow: bool) -> Iterator[tuple[Engine, Path]]:
    cache, kind = cache_directory(), engine_class(settings().engine)
    if on:
        host_named(on, added_hosts())
    tempfile.gettempdir()  # raises where there is none, before a worker does in the middle
    try:
        scratch, held = make_scratch(cache)
    except OSError as error:
        why = error.strerror or error
        raise UsageError(f"cannot use {cache}: {why}; set TUNERY_CACHE to a directory of your own") from error
    try:
        with DirectoryBlobs(cache / "blobs") as blobs, _open_engine(kind, scratch, blobs, follow=follow) as engine:
            yield engine, scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        os.close(held)


def _watch(engine: Engine, on: str, came: Callable[[], object]) -> None:
    """Have `came` called, on a thread of the engine, when the host that is measured `on` has answered or never will."""

    def changed(name: str) -> None:
        if name == on:
            with suppress(RuntimeError):  # whoever waited is gone, with his event loop
                came()

    engine.watch(changed)


def _name_slow(engine: Engine, on: str) -> None:
    trouble = engine.trouble(on) or "it has not answered yet"
    _log.warning("host %s: %s; it is waited for, %g s in all", on, trouble, _HOST_S, extra={"host": on})


def granted_at(engine: Engine, on: str) -> int | None:
    if not on:
        return None
    facts = engine.facts(on)
    if facts is None:
        raise HostError(f"host {on} cannot be used: {engine.trouble(on)}; see `tunery hosts check {on}`")
    return facts.granted


@contextmanager
def _open_engine(kind: type[Engine], scratch: Path, blobs: Blobs, *, follow: bool) -> Iterator[Engine]:
    joined = follow or bool(added_hosts())
    opened = kind.open(scratch, blobs)
    if joined and not isinstance(opened, JoinedEngine):
        opened = JoinedEngine({HERE: opened}, grows=follow)
    with opened:
        if isinstance(opened, JoinedEngine):
            with closing(AddedHosts(opened, blobs, follow=follow)):
                yield opened
        else:
            yield opened


@contextmanager
def open_runtime(spec: RuntimeSpec, dispatch: Dispatch | None = None, *, follow: bool = False) -> Iterator[Runtime]:
    with workplace(spec.on, follow=follow) as (engine, scratch):
        yield _runtime(engine, spec, scratch, dispatch)


async def open_runtime_on(stack: ExitStack, spec: RuntimeSpec, dispatch: Dispatch, *, follow: bool = False) -> Runtime:
    """Do as `open_runtime` until `stack` is closed; the event loop goes on while a host is waited for."""
    loop, came = asyncio.get_running_loop(), asyncio.Event()
    with ExitStack() as opened:
        engine, scratch = opened.enter_context(_place(spec.on, follow=follow))
        _watch(engine, spec.on, lambda: loop.call_soon_threadsafe(came.set))
        if engine.facts(spec.on) is None:
            with suppress(TimeoutError):
                await asyncio.wait_for(came.wait(), _SLOW_S)
            if not came.is_set():
                _name_slow(engine, spec.on)
            with suppress(TimeoutError):
                await asyncio.wait_for(came.wait(), _HOST_S - _SLOW_S)
        runtime = _runtime(engine, spec, scratch, dispatch)
        stack.push(opened.pop_all())
    return runtime


def _runtime(engine: Engine, spec: RuntimeSpec, scratch: Path, dispatch: Dispatch | None) -> Runtime:
    granted_at(engine, spec.on)
    foreign = None if spec.on else watch_for(usable_cores(), spec.device)
    return Runtime(engine, spec, scratch, dispatch=dispatch, foreign=foreign)


async def introduce(runtime: Runtime, store: AsyncStore) -> DeviceDescription:
    device = await runtime.device()
    await store.write(lambda opened: opened.devices.save(device.fingerprint, device.as_facts(), runtime.measured_on))
    return device


_LOOK_S = 1.0


class AddedHosts:
    """Has the hosts that were added join an engine; with `follow` those too that are added later, until `close`. One
    that is removed leaves, one whose command was changed is reached by the new one."""

    def __init__(self, engine: JoinedEngine, blobs: Blobs, *, follow: bool) -> None:
        self._engine, self._blobs = engine, blobs
        self._agents: dict[str, AgentEngine] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, args=(_state(),), name="tunery-added", daemon=True)
        self._look()
        if follow:
            self._thread.start()

    def close(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _follow(self, known: object) -> None:
        while not self._over.wait(_LOOK_S):
            if (state := _state()) == known:
                continue
            known = state
            try:
                self._look()
            except (UsageError, EngineError) as error:
                _log.warning("the hosts that were added are not followed: %s", error)

    def _look(self) -> None:
        hosts = added_hosts()
        commands = {host.name: host.connect for host in hosts}
        for host in hosts:
            self._engine.trust(host.name, trusted=host.trusted)
        for name in [name for name in self._agents if name not in commands and name in self._engine.hosts]:
            self._engine.leave(name)
            self._agents[name].give_up("it was removed")
        for name, connect in commands.items():
            if name in self._agents:
                self._engine.come_back(name)
                self._agents[name].reach_by(connect)
            else:
                agent = AgentEngine(name, connect, self._blobs)
                try:
                    self._engine.add(name, agent)
                except EngineError:
                    agent.close()
                    raise
                self._agents[name] = agent


def _state() -> tuple[int, ...] | None:
    try:
        found = hosts_file().stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
