"""Uploaded models and delivered files: in the service's own directory, by digest, each under a name of its own."""

import asyncio
import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi import Path as InPath
from fastapi.responses import FileResponse
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from tunery._errors import QuotaError, UsageError
from tunery._outputs import check_room
from tunery.domain import canonical_json
from tunery.domain.request import Request as JobRequest
from tunery.models._files import is_inside
from tunery.reports.job import ANSWER, COMPARED, COMPILED, STAGES
from tunery.store import Store, StoredAccount
from tunery.web._bodies import DIGEST, BlobOut
from tunery.web._problems import RefusedError, problem
from tunery.web._service import ADMIN, Reader, Service, TheService, User, streaming

LASTING = (ANSWER, COMPARED, COMPILED, STAGES, "began")
"""Kinds of events that are what a job has answered, and what its report shows."""
_KEPT = {"blobs": 2, "models": 1, "kernels": 1, "compiled": 2}


def forget(store: Store, files: Path, older_s: float) -> int:
    """Delete events older than so many seconds, and files as `forget_files` does; return how many went.

    Records, jobs, answers and the ledger stay. Who asks for a file that went is told to upload or to compile again.
    """
    return store.events.forget(time.time() - older_s, but=LASTING) + forget_files(store, files, older_s)


def forget_files(store: Store, files: Path, older_s: float) -> int:
    """Delete uploads and compiled files that nobody has used for so many seconds and no job needs that may go on."""
    before, gone = time.time() - older_s, list[str]()
    needed = "\n".join(_files_of(request) for request in store.requests_to_do())
    for path in (path for kind, depth in _KEPT.items() for path in _children(files / kind, depth)):
        if path.name not in needed and path.stat().st_mtime < before:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            gone.append(path.name)
    store.accounts.drop_uploads(gone)
    return len(gone)


def sweep(files: Path) -> None:
    """Delete what uploads and exports left that were cut short; no other process has these files."""
    for path in (path for depth in range(1, 4) for path in _children(files, depth)):
        if path.name.startswith((".part-", ".export-")):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def touch(path: Path) -> None:
    """Note that a file is in use: it counts as new from now on."""
    os.utime(path)


def _files_of(request: Mapping[str, Any]) -> str:
    return f"{request.get('model', '')}\n{request.get('options', '')}"


def _children(directory: Path, depth: int) -> Iterator[Path]:
    return directory.glob("/".join(["*"] * depth))


router = APIRouter(prefix="/v1/blobs", tags=["blobs"])
MOST_BYTES, _MOST_KEPT = 16 << 30, 64 << 30
_SILENT_S = 30.0
_NO_RANGE = (400, 416)
_OURS = re.compile("/.*/(?P<place>(?:models/(?P<digest>[0-9a-f]{64})|compiled/[^/]+/[0-9a-f]{32})/[^/]+)", re.DOTALL)
_NAME = re.compile(r"[^A-Za-z0-9._-]+")
Digest = Annotated[str, InPath(pattern=DIGEST)]


class FileAnswer(FileResponse):
    """A file, or ranges of it; those that there are not are refused as everything is, with a problem document.

    `end` is called when it was sent, or its client has gone.
    """

    def __init__(self, path: Path, end: Callable[[], None] = lambda: None, **more: Any) -> None:
        super().__init__(path, **more)
        self._end = end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._answer(scope, receive, send)
        finally:
            self._end()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusals: list[Message] = []

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] in _NO_RANGE:
                refusals.append(message)
            if not refusals:
                await send(message)

        await super().__call__(scope, receive, sent)
        if refusals:
            [status], asked = (one["status"] for one in refusals), Headers(scope=scope).get("range", "")
            size = Headers(raw=refusals[0]["headers"]).get("content-range", "")
            has = f", which has {size.rpartition('/')[2]} bytes" if size else "; write for example bytes=0-99"
            answer = problem(status, "range", f"{asked[:100]!r} is no range of this file{has}")
            if size:
                answer.headers["Content-Range"] = size
            await answer(scope, receive, send)


@router.put("/{digest}", status_code=201)
async def upload(
    digest: Digest,
    request: Request,
    service: TheService,
    caller: User,
    name: Annotated[str, Query(max_length=200)] = "model.onnx",
) -> BlobOut:
    """Upload a model; the same digest twice is one blob."""
    wanted, name, account = digest.removeprefix("sha256:"), safe_name(name), caller.account
    with streaming(service, caller):
        size = await _take_in(service, account, wanted, name, request)
    return BlobOut(digest=digest, name=name, size_bytes=size)


