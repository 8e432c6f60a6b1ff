"""Jobs over HTTP: submitted once by their key, listed by pages, waited for, followed by events, and their files."""

import asyncio
import hashlib
import json
import re
import shutil
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Response
from fastapi import Path as InPath
from fastapi.responses import StreamingResponse

from tunery._errors import NothingFoundError, UsageError
from tunery.dialects import is_scripted
from tunery.domain import DEFAULT_KIND, Budget, JobState, JobStatus
from tunery.domain.request import Request, ShareRequest
from tunery.measuring.inputs import shapes_in
from tunery.reports.data import plain
from tunery.reports.job import COMPILED, MOST_FAILURES, failure_data
from tunery.service.budgets.months import left_of_month_s, refuse_used_up
from tunery.service.codec import Plain, budget_data, request_data
from tunery.service.kinds import KINDS, answer_of, resumable, unusual
from tunery.store import Event, Store, StoredAccount
from tunery.web._bodies import DIGEST, JobChange, JobIn, JobOut, JobPage, NoteIn, job_out, without_places
from tunery.web._files import FileAnswer, check_quota, compiled_of, model_path, place_in, touch
from tunery.web._hub import AT_REST
from tunery.web._problems import RefusedError, check_match, revision
from tunery.web._service import ADMIN, Caller, Reader, Service, Stream, TheService, User, at_least, lasting, streaming

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])
JobId = Annotated[str, InPath(pattern="^[0-9a-f]{12}$")]
_LONGEST_WAIT_S = 60.0
_PAGE, _MOST = 50, 500
_CHANGEABLE = frozenset({*budget_data(Budget()), "queue_priority"})
_POSTED = "queue_posted"  # what was posted of that, where it was changed
_LINES = "application/jsonl"
_NO_EVENTS = 2**63 - 1


@router.post("", status_code=201, responses={200: {"description": "The same job was submitted before."}})
async def submit(
    job: JobIn,
    response: Response,
    service: TheService,
    caller: User,
    idempotency_key: Annotated[str, Header(max_length=200)] = "",
) -> JobOut:
    """Submit a job. The same `Idempotency-Key` of an account is one job, however often it is sent."""
    request, account = await request_of(job, service, caller), caller.account
    claim = claim_of(account, job.priority)
    if job.local is not None:
        claim = ShareRequest(job.local.owner, job.local.weight, job.priority)
    job_id, is_new = await enter(service, caller, request, claim, idempotency_key)
    if is_new:
        response.headers["Location"] = f"/v1/jobs/{job_id}"
    else:
        response.status_code = 200
    return await show_job(service, job_id)


def claim_of(account: StoredAccount, priority: int) -> ShareRequest:
    return ShareRequest(account.name, account.weight, min(priority, account.priority))


async def enter(
    service: Service, caller: Caller, request: Request, claim: ShareRequest, key: str = ""
) -> tuple[str, bool]:
    """Queue a job, unless the caller's account has done so with this `key`; return its id, and whether it is new."""
    if not key:
        await check_month(service, caller)
        return await service.manager.submit(request, claim), True
    job_id = _id_of(caller.account.name, key)
    async with service.keyed.setdefault(job_id, asyncio.Lock()):
        there = await _known(service, job_id)
        if there is None:
            await check_month(service, caller)
            if await service.manager.submit_once(job_id, request, claim):
                return job_id, True
            there = await service.store.read(lambda store: store.job(job_id))  # another coordinator's came between
        _check_same(there, request, claim)
        return job_id, False


def _check_same(there: JobStatus, request: Request, claim: ShareRequest) -> None:
    if _asked(there.request) != _asked(request_data(request, claim=claim)):
        another = f"this Idempotency-Key was sent with another job, {there.job_id}; choose another key"
        raise RefusedError(422, "idempotency", another)


@router.get("", response_model=JobPage)
async def list_(  # noqa: PLR0917 - what FastAPI hands over
    service: TheService,
    caller: Reader,
    state: JobState | None = None,
    account: Annotated[str | None, Query(max_length=63)] = None,
    cursor: Annotated[str, Query(pattern=r"^([0-9]{1,12}(\.[0-9]{1,9})?-[0-9a-f]{12})?$")] = "",
    limit: Annotated[int, Query(ge=1, le=_MOST)] = _PAGE,
) -> Response:
    """List the account's jobs, latest first; an administrator lists those of all, or of one."""
    if account not in {None, caller.account.name}:
        at_least(caller, ADMIN)
    whose: str | None = account if caller.role == ADMIN else caller.account.name
    at, _, after = cursor.rpartition("-")
    before = (float(at), after) if cursor else None

    def page(store: Store) -> str:
        found = store.jobs(limit + 1, account=whose, before=before, state=state)
        last = found[limit - 1] if len(found) > limit else None
        shown = (job_out(service.manager.shown(status), None, None, service.hidden) for status in found[:limit])
        jobs = ",".join(job.model_dump_json() for job in shown)  # written at once they keep all others from going on
        return f'{{"jobs":[{jobs}],"next":{json.dumps(f"{last.created_at!r}-{last.job_id}" if last else None)}}}'

    return Response(await service.store.read(page), media_type="application/json")  # a large one takes a thread's time


