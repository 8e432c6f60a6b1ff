"""Jobs that are found in the store, of which a coordinator does those that it can."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from tunery._errors import UsageError
from tunery.domain import JobStatus
from tunery.domain.request import Request, ShareRequest
from tunery.engines.remote.registry import added_hosts, host_named
from tunery.service.checks import check, check_model

_log = logging.getLogger(__name__)


class Adoption:
    """Says which jobs of the store are done here, and why others are left to other coordinators. `adopt` returns the
    request of such a job with its files as they are called here, or raises UsageError."""

    def __init__(self, adopt: Callable[[Request], Request]) -> None:
        self._adopt = adopt
        self._tried: dict[str, str] = {}
        self._left: dict[str, str] = {}

    def fitted(self, request: Request, claim: ShareRequest) -> Request:
        own = self._adopt(request)
        check_model(own.model)
        check(own, claim)
        if own.on:
            host_named(own.on, added_hosts())
        return own

    async def look_at(self, found: Sequence[tuple[JobStatus, Request, ShareRequest]]) -> list[Request | None]:
        looked = await asyncio.to_thread(lambda: [self._looked_at(*one) for one in found])
        left = {one.job_id: why for (one, _, _), (own, why) in zip(found, looked, strict=True) if own is None}
        for job_id in left.keys() - self._left.keys():
            _log.info("job %s %s", job_id, left[job_id], extra={"job": job_id})
        self._left = left
        return [own for own, _ in looked]

    def _looked_at(self, status: JobStatus, request: Request, claim: ShareRequest) -> tuple[Request | None, str]:
        if why := self._tried.get(status.job_id, ""):
            return None, why
        try:
            return self.fitted(request, claim), ""
        except UsageError as error:
            return None, _waits(error)

    def why_left(self, job_id: str) -> str:
        return self._left.get(job_id, "")

    def leave(self, job_id: str, error: UsageError) -> str:
        self._tried[job_id] = self._left[job_id] = _waits(error)
        return self._left[job_id]

    def take(self, job_id: str) -> None:
        self._tried.pop(job_id, None)
        self._left.pop(job_id, None)


def _waits(error: UsageError) -> str:
    return f"waits for a coordinator that can do it: {error}"[:1000]
