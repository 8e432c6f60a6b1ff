"""The workers of one manager's jobs: opened when the first job needs them, shared, and closed together."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack

from tunery.domain.request import Request
from tunery.engines.remote.registry import added_hosts, host_named
from tunery.runtime.dispatch import Dispatch
from tunery.runtime.opening import kernel_threads, open_runtime, open_runtime_on
from tunery.runtime.runtime import Runtime
from tunery.tuning.search.registry import SearchRegistry

_Key = tuple[str, int, bool, str]
"""What requests share workers by: the dialect, threads, whether slow candidates are given up, and the host."""


class Runtimes:
    """A runtime, and the searches that are open on it, for each dialect, thread count, way of measuring and host.

    Targets may share one: tasks, searches, artifacts and cost models carry theirs in their keys, and workers get it
    with each call. All stages are placed by one `dispatch`. With `follow`, hosts that are added or removed meanwhile
    join or leave.
    """

    def __init__(self, dispatch: Dispatch, *, follow: bool = False) -> None:
        self._dispatch, self._follow = dispatch, follow
        self._open: dict[_Key, tuple[Runtime, SearchRegistry]] = {}
        self._opening: dict[_Key, asyncio.Task[None]] = {}
        self._stack = ExitStack()

    def __iter__(self) -> Iterator[tuple[Runtime, SearchRegistry]]:
        """Go through those that are open."""
        return iter(list(self._open.values()))

    def get(self, request: Request) -> tuple[Runtime, SearchRegistry]:
        """Return what a request's job uses, started with the first request; the event loop waits meanwhile."""
        key = _key_of(request)
        if key not in self._open:
            runtime = self._stack.enter_context(open_runtime(request, self._dispatch, _label(key), follow=self._follow))
            self._open[key] = (runtime, SearchRegistry(runtime))
        return self._open[key]

    async def connected(self, request: Request) -> tuple[Runtime, SearchRegistry]:
        """Do as `get`; other jobs go on while a host is waited for.

        Raises:
            UsageError: that host was not added, or was removed.
        """
        key = _key_of(request)
        if request.on:
            host_named(request.on, await asyncio.to_thread(added_hosts))
        if not request.on or key in self._open:
            return self.get(request)
        if key not in self._opening:
            self._opening[key] = asyncio.create_task(self._connect(key, request))
        # Others may wait for it as well: a job that is cancelled may not take it from them.
        await asyncio.shield(self._opening[key])
        return self._open[key]

    async def close(self) -> None:
        """End all workers, also those that are being started."""
        for opening in self._opening.values():
            opening.cancel()
        await asyncio.gather(*self._opening.values(), return_exceptions=True)
        self._stack.close()

    async def _connect(self, key: _Key, request: Request) -> None:
        try:
            runtime = await open_runtime_on(self._stack, request, self._dispatch, _label(key), follow=self._follow)
            self._open[key] = (runtime, SearchRegistry(runtime))
        finally:
            del self._opening[key]


def _key_of(request: Request) -> _Key:
    threads = request.threads if request.on else kernel_threads(request)
    return request.dialect, threads, request.trimming.abandon, request.on


def _label(key: _Key) -> str:
    dialect, threads, abandon, on = key
    return f"@{dialect}/{threads}{'' if abandon else '/full'}{on and f'/{on}'}"