@router.get("/{job_id}")
async def show(  # noqa: PLR0917 - what FastAPI hands over
    job_id: JobId,
    response: Response,
    service: TheService,
    caller: Reader,
    wait: Annotated[float, Query(ge=0, le=_LONGEST_WAIT_S)] = 0.0,
    if_none_match: Annotated[str, Header()] = "",
) -> Any:
    """Show a job; with `wait`, as soon as it has ended or after so many seconds."""
    status = await visible(service, caller, job_id)
    if wait and status.state not in AT_REST:
        await rest(service, caller, job_id, wait)
        status = await visible(service, caller, job_id)
    shown = await _shown(service, status)
    etag = f'"{revision(_changeable(status))}-{revision(shown.model_dump_json())}"'
    if if_none_match == etag:
        return Response(status_code=304, headers={"ETag": etag})
    response.headers["ETag"] = etag
    return shown


@router.patch("/{job_id}", responses={412: {"description": "Somebody else has changed it since: look again."}})
async def change(
    job_id: JobId,
    wanted: JobChange,
    service: TheService,
    caller: User,
    if_match: Annotated[str, Header(max_length=200)] = "",
) -> JobOut:
    """Change what a job may cost, or its priority; one that is at work goes on with it.

    `If-Match` takes the ETag of `GET`: only its first part counts, which no progress changes.
    """
    status = await visible(service, caller, job_id)
    await check_month(service, caller)
    values: Plain = {}
    if wanted.budget is not None:
        if not resumable(status.kind):
            raise RefusedError(422, "kind", f"a job of the kind {status.kind!r} does not go on with another budget")
        values |= budget_data(Budget.parse(wanted.budget))
    if wanted.priority is not None:
        values["queue_priority"] = min(wanted.priority, caller.account.priority)
    if any(status.request.get(name) != value for name, value in values.items()):
        posted = {name: value for name, value in status.request.items() if name in _CHANGEABLE}
        values[_POSTED] = status.request.get(_POSTED, json.dumps(posted))

    def allowed(found: JobStatus) -> None:
        check_match(if_match, _changeable(found))

    await service.manager.change(job_id, values, allowed)
    return await _shown(service, await visible(service, caller, job_id))


@router.put("/{job_id}/note")
async def note(job_id: JobId, said: NoteIn, service: TheService, caller: User) -> JobOut:
    """Write a note and tags beside a job, in place of those before."""
    await visible(service, caller, job_id)
    await service.store.write(lambda store: store.note_job(job_id, said.note, dict.fromkeys(said.tags)))
    return await show_job(service, job_id)


@router.post("/{job_id}:cancel")
async def cancel(job_id: JobId, service: TheService, caller: User) -> JobOut:
    """End a job for good; what it has measured is kept."""
    await visible(service, caller, job_id)
    await service.manager.cancel(job_id)
    return await _shown(service, await visible(service, caller, job_id))


@router.post("/{job_id}:pause")
async def pause(job_id: JobId, service: TheService, caller: User) -> JobOut:
    """Let a job wait until it is resumed."""
    await visible(service, caller, job_id)
    await service.manager.pause(job_id)
    return await _shown(service, await visible(service, caller, job_id))


@router.post("/{job_id}:resume")
async def resume(job_id: JobId, service: TheService, caller: User) -> JobOut:
    """Go on with a job; nothing that was measured is measured again."""
    await visible(service, caller, job_id)
    await check_month(service, caller)
    await service.manager.resume(job_id)
    return await _shown(service, await visible(service, caller, job_id))


@router.get("/{job_id}/events", response_class=StreamingResponse)
async def events(  # noqa: PLR0917 - what FastAPI hands over
    job_id: JobId,
    service: TheService,
    caller: Reader,
    last_event_id: Annotated[str, Header(pattern="^[0-9]{0,18}$")] = "",
    after: Annotated[int, Query(ge=0, lt=2**63)] = 0,
    accept: Annotated[str, Header(max_length=1000)] = "",
) -> StreamingResponse:
    """Follow a job as server-sent events; or, as JSON lines, get those that there are (`Accept: application/jsonl`).

    `id:` is an event's number in the store: a client that comes back with `Last-Event-ID` misses none and gets none
    twice. Events of the kind `progress` have no number, for only the latest counts; `end` comes last.
    """
    await visible(service, caller, job_id)
    last = max(after, int(last_event_id or 0))
    if _LINES in accept:
        return StreamingResponse(_lines(service, job_id, last), media_type=_LINES)
    return Stream(service, caller, _stream(service, caller, job_id, last))


