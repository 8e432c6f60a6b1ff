"""Requests of ours as a service takes them, and what it answers as ours.

To a service on the network the model goes once, and the compiled file comes back from there.
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunery._errors import NothingFoundError, TuneryError, UsageError, WorkError, error_of
from tunery.domain import Budget, JobState, JobStatus, Spend
from tunery.domain.request import ASKED, CompileOptions, CompileReport, Progress, Request, ShareRequest
from tunery.reports.data import status_of
from tunery.web.client._http import ServiceClient

if TYPE_CHECKING:
    from tunery.domain import Network
    from tunery.domain.request import BenchReport, TuneReport

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


class UnfinishedError(WorkError):
    """A job at a service was paused, cancelled or stopped by somebody; `status` is how it stands."""

    def __init__(self, status: JobStatus, why: str) -> None:
        super().__init__(f"job {status.job_id} is {status.state.value}{why}")
        self.status = status


class There:
    """A service by the verbs of a `Session` of this machine; a `watcher` is told of its jobs."""

    def __init__(self, service: ServiceClient, watcher: Watcher = NOBODY) -> None:
        self._service, self._watcher = service, watcher

    def answer(self, request: Request, why: str = "; it has no answer") -> dict[str, Any]:
        return self._run(request, why, self._watcher)[1]

    def tune(self, request: Request, on_progress: Callable[[Progress], None] = _ignore) -> "TuneReport":
        """Tune there, and fetch the network to the `output` of the request's options."""
        from tunery.reports.data import tune_report

        def show(kind: str, data: dict[str, Any]) -> None:
            self._watcher.show(kind, data)
            if (progress := progress_of(kind, data)) is not None:
                on_progress(progress)

        if request.store:
            raise UsageError("a service keeps its own records; leave out `store`")
        options = {name: value for name, value in request.options.items() if name not in {"output", "force"}}
        if output := request.options.get("output"):
            self._check(request, Path(output), force=bool(request.options.get("force")))
            options["deliver"] = True
        status, began = self._run(
            replace(request, options=options), ", and not done", replace(self._watcher, show=show)
        )
        report = tune_report(status, began, self._service.url)
        try:
            compiled = fetch(self._service, status, began, Path(output))[0] if output else None
        except TuneryError as error:
            return replace(report, undelivered=error)
        return replace(report, compiled=compiled)

    def compile(self, request: Request, output: Path, options: CompileOptions) -> "tuple[CompileReport, Network]":
        """Compile there, and fetch the file to `output`."""
        if options.targets:
            raise UsageError(
                "a service compiles for one target; fetch a file of each, and put them together with `tunery combine`"
            )
        if options.sign:
            raise UsageError("a service does not sign; fetch the file, and sign on a machine that has the key")
        self._check(request, output, force=options.force)
        there = replace(request, kind="compile", options=options.for_service(), budget=Budget(), latency_target_s=None)
        status, answer = self._run(there, "; nothing was compiled", self._watcher)
        return fetch(self._service, status, answer, output)

    def bench(self, request: Request, against: Sequence[str], seconds: float, _: Path | None = None) -> "BenchReport":
        """Compare there what the service compiles."""
        from tunery.reports.data import bench_report

        options = {"against": list(against), "seconds": seconds, "inputs": request.options.get("inputs", "")}
        there = replace(request, kind="bench", budget=Budget(), latency_target_s=None, options=options)
        return bench_report(self.answer(there, ", and not done"))

    def _check(self, request: Request, output: Path, *, force: bool) -> None:
        from tunery._outputs import NETWORK, check_output

        check_output(output, NETWORK, inputs=[] if ":" in request.model else [Path(request.model)], force=force)

    def _run(self, request: Request, why: str, watcher: Watcher) -> tuple[JobStatus, dict[str, Any]]:
        """Have a request done; return how its job ended, and what it answered."""
        job = submit(self._service, request, None, watcher)
        watcher.began(job["id"])
        job = self._service.follow(job["id"], watcher.show)
        status = status_of(job)
        if status.state is JobState.FAILED:
            raise error_of(status.problem, status.message)
        if status.state is not JobState.DONE:
            raise UnfinishedError(status, why)
        return status, job["answer"] or {}


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
