"""What is new of jobs that somebody follows, and of pages that are open: one source for all streams."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import Context
from dataclasses import dataclass, field, replace
from typing import Any

from tunery._errors import StoreError, TuneryError
from tunery.domain import JobState
from tunery.domain.request import Progress
from tunery.reports.data import plain
from tunery.service.manager import JobManager
from tunery.store import Store

OVER = (JobState.DONE, JobState.FAILED, JobState.CANCELLED)
AT_REST = (*OVER, JobState.PAUSED)
"""The states in which nothing happens of itself."""
Sections = Mapping[str, Any]
"""What a page shows, by the name of its part."""
_OTHERS_S, _AT_ONCE_S, _PAGE_S, _SHOWN_S = 0.25, 0.05, 1.0, 0.1
"""Between looks for what other processes have written, at the least between looks, and between what is shown."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class News:
    """How a job stands: its state, the number of its newest event, and its progress as JSON ("": none)."""

    state: JobState
    newest: int
    progress: str


@dataclass(eq=False)
class Waiter:
    """Something that is followed, by one stream or by all that show the same page."""

    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def changed(self, within_s: float) -> None:
        """Wait until there may be something new, and no longer than so many seconds."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), within_s)

    def wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


@dataclass(eq=False)
class JobWatch(Waiter):
    """One follower of a job, who has seen all events up to `seen`, and of its standing what is `told`."""

    seen: int = 0
    latest: News | None = None
    told: News | None = None
    _told_s: float = 0.0

    async def news(self, within_s: float) -> News | None:
        """Return how the job stands once that is another than the last time, None where nothing changes for so long."""
        loop = asyncio.get_running_loop()
        if not self._is_new():
            await self.changed(within_s)
        await asyncio.sleep(max(0.0, self._told_s + _SHOWN_S - loop.time()))  # only the latest progress counts
        if not self._is_new():
            return None
        self.told, self._told_s = self.latest, loop.time()
        return self.latest

    def _is_new(self) -> bool:
        return self.latest is not None and (self.latest != self.told or self.latest.newest > self.seen)

    def tell(self, news: News) -> None:
        self.latest = news
        if self._is_new():
            self.wake()


@dataclass(eq=False, kw_only=True)
class Page(Waiter):
    """A page that is open `readers` times: what `look` last found, each part as JSON."""

    look: Callable[[], Awaitable[Sections]]
    readers: int = 0
    parts: Mapping[str, str] = field(default_factory=dict)
    due_s: float = 0.0

    async def refresh(self) -> None:
        try:
            parts = {name: json.dumps(part) for name, part in (await self.look()).items()}
        except TuneryError:  # the store may be back at the next look
            return
        except Exception:  # noqa: BLE001 - of one page, and not of all others
            _log.exception("a page cannot be shown")
            return
        if parts != self.parts:
            self.parts = parts
            self.wake()


class Hub:
    """Tells streams what is new: progress as jobs at work here tell it, the store's when something was written to it.

    Only what other processes write is looked for now and then. `closed` says that the service ends, and streams too.
    """

    def __init__(self, manager: JobManager) -> None:
        self._manager = manager
        manager.on_change, manager.store.on_write = self._changed, self._look_again
        self._pages: dict[Hashable, Page] = {}
        self._watches: dict[str, set[JobWatch]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()
        self.closed = False

    @property
    def followed(self) -> int:
        return len(self._watches)

    @contextmanager
    def watch(self, job_id: str, seen: int) -> Iterator[JobWatch]:
        """Follow a job in the block; `seen` is the number of the last event that is known."""
        watch = JobWatch(seen=seen)
        self._watches.setdefault(job_id, set()).add(watch)
        self._look_again()
        try:
            yield watch
        finally:
            self._watches[job_id].discard(watch)
            if not self._watches[job_id]:
                del self._watches[job_id]

    @contextmanager
    def page(self, key: Hashable, look: Callable[[], Awaitable[Sections]]) -> Iterator[Page]:
        """Keep a page open in the block; all who open the one of a `key` share what the first one's `look` finds."""
        page = self._pages.setdefault(key, Page(look=look))
        page.readers += 1
        self._look_again()
        try:
            yield page
        finally:
            page.readers -= 1
            if not page.readers:
                del self._pages[key]

    def close(self) -> None:
        self.closed = True
        for watch in [*self._pages.values(), *(one for watches in self._watches.values() for one in watches)]:
            watch.wake()

    def _look_again(self) -> None:
        self._wanted.set()
        if (self._watches or self._pages) and (self._looking is None or self._looking.done()):
            self._looking = asyncio.create_task(self._look(), context=Context())  # in no request's patience

    def _changed(self, job_id: str, progress: Progress | None) -> None:
        if progress is None:
            self._look_again()
        elif watches := self._watches.get(job_id):
            text = json.dumps(plain(progress))
            for watch in watches:
                if watch.latest is not None:
                    watch.tell(replace(watch.latest, progress=text))

    async def _look(self) -> None:
        now_s = asyncio.get_running_loop().time
        while (self._watches or self._pages) and not self.closed:
            self._wanted.clear()
            with suppress(StoreError):  # as above
                await self._look_at(list(self._watches))
            for page in [page for page in self._pages.values() if page.due_s <= now_s()]:
                await page.refresh()
                page.due_s = now_s() + _PAGE_S
            await asyncio.sleep(_AT_ONCE_S)
            due_s = [page.due_s - now_s() for page in self._pages.values()]
            due_s += [_OTHERS_S] if not all(map(self._manager.has, self._watches)) else []
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), min(due_s, default=None))

    async def _look_at(self, jobs: list[str]) -> None:
        def read(store: Store) -> tuple[dict[str, JobState], dict[str, int]]:
            # The states come first: what ends a job is stored with its last event.
            return store.standing(jobs), store.events.newest(jobs)

        states, newest = await self._manager.store.read(read) if jobs else ({}, {})
        for job_id, state in states.items():
            progress = self._manager.progress(job_id)
            news = News(state, newest.get(job_id, 0), "" if progress is None else json.dumps(plain(progress)))
            for watch in self._watches.get(job_id, ()):
                watch.tell(news)
