"""What the dashboard's pages show, as it changes: one stream for each page that is open."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fastapi import APIRouter
from fastapi.responses import StreamingResponse

from tunery.domain import PHASE, JobStatus
from tunery.reports.data import plain, sums
from tunery.reports.job import MOST_FAILURES, STAGES, failure_data, failure_text, view_of
from tunery.reports.page import sections
from tunery.service.job import stages_event
from tunery.service.kinds import resumable
from tunery.store import Event, Store
from tunery.web._bodies import at, noted, shown_model, without_places
from tunery.web._hub import AT_REST, Sections
from tunery.web._jobs import JobId, has_file, visible
from tunery.web._service import ADMIN, Caller, Reader, Service, Stream, TheService, lasting
from tunery.web.views.hosts import devices_now, hosts_now

router = APIRouter(prefix="/v1/live", include_in_schema=False)
_JOBS = 50
_LONGEST_S, _STAGES_S = 600.0, 5.0


@router.get("/jobs")
async def jobs(service: TheService, caller: Reader) -> StreamingResponse:
    """Follow the account's latest jobs, an administrator those of all."""
    whose = None if caller.role == ADMIN else caller.account.name
    return _streamed(service, caller, ("jobs", whose), _Latest(service, whose).look)


@router.get("/jobs/{job_id}")
async def job(job_id: JobId, service: TheService, caller: Reader) -> StreamingResponse:
    """Follow one job with all that is known of it."""
    await visible(service, caller, job_id)
    return _streamed(service, caller, ("job", job_id), _One(service, job_id).look)


@router.get("/hosts")
async def hosts(service: TheService, caller: Reader) -> StreamingResponse:
    """Follow hosts and devices."""

    async def look() -> Sections:
        return {
            "hosts": plain(await hosts_now(service, caller)),
            "devices": [device.model_dump(mode="json") for device in await devices_now(service)],
        }

    return _streamed(service, caller, ("hosts", caller.role == ADMIN), look)


class _Latest:
    """The latest jobs: whatever did not change is not read again."""

    def __init__(self, service: Service, whose: str | None) -> None:
        self._service, self._whose = service, whose
        self._known: dict[str, tuple[float, dict[str, Any]]] = {}

    async def look(self) -> Sections:
        """Return the parts of the page."""

        def ask(store: Store) -> tuple[list[str], dict[str, tuple[float, dict[str, Any]]]]:
            latest = store.latest_changes(_JOBS, self._whose)
            changed = [(job_id, when) for job_id, when in latest if self._known.get(job_id, (None,))[0] != when]
            return [job_id for job_id, _ in latest], {
                job_id: (when, job_row(self._service.manager.shown(store.job(job_id)), self._service.files))
                for job_id, when in changed
            }

        ids, changed = await self._service.store.read(ask)
        known = {**self._known, **changed}
        self._known = {job_id: known[job_id] for job_id in ids}
        progress = ((job_id, self._service.manager.progress(job_id)) for job_id in ids)
        return {
            "order": ids,
            **{f"job {job_id}": row for job_id, (_, row) in self._known.items()},
            **{f"progress {job_id}": plain(one) for job_id, one in progress},
        }


class _One:
    """One job: its curve, operators and stages are read again when they may have changed, and not at every look."""

    def __init__(self, service: Service, job_id: str) -> None:
        self._service, self._job_id = service, job_id
        self._seen: tuple[float, int] | None = None
        self._parts: Sections = {}
        self._next_s = 0.0

    async def look(self) -> Sections:
        """Return the parts of the page."""
        now_s = asyncio.get_running_loop().time()
        spans = self._service.manager.dispatch.spans_of(self._job_id)

        def ask(store: Store) -> None:
            seen = store.stamp(self._job_id)
            if seen == self._seen and (not spans or now_s < self._next_s):
                return
            self._seen, self._next_s = seen, now_s + _STAGES_S
            status, events = store.job(self._job_id), store.events.after(job_id=self._job_id)
            running = Event(0, self._job_id, STAGES, stages_event(spans), 0.0)
            trials = store.trials(self._job_id)
            view = view_of(status, trials, [*events, running])
            failed = failure_data(status.tasks, store.failures(self._job_id, MOST_FAILURES))
            lines = ({"at": at(one["at"]).isoformat(), "text": failure_text(one)} for one in failed)
            log = [*_log(status, events), *lines]
            self._parts = {
                "job": job_row(self._service.manager.shown(status), self._service.files),
                "log": log,
                **sections(view),
            }

        await self._service.store.read(ask)
        return {**self._parts, "progress": plain(self._service.manager.progress(self._job_id))}


def job_row(status: JobStatus, files: Path) -> dict[str, Any]:
    """Return a job as a list shows it; its file is to be had if it is among a service's `files`.

    `before_s` and `after_s` are sums over the tasks that were reached.
    """
    request = status.request
    before_s, after_s = sums(status.tasks)
    return {
        "id": status.job_id, "kind": status.kind, "resumable": resumable(status.kind),
        "account": str(request.get("queue_owner", "")),
        "network": str(request.get("name", "")), "model": shown_model(str(request.get("model", ""))),
        "target": str(request.get("target", "")), "threads": request.get("threads"), "dialect": request.get("dialect"),
        "state": status.state.value, "message": status.message, "has_file": has_file(status, files),
        "created_at": at(status.created_at).isoformat(),
        "updated_at": at(status.updated_at).isoformat(), "spend": plain(status.spend),
        "remaining": plain(status.remaining), "before_s": plain(before_s), "after_s": plain(after_s), **noted(status),
    }  # fmt: skip


def _log(status: JobStatus, events: list[Event]) -> Iterator[dict[str, str]]:
    yield {"at": at(status.created_at).isoformat(), "text": "submitted"}
    told = ""
    for event in events:
        if event.kind == "state":
            told = str(event.payload.get("state", ""))
            said = ": ".join(str(event.payload[name]) for name in ("state", "message") if event.payload.get(name))
            yield {"at": at(event.created_at).isoformat(), "text": said}
        elif event.kind == PHASE:
            yield {"at": at(event.created_at).isoformat(), "text": str(event.payload["phase"])}
    if status.state in AT_REST and told != status.state.value:  # a service forgets old events
        yield {"at": at(status.updated_at).isoformat(), "text": status.state.value}


def _streamed(service: Service, caller: Caller, key: Hashable, look: Callable[[], Awaitable[Sections]]) -> Stream:
    return Stream(service, caller, _events(service, caller, key, look))


async def _events(
    service: Service, caller: Caller, key: Hashable, look: Callable[[], Awaitable[Sections]]
) -> AsyncIterator[str]:
    """Yield each part of a page when it is another than before.

    The stream ends now and then, with the service, and with its token: its client comes back, if that still holds.
    """
    sent: Mapping[str, str] = {}
    until_s = asyncio.get_running_loop().time() + _LONGEST_S
    with service.hub.page(key, look) as page:

        async def changed(within_s: float) -> Mapping[str, str]:
            if page.parts is sent:
                await page.changed(within_s)
            return page.parts

        async for parts in lasting(service, caller, changed):
            if parts is sent:
                yield ": still here\n\n"
            for name, text in parts.items():
                if sent.get(name) != text:
                    shown = without_places(text, service.hidden)
                    yield f'event: part\ndata: {json.dumps({"name": name})[:-1]}, "data": {shown}}}\n\n'
            sent = parts
            if asyncio.get_running_loop().time() >= until_s:
                return
