"""Requests of ours as a service takes them, and what it answers as ours.

To a service on the network the model goes once, and the compiled file comes back from there.
"""

import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunery._errors import NothingFoundError, UsageError, WorkError, error_of
from tunery.domain import Budget, JobState, JobStatus, Spend
from tunery.domain.request import ASKED, CompileReport, Progress, Request, ShareRequest
from tunery.web.client._http import ServiceClient, status_of

if TYPE_CHECKING:
    from tunery.domain import Network

_TRIES, _LONGEST_NAME = 3, 200
_NO_OPTIONS = {*ASKED, "name", "weights", "priority", "local"}
"""What a body holds beside the options of its kind."""


def _ignore(*_: object) -> None:
    """Show nothing."""


@dataclass(frozen=True, slots=True)
class Watcher:
    """Who is told of a job: `say` what goes on before it, `began` its id, `show` the kind and data of each event."""

    say: Callable[[str], None] = _ignore
    began: Callable[[str], None] = _ignore
    show: Callable[[str, dict[str, Any]], None] = _ignore


NOBODY = Watcher()


def submit(
    service: ServiceClient,
    request: Request,
    share: ShareRequest | None = None,
    watcher: Watcher = NOBODY,
) -> dict[str, Any]:
    """Submit a job; where no answer comes, once more with the same key, so that it is one job.

    Another coordinator that answers then may have to be sent the model first.
    """
    key = uuid.uuid4().hex
    for _ in range(_TRIES - 1):
        with suppress(WorkError, NothingFoundError):
            return service.submit(_body(service, request, share, watcher), key)
    return service.submit(_body(service, request, share, watcher), key)


def run_there(service: ServiceClient, request: Request, watcher: Watcher = NOBODY) -> tuple[JobStatus, dict[str, Any]]:
    """Have a request done by a service; return how its job ended, and what it answered."""
    job = submit(service, request, None, watcher)
    watcher.began(job["id"])
    job = service.follow(job["id"], watcher.show)
    status = status_of(job)
    if status.state is JobState.FAILED:
        raise error_of(status.problem, status.message)
    return status, job["answer"] or {}


def compile_there(
    service: ServiceClient, request: Request, output: Path, watcher: Watcher = NOBODY
) -> "tuple[CompileReport, Network]":
    """Have a service compile a model, and fetch the file to `output`."""
    there = replace(request, kind="compile", budget=Budget(), latency_target_s=None)
    status, answer = run_there(service, there, watcher)
    if status.state is not JobState.DONE:
        raise WorkError(f"job {status.job_id} is {status.state.value}; nothing was compiled")
    return fetch(service, status, answer, output)


def fetch(
    service: ServiceClient, status: JobStatus, answer: Mapping[str, Any], output: Path
) -> "tuple[CompileReport, Network]":
    """Fetch a job's compiled network to `output`; return what its `answer` says of it."""
    from tunery.reports.data import compile_report
    from tunery.reports.job import COMPILED

    made = answer.get(COMPILED, answer)
    if "described" not in made:
        raise WorkError(status.message or f"job {status.job_id} has no compiled network")
    service.download(status.job_id, output)
    return compile_report({**made, "path": str(output), "texts": []})


def progress_of(kind: str, data: Mapping[str, Any]) -> Progress | None:
    if kind != "progress":
        return None
    return Progress(**{**data, "spend": Spend(**data["spend"]) if data.get("spend") else None})


def _body(service: ServiceClient, request: Request, share: ShareRequest | None, watcher: Watcher) -> dict[str, Any]:
    model, priority = request.model, share.priority if share else 0
    local, sent, options = None, {"model": model}, dict(request.options)
    if options.get("inputs"):
        inputs = Path(options["inputs"])
        options["inputs"] = str(inputs.absolute()) if service.is_local else service.upload(inputs)
    if service.is_local:
        from tunery.runtime.importing import absolute

        sent = {"model": absolute(model)}  # the service has another working directory
        local = {"options": options, "prices": request.prices, "trust": request.trust, "on": request.on}
        options = {}
        local |= {"owner": share.owner, "weight": share.weight} if share else {}
    else:
        _check_elsewhere(request)
        if not model.startswith(("zoo:", *(f"{name}:" for name in request.dialects))):
            if not Path(model).exists():
                raise UsageError(
                    f"there is no file {model!r}; give an .onnx or .pt2 file, or a zoo:NAME from `tunery zoo list`"
                )
            sent = _send(service, Path(model), watcher)
    return {**request.as_asked(), **sent, "priority": priority, "local": local, **options}


def _send(service: ServiceClient, path: Path, watcher: Watcher) -> dict[str, Any]:
    """Send a model, with the files beside it that hold its weights; return how a job names them."""
    weights = _weights(path)
    watcher.say("sending the model")
    digest, sent = service.upload(path), dict[str, str]()
    for number, (name, place) in enumerate(weights.items(), 1):
        watcher.say(f"sending its weights, file {number} of {len(weights)}")
        sent[name] = service.upload(place)
    return {"model": digest, "name": path.name[-_LONGEST_NAME:], **({"weights": sent} if sent else {})}


def _weights(path: Path) -> dict[str, Path]:
    if path.suffix != ".onnx" or not path.is_file():
        return {}
    from tunery.models._files import is_inside
    from tunery.models.onnx._locations import weights_beside

    found, folder = dict[str, Path](), path.parent.resolve()
    for name in weights_beside(path):
        place = (folder / name).resolve() if is_inside(name) else folder
        if not place.is_file() or not place.is_relative_to(folder):
            raise UsageError(
                f"{str(path)!r} keeps weights in {name!r:.300}, which is no file in the model's directory; "
                "put it there, or export the model again"
            )
        found[name] = place
    return found


def _check_elsewhere(request: Request) -> None:
    """Refuse what a service on the network does not do for an account."""
    from tunery.dialects import file_dialect

    if file_dialect(request.model):
        raise UsageError(
            "a service takes kernels of your own by `POST /v1/measurements` only; leave out --server to tune it here"
        )
    if wrong := sorted(_NO_OPTIONS & request.options.keys()):
        raise UsageError(f"a job has no option {wrong[0]!r}; it is a part of the request itself")
    given = (("trust", request.trust), ("prices", request.prices), ("on", request.on))
    for name, value in given:
        if value:
            raise UsageError(f"a service takes no {name!r}, which is for this machine; leave it out, or the service")
