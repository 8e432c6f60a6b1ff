"""What is known of a network before any work is paid for; and of a job its compiled file and its report."""

from dataclasses import replace
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import HTMLResponse, JSONResponse

from tunery.domain import Budget
from tunery.domain.request import ShareRequest
from tunery.reports.data import plain
from tunery.reports.job import job_view
from tunery.reports.page import job_page
from tunery.service.codec import request_of as stored_request
from tunery.web._bodies import JobIn, JobOut, QuestionIn, without_places
from tunery.web._files import Digest
from tunery.web._hub import AT_REST
from tunery.web._jobs import JobId, check_month, compiled_place, request_of, rest, show_job, visible
from tunery.web._service import Reader, TheService, User

router = APIRouter(prefix="/v1", tags=["networks"])
_WAIT_S, _LONGEST_WAIT_S = 30.0, 60.0


@router.post(
    "/networks/{digest}/answer", responses={202: {"description": "It takes longer: ask for the job at Location."}}
)
async def answer(  # noqa: PLR0917 - what FastAPI hands over
    digest: Digest,
    question: QuestionIn,
    response: Response,
    service: TheService,
    caller: User,
    wait: Annotated[float, Query(ge=0, le=_LONGEST_WAIT_S)] = _WAIT_S,
) -> JobOut:
    """Say what is known of an uploaded model, how fast it would be, and what tuning the rest would cost and gain.

    Nothing is tuned. The answer is that of a job of the kind `query`.
    """
    await check_month(service, caller)
    asked = await request_of(JobIn(kind="query", model=digest, **question.model_dump()), service, caller)
    account = caller.account
    job_id = await service.manager.submit(asked, ShareRequest(account.name, account.weight, account.priority))
    response.headers["Location"] = f"/v1/jobs/{job_id}"
    if wait:
        await rest(service, caller, job_id, wait)
    shown = await show_job(service, job_id)
    if shown.state not in AT_REST:
        response.status_code = HTTPStatus.ACCEPTED
    return shown


@router.post("/jobs/{job_id}:compile", status_code=201)
async def compile_(job_id: JobId, response: Response, service: TheService, caller: User) -> JobOut:
    """Submit a job that compiles the network of this one, for the same target and shapes, from all that is known."""
    status = await visible(service, caller, job_id)
    await check_month(service, caller)
    asked = stored_request(status, service.store.url)
    options = {"output": await compiled_place(service, caller, asked.model)}
    request = replace(asked, kind="compile", budget=Budget(), options=options, latency_target_s=None)
    account = caller.account
    made = await service.manager.submit(request, ShareRequest(account.name, account.weight, account.priority))
    response.headers["Location"] = f"/v1/jobs/{made}"
    return await show_job(service, made)


_JSON = "application/json"


@router.get("/jobs/{job_id}/report", response_class=HTMLResponse)
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
