"""Starting and ending the workers of one dialect."""

import asyncio
import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

from tunery._errors import HostError, UsageError
from tunery._settings import cache_directory, settings
from tunery.blobs import Blobs, DirectoryBlobs
from tunery.devices.cpu.placement import usable_cores
from tunery.domain import HERE, DeviceDescription
from tunery.engines import Engine, JoinedEngine, engine_class
from tunery.engines.remote.registry import added_hosts, host_named
from tunery.runtime.dispatch import Dispatch
from tunery.runtime.foreign_load import watch_for
from tunery.runtime.hosts.added import AddedHosts
from tunery.runtime.runtime import Runtime, make_scratch
from tunery.runtime.spec import RuntimeSpec
from tunery.store import AsyncStore

_HOST_S, _SLOW_S = 60.0, 10.0
_log = logging.getLogger(__name__)


@contextmanager
def workplace(on: str = "", *, follow: bool = False) -> Iterator[tuple[Engine, Path]]:
    """Open an engine and a scratch directory, which go with the block; a host that is measured `on` is waited for.

    With `follow`, hosts that are added and removed meanwhile join and leave.
    """
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
    """Open an engine and a scratch directory, without waiting for a host."""
    cache, kind = cache_directory(), engine_class(settings().engine)
    if on:
        host_named(on, added_hosts())
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
    """Return how many cores the host grants that is measured `on`; None for this machine."""
    if not on:
        return None
    facts = engine.facts(on)
    if facts is None:
        raise HostError(f"host {on} cannot be used: {engine.trouble(on)}; see `tunery hosts check {on}`")
    return facts.granted


@contextmanager
def _open_engine(kind: type[Engine], scratch: Path, blobs: Blobs, *, follow: bool) -> Iterator[Engine]:
    """Open this host's engine, joined with those of the hosts that the user has added."""
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
    """Open a workplace with pools of workers; `follow` as there."""
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
    """Return the device that a runtime's measurers describe, after storing its facts."""
    device = await runtime.device()
    await store.write(lambda opened: opened.devices.save(device.fingerprint, device.as_facts(), runtime.measured_on))
    return device
