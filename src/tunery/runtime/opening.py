"""Starting and ending the workers of one dialect."""

import asyncio
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

from tunery._errors import HostError, UsageError
from tunery._settings import cache_directory, settings
from tunery.blobs import Blobs, DirectoryBlobs
from tunery.devices import device_class
from tunery.devices.cpu.placement import granted_cores, usable_cores
from tunery.dialects import get_dialect
from tunery.domain import HERE, DeviceDescription
from tunery.domain.request import Request
from tunery.engines import Engine, JoinedEngine, engine_class
from tunery.engines.remote.registry import added_hosts, host_named
from tunery.runtime.dispatch import Dispatch
from tunery.runtime.foreign_load import watch_for
from tunery.runtime.hosts.added import AddedHosts
from tunery.runtime.runtime import Runtime, make_scratch
from tunery.store import AsyncStore

_HOST_S = 60.0


def thread_count(threads: int, granted: int | None = None) -> int:
    """Return the kernels' thread count; 0 means all usable cores, of this machine or `granted` of another.

    Raises:
        UsageError: the machine has fewer cores, or the number is negative.
    """
    usable = granted_cores() if granted is None else granted
    if not 0 <= threads <= usable:
        raise UsageError(f"{threads} threads on {usable} usable cores; use at most {usable}")
    return threads or usable


def kernel_threads(request: Request, granted: int | None = None) -> int:
    """Return the thread count of a request's kernels, as `thread_count`; 0 means one where a core only launches them.

    Raises:
        UsageError: as `thread_count`, or there is no such dialect.
    """
    launched = not device_class(get_dialect(request.dialect).device).uses_host_cores
    return thread_count(request.threads or int(launched), granted)


@contextmanager
def workplace(request: Request, *, follow: bool = False) -> Iterator[tuple[Engine, Path, int]]:
    """Open an engine and a scratch directory, and say how many threads a kernel gets; all of it goes with the block.

    With `follow`, hosts that are added and removed meanwhile join and leave.

    Raises:
        UsageError: the cache cannot be written, there are not as many cores as threads, or no engine is called so.
        HostError: the host that is measured on does not answer within a minute.
    """
    with _place(request, follow=follow) as (engine, scratch):
        if request.on:
            came = threading.Event()
            _watch(engine, request.on, came.set)
            if engine.facts(request.on) is None:
                came.wait(_HOST_S)
        yield engine, scratch, _threads(engine, request)


@contextmanager
def _place(request: Request, *, follow: bool = False) -> Iterator[tuple[Engine, Path]]:
    """Open an engine and a scratch directory, without waiting for a host."""
    cache, kind = cache_directory(), engine_class(settings().engine)
    if request.on:
        host_named(request.on, added_hosts())
    else:
        kernel_threads(request)
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


def _watch(engine: Engine, host: str, came: Callable[[], object]) -> None:
    """Have `came` called, on a thread of the engine, when a host has answered or never will."""

    def changed(name: str) -> None:
        if name == host:
            with suppress(RuntimeError):  # whoever waited is gone, with his event loop
                came()

    engine.watch(changed)


def _threads(engine: Engine, request: Request) -> int:
    """Return the kernels' thread count where the request measures.

    Raises:
        HostError: its host has not answered.
    """
    if not request.on:
        return kernel_threads(request)
    facts = engine.facts(request.on)
    if facts is None:
        why = engine.trouble(request.on)
        raise HostError(f"host {request.on} cannot be used: {why}; see `tunery hosts check {request.on}`")
    return kernel_threads(request, facts.granted)


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
def open_runtime(
    request: Request, dispatch: Dispatch | None = None, label: str = "", *, follow: bool = False
) -> Iterator[Runtime]:
    """Open a workplace with a request's pools of workers; `follow` as there.

    Raises:
        UsageError: the cache cannot be written, or there are not as many cores as threads.
        HostError: as `workplace`.
    """
    with workplace(request, follow=follow) as (engine, scratch, threads):
        yield _runtime(engine, scratch, threads, request, dispatch, label)


async def open_runtime_on(
    stack: ExitStack, request: Request, dispatch: Dispatch, label: str, *, follow: bool = False
) -> Runtime:
    """Do as `open_runtime` until `stack` is closed; the event loop goes on while a host is waited for.

    Raises:
        UsageError, HostError: as `open_runtime`.
    """
    loop, came = asyncio.get_running_loop(), asyncio.Event()
    with ExitStack() as opened:
        engine, scratch = opened.enter_context(_place(request, follow=follow))
        _watch(engine, request.on, lambda: loop.call_soon_threadsafe(came.set))
        if engine.facts(request.on) is None:
            with suppress(TimeoutError):
                await asyncio.wait_for(came.wait(), _HOST_S)
        runtime = _runtime(engine, scratch, _threads(engine, request), request, dispatch, label)
        stack.push(opened.pop_all())
    return runtime


def _runtime(  # noqa: PLR0917 - what a runtime is made of
    engine: Engine, scratch: Path, threads: int, request: Request, dispatch: Dispatch | None, label: str
) -> Runtime:
    device = get_dialect(request.dialect).device
    return Runtime(
        engine, request.dialect, threads, scratch, dispatch=dispatch, label=label,
        foreign=None if request.on else watch_for(usable_cores(), device),
        full_length=not request.trimming.abandon, device=device, on=request.on,
    )  # fmt: skip


async def introduce(runtime: Runtime, store: AsyncStore) -> DeviceDescription:
    """Return the device that a runtime's measurers describe, after storing its facts.

    Raises:
        WorkError: no measurer starts.
    """
    device = await runtime.device()
    await store.write(lambda opened: opened.devices.save(device.fingerprint, device.as_facts(), runtime.node))
    return device
