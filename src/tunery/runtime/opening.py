"""Starting and ending the workers of one dialect."""

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tunery._errors import HostError, UsageError
from tunery._settings import cache_directory, settings
from tunery.blobs import Blobs, DirectoryBlobs
from tunery.devices.cpu.placement import granted_cores, usable_cores
from tunery.domain import DeviceDescription, HostFacts
from tunery.domain.request import Request
from tunery.engines import HERE, AgentEngine, Engine, JoinedEngine, engine_class
from tunery.engines.remote.registry import added_hosts, host_named
from tunery.runtime.dispatch import Dispatch
from tunery.runtime.foreign_load import watch_for
from tunery.runtime.pools import Runtime, make_scratch
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


@contextmanager
def workplace(request: Request) -> Iterator[tuple[Engine, Path, int]]:
    """Open an engine and a scratch directory, and say how many threads a kernel gets; all of it goes with the block.

    Raises:
        UsageError: the cache cannot be written, there are not as many cores as threads, or no engine is called so.
    """
    cache, kind = cache_directory(), engine_class(settings().engine)
    if request.on:
        host_named(request.on, added_hosts())
    threads = 0 if request.on else thread_count(request.threads)
    try:
        scratch, held = make_scratch(cache)
    except OSError as error:
        why = error.strerror or error
        raise UsageError(f"cannot use {cache}: {why}; set TUNERY_CACHE to a directory of your own") from error
    try:
        with DirectoryBlobs(cache / "blobs") as blobs, _open_engine(kind, scratch, blobs) as engine:
            yield engine, scratch, threads or thread_count(request.threads, _facts(engine, request.on).granted)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        os.close(held)


def _open_engine(kind: type[Engine], scratch: Path, blobs: Blobs) -> Engine:
    """Return this host's engine, joined with those of the hosts that the user has added."""
    opened, further = kind.open(scratch, blobs), added_hosts()
    if further and not isinstance(opened, JoinedEngine):
        opened = JoinedEngine({HERE: opened})
    if isinstance(opened, JoinedEngine):
        for host in further:
            opened.add(host.name, AgentEngine(host.name, host.connect, blobs))
    return opened


def _facts(engine: Engine, host: str) -> HostFacts:
    """Wait until a host answers.

    Raises:
        HostError: it does not.
    """
    came = threading.Event()
    engine.watch(lambda _: came.set())
    if (facts := engine.facts(host)) is None:
        came.wait(_HOST_S)
        facts = engine.facts(host)
    if facts is None:
        raise HostError(f"host {host} cannot be used: {engine.trouble(host)}; see `tunery hosts check {host}`")
    return facts


@contextmanager
def open_runtime(request: Request, dispatch: Dispatch | None = None, label: str = "") -> Iterator[Runtime]:
    """Open a workplace with a request's pools of workers.

    Raises:
        UsageError: the cache cannot be written, or there are not as many cores as threads.
    """
    with workplace(request) as (engine, scratch, threads):
        yield Runtime(
            engine, request.dialect, threads, scratch, dispatch=dispatch, label=label,
            foreign=None if request.on else watch_for(usable_cores()), full_length=not request.trimming.abandon,
            on=request.on,
        )  # fmt: skip


async def introduce(runtime: Runtime, store: AsyncStore) -> DeviceDescription:
    """Return the device that a runtime's measurers describe, after storing its facts.

    Raises:
        WorkError: no measurer starts.
    """
    device = await runtime.device()
    await store.write(lambda opened: opened.devices.save(device.fingerprint, device.as_facts(), runtime.node))
    return device
