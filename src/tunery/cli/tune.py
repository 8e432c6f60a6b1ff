"""`tunery tune`: the main job."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tunery._errors import TuneryError, UsageError, error_of
from tunery.cli.console import failure, options
from tunery.cli.console.commands import Only, Result, command, width
from tunery.cli.console.remote import Server, network_path, say_hosts, server_of, stated, watching
from tunery.domain import JobState
from tunery.domain.request import CompileOptions, Request

if TYPE_CHECKING:
    from tunery.domain import JobStatus
    from tunery.domain.request import BenchReport, CompileReport, TuneReport
    from tunery.service.session import Session

BENCH_S, _LEAST_BENCH_S, _COMPARED = 10.0, 0.5, 0.25
"""How long each rival is timed, at least, and what part of a budget of time all of them may take."""

_ENDED = 0.3
"""What ending a command takes, of what it took to begin."""


@command("tune", "tune resnet18.onnx --budget 10min -o resnet18.tunery --against onnxruntime")
def tune(
    *,
    request: Annotated[Request, options.Tuned],
    engine: options.Engine = "",
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="FILE", help="Also compile the network to this file.")
    ] = "",
    how: Annotated[CompileOptions, Only("force", "onnxruntime", "inputs")],
    against: options.Against = "",
    server: Server = "",
    json: bool = False,
    verbose: bool = False,
) -> Result:
    """Find fast, verified kernels for a model; every measurement is kept, and the same command goes on after a stop."""
    from tunery._settings import choose_engine

    choose_engine(engine)
    rivals = options.parse_rivals(against)
    if rivals and request.more_shapes:
        raise UsageError("--against compares for one shape; leave it out, and then `tunery bench` compares for each")
    if rivals and len(request.dialects) > 1 and not output:
        raise UsageError("--against compares one compiled file; add -o FILE, or name one --dialect")
    request = options.with_inputs(request, how.inputs)
    inputs = {"inputs": str(Path(how.inputs).absolute())} if how.inputs else {}
    request = replace(request, options={"onnxruntime": how.onnxruntime, **inputs})
    if url := server_of(server, request.store):
        if rivals:
            raise UsageError("--against compares on this machine; leave it out, and then `tunery bench --server`")
        if engine:
            raise UsageError("--engine is for this machine, not for a service; leave it out, or leave out --server")
    path = network_path(request, output) if output else None
    if url:
        return _tune_there(url, request, path, server, force=how.force, as_json=json, verbose=verbose)
    options.check_shapes(request)
    return run(request, path, rivals, force=how.force, as_json=json, verbose=verbose)


def _tune_there(
    url: str, request: "Request", output: Path | None, server: str, *, force: bool, as_json: bool, verbose: bool
) -> Result:
    """Tune at a service, and fetch the compiled network; what is advised names the `server` that was given."""
    from tunery.web.client import There, UnfinishedError, connect

    asked_for = _delivering(request, output, force=force)
    with connect(url) as service, watching(service, verbose=verbose, output=output, force=force) as watcher:
        try:
            report = There(service, watcher).tune(asked_for)
        except UnfinishedError as error:
            ended = stated(error.status)
            return ended._replace(exit_code=ended.exit_code or 1)
    compiled = replace(report.compiled, path=str(output)) if report.compiled else None
    return _result(report, request, compiled, None, report.undelivered, server=server, as_json=as_json, verbose=False)


def _delivering(request: "Request", output: Path | None, *, force: bool) -> "Request":
    if output is None:
        return request
    return replace(request, options={**request.options, "output": str(output.absolute()), "force": force})


def run(
    request: "Request",
    output: Path | None,
    rivals: tuple[str, ...],
    *,
    as_json: bool,
    verbose: bool,
    force: bool = False,
    job_id: str = "",
) -> Result:
    """Tune with a live line, and compile if asked for; then compare, and print the result; `job_id` is resumed."""
    from tunery._processor import entered
    from tunery.cli.bench import compared_with
    from tunery.cli.compile import start_ahead
    from tunery.delivery.comparing.compare import predicted_s
    from tunery.reports.data import bench_data
    from tunery.reports.job import COMPARED
    from tunery.service.session import Session

    request = _delivering(request, output, force=force)
    began, bench_s, budget_s = entered(), BENCH_S, request.budget.seconds
    if budget_s is not None:
        bench_s = min(BENCH_S, _COMPARED * budget_s / (1 + len(rivals)))
        reserve_s = _ENDED * (time.monotonic() - began) + (predicted_s(rivals, bench_s) if rivals else 0.0)
        request = replace(request, options={**request.options, "reserve_s": reserve_s})
    start_ahead(*request.dialects)
    hosts = say_hosts()
    with Session(request.store) as session:
        tuned, exit_code = watched(session, request, verbose=verbose, job_id=job_id)
        ended, job, compiled, compared = time.monotonic(), tuned.job, tuned.compiled, None
        failed = job.state is JobState.FAILED or (
            exit_code is None and compiled is None and bool(request.options.get("output"))
        )
        if compiled is not None and output is not None:
            texts = tuple(str(output.with_name(Path(text).name)) for text in compiled.texts)
            compiled = replace(compiled, path=str(output), texts=texts)
        if rivals and exit_code is None and not failed:
            alone = compiled.request_of(request) if compiled else request
            # A file that ONNX Runtime runs would be compared with itself: then it is what the kernels take without it.
            ours = None if compiled and compiled.no_kernels else output
            if budget_s is not None:
                left_s = budget_s - tuned.job.spend.wall_s
                bench_s = min(bench_s, max(left_s / (1 + len(rivals)) - predicted_s((), 0.0), _LEAST_BENCH_S))
            compared = compared_with(session, alone, rivals, bench_s, ours, verbose=verbose)
            compiled, compared = _agreed(compiled, compared)
            told = bench_data(compared)
            session.note(job.job_id, COMPARED, {name: told[name] for name in ("latency_s", "headline", "verdict")})
    tuned = replace(tuned, job=_with_more(tuned.job, time.monotonic() - ended))
    error = None
    if failed and exit_code is None:
        error = tuned.undelivered or error_of(job.problem, job.message)
    result = _result(
        tuned, request, compiled, compared, error, output=output, hosts=hosts, as_json=as_json, verbose=verbose
    )
    return result if exit_code is None else result._replace(exit_code=exit_code)


def _with_more(job: "JobStatus", seconds: float) -> "JobStatus":
    """Return how a job stands where its command went on for some seconds, as to compare."""
    remaining = {name: left - seconds * (name == "seconds") for name, left in job.remaining.items()}
    return replace(job, spend=replace(job.spend, wall_s=job.spend.wall_s + seconds), remaining=remaining)


def _agreed(compiled: "CompileReport | None", compared: "BenchReport") -> "tuple[CompileReport | None, BenchReport]":
    if compiled is None or compared.verdict is None:
        return compiled, compared
    judged = compiled.verdict
    if compiled.no_kernels:
        judged = replace(compared.verdict, onnxruntime_share=1.0)
    elif judged is None or (judged.not_judged and not compared.verdict.not_judged):
        judged = replace(compared.verdict, onnxruntime_share=judged.onnxruntime_share if judged else 0.0)
    return replace(compiled, verdict=judged), replace(compared, verdict=judged)


def watched(
    session: "Session", request: "Request", *, verbose: bool, job_id: str = ""
) -> "tuple[TuneReport, int | None]":
    """Tune with a live line; the second value is the exit code if a signal stopped it."""
    from tunery._processor import entered
    from tunery.cli.console.live import Interrupt, LiveLine
    from tunery.domain.request import Progress

    began, budget_s = entered(), request.budget.seconds
    live_line = LiveLine(verbose=verbose, began=began, budget_s=budget_s)
    with live_line as live, Interrupt(live.close, session.cancel) as interrupt:

        def show(progress: Progress) -> None:
            # From its first own phase on, the job has state worth a clean stop.
            interrupt.begun = interrupt.begun or bool(progress.job_id)
            if not interrupt.event.is_set():
                live.show(progress)

        report = session.tune(request, show, interrupt.event, job_id, began)
    return report, interrupt.exit_code


def _result(
    report: "TuneReport",
    request: "Request",
    compiled: "CompileReport | None",
    compared: "BenchReport | None",
    error: TuneryError | None,
    *,
    server: str = "",
    output: Path | None = None,
    hosts: list[str] | None = None,
    as_json: bool,
    verbose: bool,
) -> Result:
    """Return what a job that has tuned reached, and the `error` that its command ends with after that."""
    from tunery.domain.request import MODEL_CHANGED
    from tunery.reports.data import bench_data, compile_data, tune_data

    def lines() -> Iterator[str]:
        from tunery.cli.compile import left_out_of_tune
        from tunery.reports.text import tune_text

        left_out = left_out_of_tune(report, request) if verbose else []
        yield tune_text(
            report, request, compiled, compared, width(), verbose=verbose, left_out=left_out, server=server,
            output=output,
        )  # fmt: skip
        if compiled and compiled.model_changed and MODEL_CHANGED not in report.job.message:
            yield MODEL_CHANGED
        if error is not None:
            raise error

    data: dict[str, Any] = {
        **tune_data(report),
        **({"compiled": compile_data(compiled)} if compiled else {}),
        **({"bench": bench_data(compared)} if compared else {}),
        **({} if hosts is None else {"hosts": hosts}),
        **({"error": " ".join(str(error).split())} if error else {}),
    }
    return Result(data, lines(), failure.exit_code(error) if error and as_json else 0)
