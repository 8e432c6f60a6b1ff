"""One candidate, verified and timed: for programs that write kernels, and for whoever watches one of theirs."""

import asyncio
import hashlib
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Header, Query, Response

from tunery._sandbox import lacking
from tunery._settings import settings
from tunery.dialects import file_dialect
from tunery.domain import JobStatus, canonical_json
from tunery.domain.request import Request
from tunery.service.kinds import answer_of
from tunery.service.kinds.answers import MEASURE
from tunery.web._bodies import KernelIn, MeasurementIn, MeasurementOut, job_out
from tunery.web._files import touch
from tunery.web._hub import AT_REST
from tunery.web._jobs import JobId, claim_of, enter, model_of, rest, visible
from tunery.web._problems import RefusedError
from tunery.web._service import DEVELOPER, Reader, Service, TheService, User, at_least

router = APIRouter(prefix="/v1/measurements", tags=["measurements"])
Wait = Annotated[float, Query(ge=0, le=60.0)]


@router.post("", status_code=201, responses={200: {"description": "The same measurement was asked for before."}})
async def submit(  # noqa: PLR0917 - what FastAPI hands over
    asked: MeasurementIn,
    response: Response,
    service: TheService,
    caller: User,
    wait: Wait = 0.0,
    idempotency_key: Annotated[str, Header(max_length=200)] = "",
) -> MeasurementOut:
    """Verify one candidate and time it beside its default, as a job; with `wait`, answer when that is done.

    A kernel's source runs with the rights of the service: it needs the role `developer`.
    """
    body = asked.candidate if isinstance(asked.candidate, str) else canonical_json(asked.candidate)
    request = Request.from_asked(asked.model_dump(), options={"task": asked.task, "candidate": body})
    request = replace(request, kind=MEASURE.name)
    if asked.kernel is not None:
        at_least(caller, DEVELOPER)
        if not service.local and lacking() and not settings().unconfined_kernels:
            raise RefusedError(
                403, "confinement", "the service's machine cannot confine kernels, so it runs none of accounts; "
                "ask its administrator, who sees with `tunery doctor` what it lacks"
            )  # fmt: skip
        model = str(await asyncio.to_thread(_kept, service.files, asked.kernel))
        request = replace(request, model=model, dialect=file_dialect(model) or asked.dialect)
    else:
        request = replace(request, model=await model_of(request, service, caller, asked.weights))
    claim = claim_of(caller.account, asked.priority)
    job_id, is_new = await enter(service, caller, request, claim, idempotency_key)
    if is_new:
        response.headers["Location"] = f"/v1/measurements/{job_id}"
    else:
        response.status_code = 200
    if wait:
        await rest(service, caller, job_id, wait)
    return await _shown(service, await visible(service, caller, job_id))


@router.get("/{job_id}")
async def show(job_id: JobId, service: TheService, caller: Reader, wait: Wait = 0.0) -> MeasurementOut:
    """Show a measurement; with `wait`, as soon as it has ended or after so many seconds."""
    status = await visible(service, caller, job_id)
    if status.kind != MEASURE.name:
        raise RefusedError(404, "not-found", f"there is no measurement {job_id}")
    if wait and status.state not in AT_REST:
        await rest(service, caller, job_id, wait)
        status = await visible(service, caller, job_id)
    return await _shown(service, status)


async def _shown(service: Service, status: JobStatus) -> MeasurementOut:
    machines = await service.manager.machines()
    answer = await service.store.read(lambda store: answer_of(store, status))
    shown = job_out(status, None, answer, service.hidden)
    return MeasurementOut(
        id=status.job_id, state=shown.state, message=shown.message, ahead=service.manager.ahead(status.job_id),
        waiting=sum(sum(one.device_queue.values()) for one in machines), result=shown.answer,
    )  # fmt: skip


def _kept(files: Path, kernel: KernelIn) -> Path:
    """Return the path of a kernel's file, in a directory that its content names."""
    name = "kernel.json" if kernel.description.lstrip().startswith("{") else "kernel.toml"
    texts = {**kernel.files, name: kernel.description}
    place = files / "kernels" / hashlib.sha256(canonical_json(texts).encode()).hexdigest()
    try:
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not place.exists():
            _write(texts, place)
        touch(place)
    except OSError as error:
        raise RefusedError(507, "disk", f"the service cannot keep the kernel: {error.strerror}") from error
    return place / name


def _write(texts: Mapping[str, str], place: Path) -> None:
    part = Path(tempfile.mkdtemp(dir=place.parent, prefix=".part-"))
    try:
        for file, text in texts.items():
            (part / file).write_text(text)
        with suppress(OSError):  # another has just sent the same
            part.rename(place)
    finally:
        shutil.rmtree(part, ignore_errors=True)
