"""Asking the local daemon."""

import json
import os
import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from tunery._errors import UsageError, WorkError
from tunery.domain import JobStatus
from tunery.domain.request import Progress, Request, ShareRequest
from tunery.runtime.preparing import absolute
from tunery.service._wire import line

_CONNECT_S = 10.0
_OWN = "start one of your own with `tunery serve --local --socket FILE`, and name FILE in TUNERY_SOCKET"


class Client:
    """One user's view of the daemon that listens at `path`; each call is a connection of its own.

    Every call raises UsageError where no daemon listens or it refuses, WorkError where the work fails or it goes away.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def listens(self) -> bool:
        """Say whether a daemon answers."""
        try:
            self.store()
        except (UsageError, WorkError):
            return False
        return True

    def store(self) -> str:
        """Return the URL of the daemon's store."""
        return str(next(self._ask({"do": "hello"}))["store"])

    def submit(
        self,
        request: Request,
        claim: ShareRequest,
        on_job: Callable[[str], None] = lambda _: None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> JobStatus:
        """Submit a job; with `on_progress` follow it to its end, else return as soon as it is queued."""
        # The daemon has another working directory.
        asked = asdict(replace(request, model=absolute(request.model), store=""))
        message = {"do": "submit", "request": asked, "claim": asdict(claim), "follow": on_progress is not None}
        return self._follow(message, on_job, on_progress)

    def act(self, what: str, job_id: str, on_progress: Callable[[Progress], None] | None = None) -> JobStatus:
        """Cancel, pause, resume or follow a job; with `on_progress` follow it to its end."""
        message = {"do": what, "job": job_id, "follow": on_progress is not None}
        return self._follow(message, lambda _: None, on_progress)

    def _check_owner(self, connection: socket.socket) -> None:
        """Refuse the daemon of another user, before it hears anything: it would learn what we ask, and could lie."""
        told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        user = struct.unpack("3i", told)[1]
        if user not in {0, os.geteuid()}:
            raise UsageError(f"the daemon at {self._path} is another user's; {_OWN}")

    def _follow(
        self,
        message: dict[str, Any],
        on_job: Callable[[str], None],
        on_progress: Callable[[Progress], None] | None,
    ) -> JobStatus:
        for answer in self._ask(message):
            if "job" in answer:
                on_job(answer["job"])
            elif "progress" in answer and on_progress is not None:
                on_progress(Progress(**answer["progress"]))
            elif "status" in answer:
                return TypeAdapter(JobStatus).validate_python(answer["status"])
        raise WorkError("the daemon has ended; start it again with `tunery serve --local`, and the job goes on")

    def _ask(self, message: dict[str, Any]) -> Iterator[dict[str, Any]]:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_CONNECT_S)
            try:
                connection.connect(str(self._path))
            except PermissionError:
                raise UsageError(f"the daemon at {self._path} is another user's; {_OWN}") from None
            except OSError:
                raise UsageError("no daemon is running; start one with `tunery serve --local`") from None
            self._check_owner(connection)
            connection.settimeout(None)  # a job that waits for its turn says nothing for long
            try:
                connection.sendall(line(message))
                with connection.makefile("rb") as answers:
                    for text in answers:
                        answer = json.loads(text)
                        if "error" in answer:
                            raise (UsageError if answer.get("usage") else WorkError)(answer["error"])
                        yield answer
            except (OSError, ValueError) as error:
                raise WorkError(f"the connection to the daemon broke ({error}); jobs go on without it") from error