@router.get("")
async def uploads(
    service: TheService, caller: Reader, account: Annotated[str, Query(max_length=63)] = ""
) -> list[BlobOut]:
    """List what this account has uploaded, or to an administrator another one, oldest first."""
    if account and caller.role != ADMIN and account != caller.account.name:
        raise RefusedError(404, "not-found", f"there is no account {account!r}")
    found = await service.store.read(lambda store: store.accounts.uploads(account or caller.account.name))
    return [BlobOut(digest=f"sha256:{one.digest}", name=one.name, size_bytes=one.size_bytes) for one in found]


@router.delete("/{digest}", status_code=204)
async def delete(digest: Digest, service: TheService, caller: User) -> None:
    """Delete what this account has uploaded; jobs that have begun with it keep their copy."""
    wanted, name = digest.removeprefix("sha256:"), caller.account.name
    await service.store.read(lambda store: store.accounts.upload(name, wanted))
    await drop_blobs(service, name, [wanted])


async def drop_blobs(service: Service, account: str, digests: Sequence[str]) -> None:
    """Forget uploads of an account, and delete the files that no other account has uploaded too."""
    for gone in await service.store.write(lambda store: store.accounts.drop_uploads(digests, account)):
        blob_path(service.files, gone).unlink(missing_ok=True)


