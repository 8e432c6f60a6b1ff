"""What is known of a network before any work is paid for."""

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Query, Response

from tunery.domain.request import ShareRequest
from tunery.web._bodies import JobIn, JobOut, QuestionIn
from tunery.web._files import Digest
from tunery.web._hub import AT_REST
from tunery.web._jobs import check_month, request_of, rest, show_job
from tunery.web._service import TheService, User

router = APIRouter(prefix="/v1/networks", tags=["networks"])
_WAIT_S, _LONGEST_WAIT_S = 30.0, 60.0


@router.post("/{digest}/answer", responses={202: {"description": "It takes longer: ask for the job at Location."}})
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
