"""What is new of jobs that somebody follows, and of pages that are open: one reader of the store for all streams."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
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
_LOOK_S, _AT_ONCE_S, _PAGE_S = 0.25, 0.02, 1.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class News:
    """How a job stands: its state, the number of its newest event, and its progress as JSON ("": none)."""

    state: JobState
    newest: int
    progress: str


@dataclass(eq=False)
class JobWatch:
    """One follower of a job, who has seen all events up to `seen`."""

    seen: int
    _latest: News | None = None
    _told: News | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def news(self, within_s: float) -> News | None:
        """Return how the job stands once that is another than the last time, None where nothing changes for so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._changed.wait()
        self._changed.clear()
        if self._latest is None or (self._latest == self._told and self._latest.newest <= self.seen):
            return None
        self._told = self._latest
        return self._latest

    def wake(self) -> None:
        """Let who waits look about."""
        self._changed.set()

    def tell(self, news: News) -> None:
        """Take in how the job stands now, and wake who waits where that is something new."""
        self._latest = news
        if news != self._told or news.newest > self.seen:
            self.wake()


@dataclass(eq=False)
class Page:
    """A page that is open `readers` times: what `look` last found, each part as JSON."""

    look: Callable[[], Awaitable[Sections]]
    readers: int = 0
    parts: Mapping[str, str] = field(default_factory=dict)
    due_s: float = 0.0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def changed(self, within_s: float) -> None:
        """Wait until some part is another one, and no longer than so many seconds."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), within_s)

    def wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

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
    """Looks into the store while anybody watches; `closed` says that the service ends and streams are to end too."""

    def __init__(self, manager: JobManager) -> None:
        self._manager = manager
        self._pages: dict[Hashable, Page] = {}
        self._watches: dict[str, set[JobWatch]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()
        self._texts: dict[str, tuple[Progress, str]] = {}
        self.closed = False

    @property
    def followed(self) -> int:
        """How many jobs somebody follows."""
        return len(self._watches)

    @contextmanager
    def watch(self, job_id: str, seen: int) -> Iterator[JobWatch]:
        """Follow a job in the block; `seen` is the number of the last event that is known."""
        watch = JobWatch(seen)
        self._watches.setdefault(job_id, set()).add(watch)
        self._begin()
        try:
            yield watch
        finally:
            watches = self._watches[job_id]
            watches.discard(watch)
            if not watches:
                del self._watches[job_id]
                self._texts.pop(job_id, None)

    @contextmanager
    def page(self, key: Hashable, look: Callable[[], Awaitable[Sections]]) -> Iterator[Page]:
        """Keep a page open in the block; all who open the one of a `key` share what the first one's `look` finds."""
        page = self._pages.setdefault(key, Page(look))
        page.readers += 1
        self._begin()
        try:
            yield page
        finally:
            page.readers -= 1
            if not page.readers:
                del self._pages[key]

    def _begin(self) -> None:
        self._wanted.set()
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())

    def close(self) -> None:
        """End all streams: their clients come back."""
        self.closed = True
        for page in self._pages.values():
            page.wake()
        for watch in (one for watches in self._watches.values() for one in watches):
            watch.wake()

    async def _look(self) -> None:
        now_s = asyncio.get_running_loop().time
        while (self._watches or self._pages) and not self.closed:
            self._wanted.clear()
            jobs = list(self._watches)

            def read(store: Store, jobs: list[str] = jobs) -> tuple[dict[str, JobState], dict[str, int]]:
                # The states come first: what ends a job is stored with its last event.
                return store.standing(jobs), store.events.newest(jobs)

            with suppress(StoreError):  # as above
                states, newest = await self._manager.store.read(read)
                for job_id, state in states.items():
                    news = News(state, newest.get(job_id, 0), self._progress(job_id))
                    for watch in self._watches.get(job_id, ()):
                        watch.tell(news)
            for page in [page for page in self._pages.values() if page.due_s <= now_s()]:
                await page.refresh()
                page.due_s = now_s() + _PAGE_S
            await asyncio.sleep(_AT_ONCE_S)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), _LOOK_S)

    def _progress(self, job_id: str) -> str:
        """Return a job's progress as JSON, made once for all who follow it."""
        progress = self._manager.progress(job_id)
        if progress is None:
            return ""
        kept = self._texts.get(job_id)
        if kept is None or kept[0] is not progress:
            kept = self._texts[job_id] = (progress, json.dumps(plain(progress)))
        return kept[1]
