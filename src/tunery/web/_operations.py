"""Is it up, what does it know, and how busy is it."""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter
from fastapi import Path as InPath
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel

import tunery
from tunery.store import Charge, Store
from tunery.web._bodies import at
from tunery.web._files import free_bytes, obstacle
from tunery.web._problems import RefusedError
from tunery.web._service import Admin, Reader, Service, TheService

Samples = Mapping[str, Sequence[tuple[Mapping[str, str], float]]]
"""Figures by name, each with its labels."""

router = APIRouter(tags=["operations"])
_LOG_BYTES = 64 << 10


@router.get("/healthz")
async def health() -> dict[str, str]:
    """Say that the process answers."""
    return {"status": "ok"}


@router.get("/readyz")
async def ready(service: TheService) -> dict[str, str]:
    """Say that store and uploads can be used, and that nothing is known to keep jobs from being worked on."""
    await service.store.read(lambda store: store.events.last())
    if why := await asyncio.to_thread(service.manager.obstacle):
        raise RefusedError(503, "work", why)
    if not service.local and (why := await asyncio.to_thread(obstacle, service.files)):
        raise RefusedError(503, "disk", why)
    return {"status": "ok"}


@router.get("/v1/service")
async def about(service: TheService, _: Reader) -> dict[str, str | None]:
    """Say which version this is, and to the user who runs it where its store is."""
    return {"version": tunery.__version__, "store": service.store.url if service.local else None}


class LogOut(BaseModel):
    """What a worker of this machine has printed: how much, and when it did last."""

    name: str
    size_bytes: int
    at: datetime


@router.get("/v1/logs")
async def logs(service: TheService, _: Admin) -> list[LogOut]:
    """List the logs of this machine's workers, latest first."""

    def look() -> list[LogOut]:
        found = [(path.name, path.stat()) for path in _logs(service).values()]
        shown = [LogOut(name=name, size_bytes=stat.st_size, at=at(stat.st_mtime)) for name, stat in found]
        return sorted(shown, key=lambda one: one.at, reverse=True)

    return await asyncio.to_thread(look)


@router.get("/v1/logs/{name}", response_class=PlainTextResponse)
async def log(name: Annotated[str, InPath(pattern=r"^[A-Za-z0-9._-]{1,100}$")], service: TheService, _: Admin) -> str:
    """Return the end of what a worker has printed."""
    path = _logs(service).get(name)
    if path is None:
        raise RefusedError(404, "not-found", f"there is no log {name}; `GET /v1/logs` lists them")
    data = await asyncio.to_thread(path.read_bytes)
    return data[-_LOG_BYTES:].decode(errors="replace")


def _logs(service: Service) -> dict[str, Path]:
    places = {place for runtime in service.manager.runtimes if (place := runtime.engine.log_directory()) is not None}
    return {path.name: path for place in places for path in place.glob("*.log")}


@router.get("/metrics", response_class=PlainTextResponse, include_in_schema=False)
@router.get("/v1/metrics", response_class=PlainTextResponse)
async def metrics(service: TheService, _: Admin) -> str:
    """Return figures in Prometheus's text format."""

    def read(store: Store) -> tuple[dict[str, int], dict[str, int], list[Charge]]:
        states = {state.value: count for state, count in store.count_states().items()}
        return states, dict(store.stats().outcomes), store.ledger_sums()

    states, outcomes, charges = await service.store.read(read)
    machines = await service.manager.machines()
    gauges: Samples = {
        "jobs": [({"state": name}, count) for name, count in states.items()],
        "host_up": [({"host": one.name}, int(one.state == "up")) for one in machines],
        "host_cores": [({"host": one.name}, one.granted) for one in machines],
        "host_busy_cores": [({"host": one.name}, one.busy) for one in machines],
        "waiting_stages": [({"host": m.name, "stage": kind}, n) for m in machines for kind, n in m.queue.items()],
        "followed_jobs": [({}, service.hub.followed)],
        "free_bytes": [({}, free_bytes(service.files))],
    }
    counters: Samples = {
        "records_total": [({"outcome": name}, count) for name, count in outcomes.items()],
        "stages_total": [({"stage": one.stage, "outcome": one.outcome}, one.count) for one in charges],
        "core_seconds_total": [({"stage": one.stage, "outcome": one.outcome}, one.core_s) for one in charges],
    }
    lines = [*_metrics("gauge", gauges), *_metrics("counter", counters)]
    return "\n".join(lines) + "\n"


def _metrics(kind: str, found: Samples) -> Iterator[str]:
    for name, samples in found.items():
        yield f"# TYPE tunery_{name} {kind}"
        for labels, value in samples:
            said = ",".join(f"{label}={json.dumps(text)}" for label, text in labels.items())
            yield f"tunery_{name}{{{said}}} {value}" if said else f"tunery_{name} {value}"
