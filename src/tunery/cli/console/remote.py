"""Commands that a service carries out: this user's own on its socket, or one on the network.

To one on the network the model goes once, and the compiled file comes back from there.
"""

import uuid
from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tunery._errors import UsageError, WorkError
from tunery.cli.console.following import followed
from tunery.cli.console.output import output_path, remark

if TYPE_CHECKING:
    from tunery.domain import JobStatus, Network
    from tunery.domain.request import CompileReport, Request, ShareRequest
    from tunery.web.client import ServiceClient

Server = Annotated[
    str, typer.Option("--server", metavar="URL", help="Let this service do it, where `tunery login` was given a token.")
]
Socket = Annotated[str, typer.Option("--socket", metavar="FILE", help="Where your own service listens.")]
_TRIES = 3


def server_of(given: str, *instead: str) -> str:
    """Return the URL of the service that a command is for: `given`, else TUNERY_SERVER; "" for none.

    What the command was told `instead`, a store or a socket of this machine, comes before the variable.

    Raises:
        UsageError: it was told both.
    """
    from tunery._settings import settings

    if given and any(instead):
        raise UsageError(
            "--store and --socket are for this machine, not for a service; leave them out, or leave out --server"
        )
    return given or ("" if any(instead) else settings().server)


def fetched_file(request: "Request", output: str, *, force: bool) -> Path:
    """Return where a service's compiled network goes, once it is known that it may go there.

    Raises:
        UsageError: it may not.
    """
    from tunery._outputs import NETWORK, check_output

    path = output_path(output, default_name(request))
    check_output(path, NETWORK, inputs=[] if ":" in request.model else [Path(request.model)], force=force)
    return path


def default_name(request: "Request") -> str:
    """Return the file name of a compiled model where `-o` names a directory."""
    from tunery.reports.format import file_name

    return file_name(Path(request.model.rpartition(":")[2]).stem, request)


def service_at(server: str, socket: str) -> "ServiceClient":
    """Return the service on the network that a command is for, or else this user's own.

    Raises:
        UsageError: there is none, or it is another user's.
    """
    from tunery._settings import socket_path
    from tunery.web.client import ServiceClient, connect

    url = server_of(server, socket)
    return connect(url) if url else ServiceClient.local(socket_path(socket))


def service_or_none(server: str, socket: str, store: str) -> "ServiceClient | None":
    """Return the service that knows the jobs which a command is about; None where they are in a store of ours."""
    if server_of(server, socket, store):
        return service_at(server, socket)
    return None if store else own_service(socket)


def own_service(socket: str) -> "ServiceClient | None":
    """Return the service that this user runs, None where none does."""
    from tunery._settings import socket_path

    if not (path := socket_path(socket)).exists():
        return None  # nothing of it is imported
    from tunery.web.client import ServiceClient

    try:
        return ServiceClient.local(path)
    except UsageError:
        return None


def own_store(socket: str) -> str:
    """Return the URL of the store of this user's service; "" where none runs."""
    service = own_service(socket)
    if service is None:
        return ""
    with service:
        return str(service.about()["store"])


def submit(
    service: "ServiceClient", request: "Request", more: Mapping[str, Any], share: "ShareRequest | None" = None
) -> dict[str, Any]:
    """Submit a job; where no answer comes, once more with the same key, so that it is one job."""
    body, key = {**_body(service, request, share), **more}, uuid.uuid4().hex
    for _ in range(_TRIES - 1):
        try:
            return service.submit(body, key)
        except WorkError:
            continue
    return service.submit(body, key)


def run_there(
    service: "ServiceClient", request: "Request", more: Mapping[str, Any], *, verbose: bool
) -> tuple["JobStatus", dict[str, Any]]:
    """Have a request done by a service; return how its job ended, and what it answered.

    Raises:
        WorkError: the job has failed.
    """
    from tunery.domain import JobState

    with followed(verbose=verbose, server=service.name) as live:
        job = submit(service, request, more)
        live.began(job["id"])
        job = service.follow(job["id"], live.show)
    status = status_of(job)
    if status.state is JobState.FAILED:
        raise WorkError(status.message)
    return status, job["answer"] or {}


def compile_there(
    service: "ServiceClient", request: "Request", output: Path, fill: Mapping[str, Any], *, verbose: bool
) -> "tuple[CompileReport, Network]":
    """Have a service compile a model, and fetch the file to `output`.

    Raises:
        WorkError: the job has failed, or was cancelled.
    """
    from tunery.domain import Budget, JobState
    from tunery.reports.data import compile_report

    there = replace(request, kind="compile", budget=Budget(), latency_target_s=None)
    status, answer = run_there(service, there, fill, verbose=verbose)
    if status.state is not JobState.DONE:
        raise WorkError(f"job {status.job_id} is {status.state.value}; nothing was compiled")
    service.download(status.job_id, output)
    return compile_report({**answer, "path": str(output), "texts": []})


def status_of(job: Mapping[str, Any]) -> "JobStatus":
    """Return a job as a service shows it."""
    from pydantic import TypeAdapter

    from tunery.domain import JobStatus, TaskState

    names = {"task": "task_key", "workload": "workload_key", "candidate": "best_candidate"}
    known = {field.name for field in fields(TaskState)}
    tasks = [{k: v for key, v in one.items() if (k := names.get(key, key)) in known} for one in job["tasks"]]
    made = {name: datetime.fromisoformat(job[name]).timestamp() for name in ("created_at", "updated_at")}
    same = {name: job[name] for name in ("state", "request", "spend", "message", "remaining", "outlook")}
    return TypeAdapter(JobStatus).validate_python({"job_id": job["id"], **same, **made, "tasks": tasks})


def _body(service: "ServiceClient", request: "Request", share: "ShareRequest | None") -> dict[str, Any]:
    """Return a request as a service takes it; a model that is a file is sent first, if the service is elsewhere."""
    model, priority = request.model, share.priority if share else 0
    local = None
    if service.is_local:
        from tunery.runtime.preparing import absolute

        model = absolute(model)  # the service has another working directory
        local = {"options": dict(request.options), "prices": request.prices, "trust": request.trust, "on": request.on}
        local |= {"owner": share.owner, "weight": share.weight} if share else {}
    else:
        _check_elsewhere(request)
        if not model.startswith(("zoo:", f"{request.dialect}:")):
            remark("sending the model")
            model = service.upload(Path(model))
    return {
        "kind": request.kind,
        "model": model,
        "shapes": {name: list(shape) for name, shape in request.shapes.items()},
        "target": request.target,
        "threads": request.threads,
        "budget": "" if request.budget.unlimited else str(request.budget),
        "effort": request.effort,
        "latency_target_s": request.latency_target_s,
        "seed": request.seed,
        "dialect": request.dialect,
        "priority": priority,
        "local": local,
    }


def _check_elsewhere(request: "Request") -> None:
    """Refuse what a service on the network does not do for an account.

    Raises:
        UsageError: the request asks for it.
    """
    given = (("--trust", request.trust), ("--prices", request.prices), ("--on", request.on))
    for name, value in given:
        if value:
            raise UsageError(f"{name} is for this machine, not for a service; leave it out, or leave out --server")
