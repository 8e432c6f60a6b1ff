"""Uploaded models and delivered files: in the service's own directory, by digest, each under a name of its own."""

import asyncio
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi import Path as InPath
from fastapi.responses import FileResponse

from tunery.web._bodies import DIGEST, BlobOut
from tunery.web._problems import RefusedError
from tunery.web._retention import touch
from tunery.web._service import Reader, Service, TheService, User

router = APIRouter(prefix="/v1/blobs", tags=["blobs"])
MOST_BYTES = 16 << 30
_SILENT_S = 30.0
_NAME = re.compile(r"[^A-Za-z0-9._-]+")
Digest = Annotated[str, InPath(pattern=DIGEST)]


@router.put("/{digest}", status_code=201)
async def upload(
    digest: Digest,
    request: Request,
    service: TheService,
    caller: User,
    name: Annotated[str, Query(max_length=200)] = "model.onnx",
) -> BlobOut:
    """Upload a model; the same digest twice is one blob."""
    wanted, name = digest.removeprefix("sha256:"), safe_name(name)
    size = await _take_in(service.files, wanted, request)
    await service.store.write(lambda store: store.accounts.add_upload(caller.account.name, wanted, name, size))
    return BlobOut(digest=digest, name=name, size_bytes=size)


@router.head("/{digest}", include_in_schema=False)
@router.get("/{digest}")
async def download(digest: Digest, service: TheService, caller: Reader) -> FileResponse:
    """Return what this account has uploaded; ranges are served."""
    wanted = digest.removeprefix("sha256:")
    found = await service.store.read(lambda store: store.accounts.upload(caller.account.name, wanted))
    path = blob_path(service.files, wanted)
    if not path.is_file():
        raise RefusedError(404, "not-found", f"the blob {digest} is no longer kept; upload it again")
    return FileResponse(path, filename=found.name, media_type="application/octet-stream", headers={"ETag": wanted})


def safe_name(name: str) -> str:
    """Return a file name that says as much of `name` as is harmless."""
    cleaned = _NAME.sub("_", name.replace("\\", "/").rpartition("/")[2]).lstrip(".-")[-80:]
    return cleaned if cleaned.endswith((".onnx", ".pt2")) else f"{cleaned or 'model'}.onnx"


def blob_path(files: Path, digest: str) -> Path:
    """Return where a blob lies."""
    return files / "blobs" / digest[:2] / digest


async def model_path(service: Service, account: str, digest: str) -> Path:
    """Return the path under which a job reads an uploaded model: with its name, for that is what the network is called.

    Raises:
        NothingFoundError: this account has not uploaded it.
    """
    found = await service.store.read(lambda store: store.accounts.upload(account, digest))
    path, source = service.files / "models" / digest / found.name, blob_path(service.files, digest)

    def link() -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            touch(source)
            touch(path.parent)
            os.link(source, path)
        except FileExistsError:
            pass
        except FileNotFoundError:
            raise RefusedError(
                404, "not-found", f"the blob sha256:{digest} is no longer kept; upload it again"
            ) from None

    await asyncio.to_thread(link)
    return path


async def _take_in(files: Path, wanted: str, request: Request) -> int:
    """Write a request's body where its digest says, and return its size.

    Raises:
        RefusedError: it is too large, of another digest, cut, or its sender falls silent.
    """
    said = request.headers.get("content-length", "")
    if said.isdecimal() and int(said) > MOST_BYTES:
        raise RefusedError(413, "too-large", f"a blob has at most {MOST_BYTES} bytes")
    path = blob_path(files, wanted)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=".part-")
    try:
        with os.fdopen(handle, "wb") as file:
            hashed, size = hashlib.sha256(), 0
            async for chunk in _patiently(request.stream()):
                size += len(chunk)
                if size > MOST_BYTES:
                    raise RefusedError(413, "too-large", f"a blob has at most {MOST_BYTES} bytes")
                hashed.update(chunk)
                await asyncio.to_thread(file.write, chunk)
        if hashed.hexdigest() != wanted:
            raise RefusedError(422, "digest", f"the body's digest is sha256:{hashed.hexdigest()}; send it whole")
        Path(part).replace(path)
    finally:
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


def free_bytes(files: Path) -> int:
    """Return how much room there is for files."""
    there = next(place for place in (files, *files.parents) if place.exists())  # nothing was uploaded yet
    return shutil.disk_usage(there).free