@router.get("/{job_id}/failures")
async def failures(job_id: JobId, service: TheService, caller: Reader) -> list[dict[str, Any]]:
    """Return the latest candidates of a job that failed, and why, oldest first."""
    status = await visible(service, caller, job_id)
    found = await service.store.read(lambda store: store.failures(job_id, MOST_FAILURES))
    return [{name: without_places(text, service.hidden) if isinstance(text, str) else text
             for name, text in one.items()} for one in failure_data(status.tasks, found)]  # fmt: skip


@router.head("/{job_id}/file", include_in_schema=False)
@router.get("/{job_id}/file")
async def file(job_id: JobId, service: TheService, caller: Reader) -> FileAnswer:
    """Return the compiled network of a job that compiles, or delivers what it tunes; ranges are served."""
    path = await _file(service, caller, job_id)
    touch(path.parent)
    return FileAnswer(path, filename=path.name, media_type="application/octet-stream")


@router.delete("/{job_id}/file", status_code=204)
async def delete_file(job_id: JobId, service: TheService, caller: User) -> None:
    """Delete the compiled network of a job; what it has measured is kept."""
    path = await _file(service, caller, job_id)
    await asyncio.to_thread(shutil.rmtree, path.parent)


async def _file(service: Service, caller: Caller, job_id: str) -> Path:
    status = await visible(service, caller, job_id)
    if not has_file(status, service.files):
        raise RefusedError(404, "not-found", f"job {job_id} has no compiled file")
    return _file_of(status)


def _changeable(status: JobStatus) -> str:
    return json.dumps([value for name, value in sorted(status.request.items()) if name in _CHANGEABLE])


def has_file(status: JobStatus, files: Path) -> bool:
    path = _file_of(status)
    return status.state is JobState.DONE and path.is_relative_to(files) and path.is_file()


def _file_of(status: JobStatus) -> Path:
    return Path(json.loads(str(status.request.get("options", "{}"))).get("output", ""))


async def visible(service: Service, caller: Caller, job_id: str) -> JobStatus:
    found = await _known(service, job_id)
    if found is None or not caller.may_see(found):
        raise NothingFoundError(f"there is no job {job_id}; `tunery jobs list` shows those there are")
    return found


async def _known(service: Service, job_id: str) -> JobStatus | None:
    try:
        return await service.store.read(lambda store: store.job(job_id))
    except NothingFoundError:
        return None


async def request_of(job: JobIn, service: Service, caller: Caller) -> Request:
    if job.local is not None:
        if not service.local:
            raise RefusedError(422, "local", "`local` is for the user of the machine that the service runs on")
        return Request.from_asked(job.model_dump(), **job.local.model_dump(exclude={"owner", "weight"}))
    kind = KINDS[job.kind]
    if kind.refused:
        raise RefusedError(422, "kind", f"a service has no jobs of the kind {job.kind!r}; {kind.refused}")
    request = Request.from_asked(job.model_dump())
    model = await model_of(request, service, caller, job.weights, job.name)
    options = unusual(job.kind, {name: getattr(job, name, None) for name in kind.asked})
    if inputs := options.get("inputs"):
        if not re.fullmatch(DIGEST, inputs):
            raise RefusedError(422, "inputs", f"the inputs {inputs[:200]!r} are no uploaded file; give sha256:DIGEST")
        digest = inputs.removeprefix("sha256:")
        path = await model_path(service, caller.account.name, digest, {}, "inputs.npz")
        options["inputs"] = str(path)
        shapes = await asyncio.to_thread(shapes_in, path)
        request = replace(request, shapes={**shapes, **request.shapes})
    if "output" in kind.asked and (job.deliver or kind.needs_output):
        options["output"] = await compiled_place(service, caller, model)
    return replace(request, model=model, options=options)


async def model_of(
    request: Request, service: Service, caller: Caller, weights: Mapping[str, str], name: str = ""
) -> str:
    """Return the model of a request, which names it as the caller did, in the manager's words.

    `weights` are the digests of files that it keeps weights in, `name` is its file's.
    """
    model = request.model
    if is_scripted(model, request.dialects) and not service.scripted:
        raise RefusedError(422, "dialect", f"the dialect {request.dialect!r:.60} is for tests; name another one")
    if re.fullmatch(DIGEST, model):
        digest = model.removeprefix("sha256:")
        return str(await model_path(service, caller.account.name, digest, weights, name))
    if weights:
        raise RefusedError(422, "weights", "`weights` are of an uploaded model; give its sha256:DIGEST, or none")
    if model.startswith(("zoo:", *(f"{name}:" for name in request.dialects))):
        return model
    raise RefusedError(422, "model", f"{model[:200]!r} is no uploaded model; give sha256:DIGEST, or zoo:NAME")


