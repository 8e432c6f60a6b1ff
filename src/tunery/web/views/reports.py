"""A job as a page of its own, or as the data that the page is made of."""

from typing import Annotated

from fastapi import APIRouter, Header, Response
from fastapi.responses import HTMLResponse, JSONResponse

from tunery.reports.data import plain
from tunery.reports.job import job_view
from tunery.reports.page import job_page
from tunery.web._bodies import without_places
from tunery.web._jobs import JobId, visible
from tunery.web._service import Reader, TheService

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])
_JSON = "application/json"


@router.get("/{job_id}/report", response_class=HTMLResponse)
async def report(
    job_id: JobId, service: TheService, caller: Reader, accept: Annotated[str, Header(max_length=1000)] = ""
) -> Response:
    """Return what `tunery report` writes of a job: a page that needs no network, or its data as JSON (`Accept`)."""
    await visible(service, caller, job_id)
    view = await service.store.read(lambda store: job_view(store, job_id))
    answer: Response = JSONResponse(plain(view)) if _JSON in accept else HTMLResponse(job_page(view))
    answer.body = without_places(bytes(answer.body).decode(), service.hidden).encode()
    answer.headers["Content-Length"] = str(len(answer.body))
    answer.headers["Content-Security-Policy"] = (
        "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline' data:"
    )
    return answer
