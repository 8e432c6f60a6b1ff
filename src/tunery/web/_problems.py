"""Errors as problem documents (RFC 9457), made from the tree of our exceptions."""

import errno
import hashlib
import logging
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from tunery._errors import (
    LostJobError,
    NothingFoundError,
    QuotaError,
    StoreError,
    TuneryError,
    UsageError,
    misfit,
    problem_type,
)
from tunery.web._bodies import without_places

_log = logging.getLogger(__name__)
# The first that fits counts: a subclass comes before its class.
_STATUS: tuple[tuple[type[TuneryError], int], ...] = (
    (NothingFoundError, 404),
    (LostJobError, 409),
    (StoreError, 503),
    (QuotaError, 429),
    (UsageError, 422),
    (TuneryError, 500),
)
_RETRY_S = 5
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


class Problem(BaseModel):
    """Why a call was refused or failed (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str


PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": HTTPStatus(status).phrase}
    for status in (400, 401, 403, 404, 405, 408, 409, 413, 422, 429, 500, 503, 507)
}
"""What each operation may answer when it does not do what it is asked for."""


class RefusedError(TuneryError):
    """A request that is refused for a reason of HTTP's own: `status` says which, `retry_s` when to come again."""

    def __init__(self, status: int, kind: str, sentence: str, retry_s: int = _RETRY_S) -> None:
        super().__init__(sentence)
        self.status, self.kind, self.retry_s = status, kind, retry_s


def add_handlers(app: FastAPI) -> None:
    """Let the application answer every error with a problem document."""
    app.add_exception_handler(TuneryError, _ours)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _theirs)
    app.add_exception_handler(OSError, _of_disk)
    app.add_exception_handler(ClientDisconnect, _cut)
    app.add_exception_handler(Exception, _unforeseen)


def problem(status: int, kind: TuneryError | str, sentence: str, retry_s: int = _RETRY_S) -> JSONResponse:
    body = {"type": problem_type(kind), "title": HTTPStatus(status).phrase, "status": status, "detail": sentence}
    headers = {"Retry-After": str(retry_s)} if status in {429, 503} else {}
    if status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(body, status, headers, media_type="application/problem+json")


async def _ours(request: Request, error: Any) -> JSONResponse:
    if isinstance(error.__cause__, OSError) and error.__cause__.errno in _FULL and not isinstance(error, RefusedError):
        return await _of_disk(request, error.__cause__)
    service, said = request.app.state.service, str(error)
    if not service.local:  # where its store is, is nobody else's business
        said = said.replace(f"the store {service.store.place}", "the store").replace(service.store.place, "the store")
    said = without_places(said, service.hidden)
    if isinstance(error, RefusedError):
        return problem(error.status, error.kind, said, error.retry_s)
    return problem(next(status for of, status in _STATUS if isinstance(error, of)), error, said)


async def _invalid(_: Request, error: Any) -> JSONResponse:
    found = [{**one, "loc": one["loc"][1:] or one["loc"]} for one in error.errors()]
    if found[0]["type"] == "json_invalid":
        return problem(422, "request", "the body is not JSON")
    return problem(422, "request", f"the request's {misfit(found)}")


async def _theirs(_: Request, error: Any) -> JSONResponse:
    if isinstance(error.__cause__, ValueError | RecursionError) and error.status_code == HTTPStatus.BAD_REQUEST:
        what = "it is no UTF-8, or holds too long a number or too many lists in one another"
        return problem(422, "request", f"the body cannot be read as JSON: {what}")
    return problem(error.status_code, "http", str(error.detail))


async def _of_disk(request: Request, error: Any) -> JSONResponse:
    if error.errno not in _FULL:
        return await _unforeseen(request, error)
    _log.error("%s %s: %s", request.method, request.url.path, error)
    return problem(507, "disk", f"the service cannot keep what this needs: {error.strerror}; tell who runs it")


async def _cut(_: Request, __: Any) -> JSONResponse:
    return problem(400, "cut", "the request was cut short; send it whole")  # which hardly anybody hears


async def _unforeseen(request: Request, error: Any) -> JSONResponse:
    _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return problem(500, "internal", f"internal error: {type(error).__name__}; please report it")


def revision(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def check_match(if_match: str, changeable: str) -> None:
    """Refuse a change by somebody who has seen another state than there is; "" and `*` mean any."""
    seen = [tag.strip().strip('"').partition("-")[0] for tag in if_match.split(",")]
    if if_match and "*" not in seen and revision(changeable) not in seen:
        raise RefusedError(412, "changed", "it was changed since you have looked; look again, and change it then")
