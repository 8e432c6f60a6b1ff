"""What the service knows beside its jobs: records, and what was spent."""

import asyncio
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query

from tunery._errors import StoreAwayError, StoreError
from tunery.reports.data import plain
from tunery.reports.records import best_records
from tunery.reports.spending import spend_data
from tunery.runtime.record_checks import import_into
from tunery.store import Store
from tunery.web._bodies import RecordPage, RecordsIn, RecordsTaken
from tunery.web._files import FileAnswer, blob_path
from tunery.web._jobs import visible
from tunery.web._problems import RefusedError
from tunery.web._service import ADMIN, Developer, Reader, TheService, streaming

router = APIRouter(prefix="/v1", tags=["knowledge"])
_MOST = 500
_MOST_IMPORT_BYTES = 256 << 20


@router.get("/records")
async def records(
    service: TheService,
    caller: Reader,
    task: Annotated[str, Query(pattern="^[0-9a-f]{4,16}$", description="The start of a task's or workload's key.")],
    cursor: Annotated[int, Query(ge=0, le=10**9)] = 0,
    limit: Annotated[int, Query(ge=1, le=_MOST)] = _MOST,
) -> RecordPage:
    """Show the best verified record of tasks of the account's jobs, under each of the conditions of a measurement."""
    whose = None if caller.role == ADMIN else caller.account.name
    found = await service.store.read(lambda store: best_records(store, task, whose))
    mine = await service.store.read(lambda store: {one["job"] for one in found if _is_mine(store, caller, one["job"])})
    page = found[cursor : cursor + limit]
    shown = [one if one["job"] in mine else {**one, "job": ""} for one in page]
    return RecordPage(records=shown, next=cursor + limit if cursor + limit < len(found) else None)


def _is_mine(store: Store, caller: Reader, job_id: str) -> bool:
    return caller.role == ADMIN or (bool(job_id) and caller.may_see(store.job(job_id)))


@router.get("/records/stats")
async def stats(service: TheService, caller: Reader) -> dict[str, Any]:
    """Count what the store holds of the account's jobs, to an administrator of all."""
    whose = None if caller.role == ADMIN else caller.account.name
    found = await service.store.read(lambda store: store.stats(whose))
    counts: dict[str, Any] = plain(found)
    if not service.local:
        counts["place"] = ""
    return counts


@router.get("/records/export")
async def export(
    service: TheService, caller: Reader, network: Annotated[str, Query(max_length=200)] = ""
) -> FileAnswer:
    """Return what the account's jobs have measured (an administrator: all), as JSON lines that another store imports.

    With `network`, a name or a digest, its tasks only.
    """
    whose = None if caller.role == ADMIN else caller.account.name
    place = await asyncio.to_thread(_scratch, service.files)

    def write(store: Store) -> int:
        return store.export_records(place / "records.jsonl", account=whose, network=network)

    with ExitStack() as stack:
        stack.callback(shutil.rmtree, place, ignore_errors=True)
        count = await service.store.read(write)
        stack.enter_context(streaming(service, caller))
        end = stack.pop_all().close
    return FileAnswer(
        place / "records.jsonl", filename="records.jsonl", media_type="application/jsonl",
        headers={"X-Records": str(count)}, end=end,
    )  # fmt: skip


@router.post("/records/import")
async def import_(asked: RecordsIn, service: TheService, caller: Developer) -> RecordsTaken:
    """Take in an uploaded file that `records export` wrote, as hints for later searches of all accounts.

    Nothing of it is believed, and no code of it runs: it takes a compiler's time to check, and is done when this is
    answered. The same file again adds nothing.
    """
    digest = asked.blob.removeprefix("sha256:")
    found = await service.store.read(lambda store: store.accounts.upload(caller.account.name, digest))
    if found.size_bytes > _MOST_IMPORT_BYTES:
        raise RefusedError(413, "too-large", f"the file has {found.size_bytes} bytes, of at most {_MOST_IMPORT_BYTES}; "
                           "export its networks one by one")  # fmt: skip
    try:
        with streaming(service, caller):
            async with service.record_import:
                taken = await service.store.read(lambda store: import_into(store, blob_path(service.files, digest)))
    except StoreAwayError:
        raise
    except StoreError as error:
        raise RefusedError(422, "records", str(error)) from error
    return RecordsTaken(**plain(taken))


def _scratch(files: Path) -> Path:
    files.mkdir(parents=True, exist_ok=True, mode=0o700)
    return Path(tempfile.mkdtemp(dir=files, prefix=".export-"))


@router.get("/spend")
async def spend(
    service: TheService, caller: Reader, job: Annotated[str, Query(pattern="^([0-9a-f]{12})?$")] = ""
) -> dict[str, Any]:
    """Show what a job has cost, or all jobs of the account (to an administrator: all that are)."""
    if job:
        await visible(service, caller, job)
    whose = None if caller.role == ADMIN else caller.account.name
    found = await service.store.read(lambda store: spend_data(store, job, account=whose))
    spent: dict[str, Any] = plain(found)
    return spent
