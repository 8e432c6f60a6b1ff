"""What all jobs of a process are done with: one store, one scheduler, and the workers of each kind of job."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from tunery.domain.request import Request
from tunery.engines.remote.registry import added_hosts, host_named
from tunery.runtime.dispatch import Dispatch
from tunery.runtime.opening import open_runtime, open_runtime_on
from tunery.runtime.runtime import Runtime
from tunery.runtime.spec import RuntimeSpec
from tunery.store import AsyncStore, Store
from tunery.tuning.search.task_search import SearchRegistry


class Runtimes:
    """A runtime for each dialect, thread count, way of measuring and host, and its searches; an async context manager.
    Jobs with the same task share its search, all jobs of a target one cost model. Targets may share a runtime: tasks,
    searches, artifacts and cost models carry theirs in their keys, and workers get it with each call. All stages are
    placed by one `dispatch`; with `record`, its scheduler's log and the span of each stage are kept. With
    `follow_hosts`, hosts that are added or removed meanwhile join or leave."""

    def __init__(
        self, store: Store, *, strategy: str = "predictive", record: bool = True, follow_hosts: bool = False
    ) -> None:
        self.store = AsyncStore(store)
        self.dispatch = Dispatch(strategy, record=record)
        self._follow = follow_hosts
        self._open: dict[RuntimeSpec, Runtime] = {}
        self._searches: dict[Runtime, SearchRegistry] = {}
        self._opening: dict[RuntimeSpec, asyncio.Task[None]] = {}
        self._turns: dict[str, asyncio.Semaphore] = {}
        self._stack = ExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for opening in self._opening.values():
            opening.cancel()
        await asyncio.gather(*self._opening.values(), return_exceptions=True)
        self._stack.close()
        self.store.close()

    def __iter__(self) -> Iterator[Runtime]:
        return iter(list(self._open.values()))

    def get(self, request: Request) -> Runtime:
        """Return the workers of a request's job, started with the first request; the event loop waits meanwhile."""
        return self._get(RuntimeSpec.of(request))

    def _get(self, spec: RuntimeSpec) -> Runtime:
        if spec not in self._open:
            self._open[spec] = self._stack.enter_context(open_runtime(spec, self.dispatch, follow=self._follow))
        return self._open[spec]

    async def connected(self, request: Request) -> Runtime:
        """Return the workers of a request's job; other jobs go on while a host is waited for."""
        spec = RuntimeSpec.of(request)
        if not spec.on:
            return self._get(spec)
        host_named(spec.on, await asyncio.to_thread(added_hosts))
        if spec not in self._open:
            if spec not in self._opening:
                self._opening[spec] = asyncio.create_task(self._connect(spec))
            # Others may wait for it as well: a job that is cancelled may not take it from them.
            await asyncio.shield(self._opening[spec])
        return self._open[spec]

    async def _connect(self, spec: RuntimeSpec) -> None:
        try:
            self._open[spec] = await open_runtime_on(self._stack, spec, self.dispatch, follow=self._follow)
        finally:
            del self._opening[spec]

    def searches(self, runtime: Runtime) -> SearchRegistry:
        if runtime not in self._searches:
            self._searches[runtime] = SearchRegistry(runtime)
        return self._searches[runtime]

    def turn_to_read(self, owner: str) -> asyncio.Semaphore:
        """Return what an owner's jobs that answer read their models in: half of the cores read those of others."""
        return self._turns.setdefault(owner, asyncio.Semaphore(max(1, self.dispatch.core_count() // 2)))
