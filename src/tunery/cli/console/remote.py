"""Commands that a service on the network carries out: the model goes there once, the compiled file comes back."""

import uuid
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tunery._errors import WorkError
from tunery.cli.console.output import emit, output_path, remark, say, width

if TYPE_CHECKING:
    from tunery.domain.request import Request
    from tunery.web.client import ServiceClient

Server = Annotated[
    str, typer.Option("--server", metavar="URL", help="Let this service do it, where `tunery login` was given a token.")
]
_TRIES = 3


def server_of(given: str) -> str:
    """Return the URL of the service that a command is for: `given`, else TUNERY_SERVER; "" for none."""
    from tunery._settings import settings

    return given or settings().server


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


def run_there(  # noqa: PLR0917 - what is asked for, and how it is shown
    url: str, request: "Request", output: Path | None, more: Mapping[str, Any], as_json: bool, verbose: bool
) -> None:
    """Have a request done by a service, fetch the compiled network to `output`, and print the job."""
    from tunery.web.client import connect

    with connect(url) as service:
        body = {**_body(request), **more}
        if not request.model.startswith(("zoo:", f"{request.dialect}:")):
            remark("sending the model")
            body["model"] = service.upload(Path(request.model))
        found = _followed(service, body, verbose=verbose)
        if output is not None and found["state"] == "done":
            made = found
            if body["kind"] != "compile":
                made = _followed(service, {**body, "kind": "compile", "budget": ""}, verbose=verbose)
            if made["state"] == "done":
                service.download(made["id"], output)
                found["file"] = str(output)
            else:
                found["message"] = made["message"]
    print_job(found, as_json=as_json)
    if found["state"] != "done":
        raise typer.Exit(1)


def print_job(job: Mapping[str, Any], *, as_json: bool) -> None:
    """Print a job of a service as `jobs show` prints one of this machine."""
    if as_json:
        emit(job)
        return
    from tunery.domain import TaskState
    from tunery.reports.format import as_text, duration
    from tunery.reports.text import tasks_table

    names = {"task": "task_key", "workload": "workload_key"}
    known = {field.name for field in fields(TaskState)}
    tasks = [
        TaskState(**{k: v for key, v in one.items() if (k := names.get(key, key)) in known}) for one in job["tasks"]
    ]
    if tasks:
        say(as_text(tasks_table(tuple(tasks)), width()))
    spend = job["spend"]
    say(f"job {job['id']} of {job['account']}: {job['state']}, {spend['trials']} trials in {duration(spend['wall_s'])}"
        + (f": {job['message']}" if job["message"] else ""))  # fmt: skip
    if "file" in job:
        say(f"written to {job['file']}")


def _followed(service: "ServiceClient", body: Mapping[str, Any], *, verbose: bool) -> dict[str, Any]:
    from tunery.cli.console.daemon import followed
    from tunery.domain import Spend
    from tunery.domain.request import Progress

    with followed(verbose=verbose, server=service.url) as live:

        def show(kind: str, data: dict[str, Any]) -> None:
            if kind == "progress":
                spend = Spend(**data.pop("spend")) if data.get("spend") else None
                live.show(Progress(**{**data, "spend": spend}))

        job = _submitted(service, body)
        live.began(job["id"])
        return service.follow(job["id"], show)


def _submitted(service: "ServiceClient", body: Mapping[str, Any]) -> dict[str, Any]:
    """Submit a job; where no answer comes, once more with the same key, so that it is one job."""
    key = uuid.uuid4().hex
    for _ in range(_TRIES - 1):
        try:
            return service.submit(body, key)
        except WorkError:
            continue
    return service.submit(body, key)


def _body(request: "Request") -> dict[str, Any]:
    return {
        "kind": request.kind,
        "model": request.model,
        "shapes": {name: list(shape) for name, shape in request.shapes.items()},
        "target": request.target,
        "threads": request.threads,
        "budget": "" if request.budget.unlimited else str(request.budget),
        "effort": request.effort,
        "latency_target_s": request.latency_target_s,
        "seed": request.seed,
        "dialect": request.dialect,
    }
