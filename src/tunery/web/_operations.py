"""Is it up, what does it know, and how busy is it."""

from collections import Counter

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse

import tunery
from tunery.web._files import free_bytes
from tunery.web._service import Admin, Reader, TheService

router = APIRouter(tags=["operations"])


@router.get("/healthz")
async def health() -> dict[str, str]:
    """Say that the process answers."""
    return {"status": "ok"}


@router.get("/readyz")
async def ready(service: TheService) -> dict[str, str]:
    """Say that the store answers."""
    await service.store.read(lambda store: store.events.last())
    return {"status": "ok"}


@router.get("/v1/service")
async def about(service: TheService, _: Reader) -> dict[str, str | None]:
    """Say which version this is, and to the user who runs it where its store is."""
    return {"version": tunery.__version__, "store": service.store.url if service.local else None}


@router.get("/v1/metrics", response_class=PlainTextResponse)
async def metrics(service: TheService, _: Admin) -> str:
    """Return figures in Prometheus's text format."""
    every = await service.store.read(lambda store: store.jobs())
    states = Counter(status.state.value for status in every)
    lines = ["# TYPE tunery_jobs gauge", *(f'tunery_jobs{{state="{name}"}} {count}' for name, count in states.items())]
    for name, what in (("wall_seconds", "wall_s"), ("core_seconds", "core_s"), ("trials", "trials")):
        lines += [f"# TYPE tunery_{name}_total counter",
                  f"tunery_{name}_total {sum(getattr(status.spend, what) for status in every)}"]  # fmt: skip
    lines += ["# TYPE tunery_free_bytes gauge", f"tunery_free_bytes {free_bytes(service.files)}"]
    return "\n".join(lines) + "\n"