def quota_of(store: Store, files: Path, account: StoredAccount, but: str = "") -> tuple[int, int]:
    """Return how many bytes an account may keep, and how many are left of them beside its uploads and compiled files.

    The upload `but` does not count: it comes again.
    """
    most = account.upload_bytes
    if most is None:
        most = min(_MOST_KEPT, shutil.disk_usage(files).total // 4)
    uploads = sum(one.size_bytes for one in store.accounts.uploads(account.name) if one.digest != but)
    return most, most - uploads - sum(path.stat().st_size for path in (compiled_of(files, account.name)).glob("*/*"))


def compiled_of(files: Path, account: str) -> Path:
    return files / "compiled" / account


def check_quota(store: Store, files: Path, account: str) -> None:
    """Refuse an account a further compiled file where it keeps as much as it may."""
    most, left = quota_of(store, files, store.accounts.get(account))
    if left <= 0:
        raise _full(account, most, left)


def check_outputs(files: Path, store: Store, request: JobRequest, account: str) -> None:
    """Refuse to begin a job that writes a compiled file where its account keeps as much as it may."""
    if account and Path(request.options.get("output", "")).is_relative_to(compiled_of(files, account)):
        try:
            check_quota(store, files, account)
        except RefusedError as error:
            raise QuotaError(str(error)) from None


def _full(account: str, most: int, left: int) -> RefusedError:
    return RefusedError(413, "quota", f"{account} may keep {most} bytes, of which {max(left, 0)} are left; delete an "
                        "upload or a job's file, or ask an administrator for more")  # fmt: skip


@router.head("/{digest}", include_in_schema=False)
@router.get("/{digest}")
async def download(digest: Digest, service: TheService, caller: Reader) -> FileAnswer:
    """Return what this account has uploaded; ranges are served."""
    wanted = digest.removeprefix("sha256:")
    found = await service.store.read(lambda store: store.accounts.upload(caller.account.name, wanted))
    path = blob_path(service.files, wanted)
    if not path.is_file():
        raise RefusedError(404, "not-found", f"the blob {digest} is no longer kept; upload it again")
    return FileAnswer(path, filename=found.name, media_type="application/octet-stream", headers={"ETag": wanted})


def safe_name(name: str) -> str:
    cleaned = _NAME.sub("_", name.replace("\\", "/").rpartition("/")[2]).lstrip(".-")[-80:]
    return cleaned if cleaned.endswith((".onnx", ".pt2")) else f"{cleaned or 'model'}.onnx"


def blob_path(files: Path, digest: str) -> Path:
    return files / "blobs" / digest[:2] / digest


async def model_path(service: Service, account: str, digest: str, weights: Mapping[str, str], name: str = "") -> Path:
    """Return the path under which a job reads an uploaded model: with its name, for that is what the network is called.

    That is `name`, or what it was uploaded as. `weights` are the digests of the files that the model keeps weights in,
    by its names for them: they lie beside it.
    """
    uploaded = await service.store.read(lambda store: store.accounts.upload(account, digest))
    own = safe_name(name) if name else uploaded.name
    for wanted in weights.values():
        await service.store.read(partial(_check_upload, account=account, digest=wanted.removeprefix("sha256:")))
    taken = [own, *weights]
    for one in weights:
        within = {one[:end] for end, character in enumerate(one) if character == "/"}
        if not is_inside(one) or taken.count(one) > 1 or not within.isdisjoint(taken):
            raise RefusedError(422, "weights", f"the weights {one[:200]!r} are no file of their own beside the model; "
                               "export it with its weights in files of its own directory")  # fmt: skip
    if not weights:
        place = service.files / "models" / digest
        await asyncio.to_thread(_link, service.files, place / own, digest)
        return place / own
    blobs = {own: digest, **{one: wanted.removeprefix("sha256:") for one, wanted in weights.items()}}
    place = service.files / "models" / hashlib.sha256(canonical_json(blobs).encode()).hexdigest()
    await asyncio.to_thread(_join, service.files, place, blobs)
    return place / own


def place_in(text: str) -> str:
    """Return a path without the coordinator's directory that it lies in; other texts as they are."""
    found = _OURS.fullmatch(text)
    return found["place"] if found else text


def adopted(files: Path, request: JobRequest) -> JobRequest:
    """Return the request of a job that another coordinator may have had with its files' places here."""
    try:
        request = replace(request, model=_uploaded_here(files, request.model))
        if "inputs" in request.options:
            inputs = _uploaded_here(files, request.options["inputs"])
            request = replace(request, options={**request.options, "inputs": inputs})
        if output := _OURS.fullmatch(request.options.get("output", "")):
            path = files / output["place"]
            path.parent.mkdir(parents=True, exist_ok=True)
            request = replace(request, options={**request.options, "output": str(path)})
    except (OSError, RefusedError) as error:
        raise UsageError(f"{error}") from error
    return request


def _uploaded_here(files: Path, text: str) -> str:
    """Return the place here of an uploaded file that another coordinator may have had; other texts as they are."""
    if (there := _OURS.fullmatch(text)) is None:
        return text
    path = files / there["place"]
    if not path.exists():
        if not blob_path(files, there["digest"]).exists():
            raise UsageError(f"the model {path.name} was not uploaded to it")
        _link(files, path, there["digest"])
    return str(path)


def _check_upload(store: Store, account: str, digest: str) -> None:
    store.accounts.upload(account, digest)


def _link(files: Path, path: Path, digest: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        touch(blob_path(files, digest))
        touch(path.parent)
        os.link(blob_path(files, digest), path)
    except FileExistsError:
        pass
    except FileNotFoundError:
        raise _forgotten(digest) from None


def _join(files: Path, place: Path, blobs: Mapping[str, str]) -> None:
    """Have blobs lie in a directory under their names: all of them, or none.

    They are copies: ONNX reads weights from no file that has a second name.
    """
    for digest in blobs.values():
        try:
            touch(blob_path(files, digest))
        except FileNotFoundError:
            raise _forgotten(digest) from None
    if place.exists():
        touch(place)
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(dir=place.parent, prefix=".part-"))
    try:
        for name, digest in blobs.items():
            path = part / name
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(blob_path(files, digest), path)
        with suppress(OSError):  # another has just joined the same
            part.rename(place)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _forgotten(digest: str) -> RefusedError:
    return RefusedError(404, "not-found", f"the blob sha256:{digest} is no longer kept; upload it again")


async def _take_in(service: Service, account: StoredAccount, wanted: str, name: str, request: Request) -> int:
    coming, size = service.coming, 0

    async def quota() -> tuple[int, int]:
        return await service.store.read(lambda store: quota_of(store, service.files, account, wanted))

    most, left = await quota()

    def check(sized: int) -> None:
        if sized > MOST_BYTES:
            raise RefusedError(413, "too-large", f"a blob has at most {MOST_BYTES} bytes")
        if sized - size + coming[account.name] > left:
            raise _full(account.name, most, left)

    said = request.headers.get("content-length", "")
    check(int(said) if said.isdecimal() else 0)
    path = blob_path(service.files, wanted)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=".part-")
    try:
        with os.fdopen(handle, "wb") as file:
            hashed = hashlib.sha256()
            async for chunk in _patiently(request.stream()):
                check(size + len(chunk))
                size += len(chunk)
                coming[account.name] += len(chunk)
                hashed.update(chunk)
                await asyncio.to_thread(file.write, chunk)
        if hashed.hexdigest() != wanted:
            raise RefusedError(422, "digest", f"the body's digest is sha256:{hashed.hexdigest()}; send it whole")
        most, left = await quota()  # others may have ended meanwhile
        check(size)
        Path(part).replace(path)
        await service.store.write(lambda store: store.accounts.add_upload(account.name, wanted, name, size))
    finally:
        coming[account.name] -= size
        Path(part).unlink(missing_ok=True)
    return size


async def _patiently(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    while True:
        try:
            yield await asyncio.wait_for(anext(chunks), _SILENT_S)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise RefusedError(408, "silent", f"nothing came for {_SILENT_S:.0f} s; send the blob again") from None


def obstacle(files: Path) -> str:
    """Say what keeps uploads and compiled files from being kept, "" where nothing does."""
    try:
        check_room(files)
    except OSError as error:
        return f"uploads and compiled files cannot be kept ({error.strerror}); tell who runs the service"
    return ""


def free_bytes(files: Path) -> int:
    there = next(place for place in (files, *files.parents) if place.exists())  # nothing was uploaded yet
    return shutil.disk_usage(there).free
