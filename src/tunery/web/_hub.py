"""What is new of the jobs that somebody follows: one look into the store for all streams together."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from tunery._errors import StoreError
from tunery.domain import JobState
from tunery.domain.request import Progress
from tunery.reports.data import plain
from tunery.service.manager import JobManager
from tunery.store import Store

OVER = (JobState.DONE, JobState.FAILED, JobState.CANCELLED)
AT_REST = (*OVER, JobState.PAUSED)
"""The states in which nothing happens of itself."""
_LOOK_S, _AT_ONCE_S = 0.25, 0.02


@dataclass(frozen=True, slots=True)
class News:
    """How a job stands: its state, the number of its newest event, and its progress as JSON ("": none)."""

    state: JobState
    newest: int
    progress: str


@dataclass(eq=False)
class Watch:
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


class Hub:
    """Looks into the store while anybody watches; `closed` says that the service ends and streams are to end too."""

    def __init__(self, manager: JobManager) -> None:
        self._manager = manager
        self._watches: dict[str, set[Watch]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()
        self._texts: dict[str, tuple[Progress, str]] = {}
        self.closed = False

    @property
    def followed(self) -> int:
        """How many jobs somebody follows."""
        return len(self._watches)

    @contextmanager
    def watch(self, job_id: str, seen: int) -> Iterator[Watch]:
        """Follow a job in the block; `seen` is the number of the last event that is known."""
        watch = Watch(seen)
        self._watches.setdefault(job_id, set()).add(watch)
        self._wanted.set()
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        try:
            yield watch
        finally:
            watches = self._watches[job_id]
            watches.discard(watch)
            if not watches:
                del self._watches[job_id]
                self._texts.pop(job_id, None)

    def close(self) -> None:
        """End all streams: their clients come back."""
        self.closed = True
        for watch in (one for watches in self._watches.values() for one in watches):
            watch.wake()

    async def _look(self) -> None:
        while self._watches and not self.closed:
            self._wanted.clear()
            jobs = list(self._watches)

            def read(store: Store, jobs: list[str] = jobs) -> tuple[dict[str, JobState], dict[str, int]]:
                # The states come first: what ends a job is stored with its last event.
                return store.standing(jobs), store.events.newest(jobs)

            with suppress(StoreError):  # it may be back at the next look
                states, newest = await self._manager.store.read(read)
                for job_id, state in states.items():
                    news = News(state, newest.get(job_id, 0), self._progress(job_id))
                    for watch in self._watches.get(job_id, ()):
                        watch.tell(news)
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