async def compiled_place(service: Service, caller: Caller, model: str) -> str:
    account = caller.account.name
    if account:
        await service.store.read(lambda store: check_quota(store, service.files, account))
    place = compiled_of(service.files, account) / uuid.uuid4().hex
    await asyncio.to_thread(place.mkdir, parents=True)
    return str(place / f"{Path(model.rpartition(':')[2]).stem or 'network'}.tunery")


async def show_job(service: Service, job_id: str) -> JobOut:
    return await _shown(service, await service.store.read(lambda store: store.job(job_id)))


def _id_of(account: str, key: str) -> str:
    return hashlib.sha256(f"{account}\0{key}".encode()).hexdigest()[:12]


def _asked(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a client has posted, of what is stored, at whichever coordinator.

    Importing adds to it, each file has its own place, weight and highest priority are the account's of that day.
    """
    added = ("network", "name", "target_key", "queue_weight", "queue_priority", "queue_note", "queue_tags", _POSTED)
    kept = {**request, **json.loads(request.get(_POSTED, "{}"))}
    kept = {key: value for key, value in kept.items() if key not in added}
    kept["model"] = place_in(str(kept["model"]))
    options = json.loads(kept.get("options", "{}"))
    options |= {"output": bool(options.get("output")), "inputs": place_in(options.get("inputs", ""))}
    kept["options"] = {**unusual(kept.get("kind", DEFAULT_KIND), options), "output": options["output"]}
    return kept


async def _shown(service: Service, status: JobStatus) -> JobOut:
    answer = await service.store.read(lambda store: answer_of(store, status))
    if answer is not None and not service.local:
        for told in (answer, answer.get(COMPILED, {})):
            told.pop("path", None)
            told.pop("texts", None)
    return job_out(service.manager.shown(status), service.manager.progress(status.job_id), answer, service.hidden)


async def check_month(service: Service, caller: Caller) -> None:
    if caller.account.month_money is None:
        return
    try:
        await service.store.read(lambda store: refuse_used_up(store, caller.account.name))
    except UsageError as error:
        raise RefusedError(429, "budget", str(error), retry_s=ceil(left_of_month_s())) from None


async def rest(service: Service, caller: Caller, job_id: str, within_s: float) -> None:
    now_s = asyncio.get_running_loop().time
    until_s = now_s() + within_s
    with streaming(service, caller), service.hub.watch(job_id, _NO_EVENTS) as watch:
        async for news in lasting(service, caller, lambda left_s: watch.news(min(left_s, until_s - now_s()))):
            if now_s() >= until_s or (news is not None and news.state in AT_REST):
                return
    if not service.hub.closed:
        raise RefusedError(401, "token", "the token has ended; ask an administrator for a new one")


async def _stream(service: Service, caller: Caller, job_id: str, last: int) -> AsyncIterator[str]:
    progress = ""
    with service.hub.watch(job_id, last) as watch:
        async for news in lasting(service, caller, watch.news):
            if news is None:
                yield ": still here\n\n"
                continue
            while news.newest > watch.seen and (found := await _events_after(service, job_id, watch.seen)):
                for event in found:
                    watch.seen = event.number
                    yield without_places(_sent(event), service.hidden)
            if news.progress not in {"", progress}:
                progress = news.progress
                yield f"event: progress\ndata: {progress}\n\n"
            if news.state in AT_REST:
                status = await service.store.read(lambda store: store.job(job_id))
                end = json.dumps({"state": status.state.value, "message": status.message})
                yield f"event: end\ndata: {without_places(end, service.hidden)}\n\n"
                return


async def _lines(service: Service, job_id: str, last: int) -> AsyncIterator[str]:
    while found := await _events_after(service, job_id, last):
        for event in found:
            last = event.number
            yield without_places(json.dumps(_data(event)), service.hidden) + "\n"


async def _events_after(service: Service, job_id: str, number: int) -> list[Event]:
    return await service.store.read(lambda store: store.events.after(number, job_id=job_id))


def _sent(event: Event) -> str:
    return f"id: {event.number}\nevent: {event.kind}\ndata: {json.dumps(_data(event))}\n\n"


def _data(event: Event) -> dict[str, Any]:
    payload = {name: value for name, value in event.payload.items() if name not in {"path", "texts"}}
    return {**plain(payload), "id": event.number, "kind": event.kind, "at": event.created_at}
