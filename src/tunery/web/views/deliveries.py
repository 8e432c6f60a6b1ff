"""A job's network as a compiled file: a job of its own."""

from dataclasses import replace

from fastapi import APIRouter, Response

from tunery.domain import Budget
from tunery.domain.request import ShareRequest
from tunery.service.codec import request_of
from tunery.web._bodies import JobOut
from tunery.web._jobs import JobId, check_month, compiled_place, show_job, visible
from tunery.web._service import TheService, User

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


@router.post("/{job_id}:compile", status_code=201)
async def compile_(job_id: JobId, response: Response, service: TheService, caller: User) -> JobOut:
    """Submit a job that compiles the network of this one, for the same target and shapes, from all that is known."""
    status = await visible(service, caller, job_id)
    await check_month(service, caller)
    asked = request_of(status, service.store.url)
    options = {"output": await compiled_place(service, asked.model)}
    request = replace(asked, kind="compile", budget=Budget(), options=options, latency_target_s=None)
    account = caller.account
    made = await service.manager.submit(request, ShareRequest(account.name, account.weight, account.priority))
    response.headers["Location"] = f"/v1/jobs/{made}"
    return await show_job(service, made)
