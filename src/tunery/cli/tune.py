"""`tunery tune`: the main job."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tunery._errors import TuneryError, UsageError, error_of
from tunery.cli.console import failure, options
from tunery.cli.console.following import report
from tunery.cli.console.output import emit, say, width
from tunery.cli.console.remote import Server, fetched_file, network_path, say_hosts, server_of, watching
from tunery.domain import JobState

if TYPE_CHECKING:
    from tunery.domain.request import BenchReport, CompileReport, Request, TuneReport
    from tunery.service.session import Session

BENCH_S, _COMPARED = 10.0, 0.25
"""How long each rival is timed, and what part of a budget of time all of them may take."""
Output = Annotated[str, typer.Option("-o", "--output", metavar="FILE", help="Also compile the network to this file.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "tune", epilog="Example: tunery tune resnet18.onnx --budget 10min -o resnet18.tunery --against onnxruntime"
    )(tune)


def tune(
    model: options.ModelName,
    *,
    target: options.TargetName = "native",
    on: options.HostName = "",
    budget: options.BudgetText = None,
    latency_target: options.LatencyTarget = "",
    prices: options.PriceSheet = "",
    effort: Annotated[options.Effort, typer.Option("--effort", help="Trials where there is no budget.")] = (
        options.Effort.STANDARD
    ),
    store: options.StoreUrl = "",
    engine: options.Engine = "",
    output: Output = "",
    force: options.Force = False,
    against: options.Against = "",
    onnxruntime: options.OnnxRuntime = options.HandOver.AUTO,
    threads: options.Threads = 0,
    shape: options.Shapes = None,
    seed: options.Seed = 0,
    trust: options.Trust = False,
    dialect: options.DialectName = options.DIALECT,
    server: Server = "",
    json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Find fast, verified kernels for a model; every measurement is kept, and the same command goes on after a stop."""
    from tunery._settings import choose_engine

    choose_engine(engine)
    request = options.make_request(
        model, target=target, on=on, budget=budget, effort=effort, store=store, threads=threads, shapes=shape,
        seed=seed, dialect=dialect, prices=prices, latency_target=latency_target, trust=trust,
    )  # fmt: skip
    rivals = options.parse_rivals(against)
    if rivals and request.more_shapes:
        raise UsageError("--against compares for one shape; leave it out, and then `tunery bench` compares for each")
    if rivals and len(request.dialects) > 1 and not output:
        raise UsageError("--against compares one compiled file; add -o FILE, or name one --dialect")
    request = replace(request, options={"onnxruntime": onnxruntime.value})
    if url := server_of(server, store):
        if rivals:
            raise UsageError("--against compares on this machine; leave it out, and then `tunery bench --server`")
        if engine:
            raise UsageError("--engine is for this machine, not for a service; leave it out, or leave out --server")
        path = fetched_file(request, output, force=force) if output else None
        _tune_there(url, request, path, server, force=force, as_json=json, verbose=verbose)
        return
    path = network_path(request, output) if output else None
    run(request, path, rivals, force=force, as_json=json, verbose=verbose)


def _tune_there(
    url: str, request: "Request", output: Path | None, server: str, *, force: bool, as_json: bool, verbose: bool
) -> None:
    """Tune at a service, and fetch the compiled network; what is advised names the `server` that was given."""
    from tunery.reports.data import tune_report
    from tunery.web.client import connect, fetch, run_there

    with connect(url) as service:
        with watching(service, verbose=verbose, output=output, force=force) as watcher:
            asked_for = replace(request, options={**request.options, "deliver": output is not None})
            status, began = run_there(service, asked_for, watcher)
        if not began or status.state is not JobState.DONE:
            report(status, as_json=as_json)
            raise typer.Exit(1)
        found, compiled, error = tune_report(status, began, service.url), None, None
        if output is not None:
            try:
                compiled, _ = fetch(service, status, began, output)
            except TuneryError as failed:
                error = failed
    if as_json:
        emit({**_data(found, compiled, None), **_told(error)})
    else:
        _print(found, request, compiled, None, server, verbose=False)
    _end_with(error, as_json=as_json)


def run(
    request: "Request",
    output: Path | None,
    rivals: tuple[str, ...],
    *,
    as_json: bool,
    verbose: bool,
    force: bool = False,
    job_id: str = "",
) -> None:
    """Tune with a live line, and compile if asked for; then compare, and print the result; `job_id` is resumed."""
    from tunery.cli.bench import compared_with
    from tunery.cli.compile import start_ahead
    from tunery.delivery.comparing.compare import predicted_s
    from tunery.reports.data import plain
    from tunery.reports.job import COMPARED
    from tunery.service.session import Session

    if output is not None:
        request = replace(request, options={**request.options, "output": str(output.absolute()), "force": force})
    bench_s, budget_s = BENCH_S, request.budget.seconds
    if rivals and budget_s is not None:
        bench_s = min(BENCH_S, _COMPARED * budget_s / (1 + len(rivals)))
        request = replace(request, options={**request.options, "reserve_s": predicted_s(rivals, bench_s)})
    start_ahead(*request.dialects)
    options.check_shapes(request)
    hosts = say_hosts()
    with Session(request.store) as session:
        tuned, exit_code = watched(session, request, verbose=verbose, job_id=job_id)
        job, compiled, compared = tuned.job, tuned.compiled, None
        failed = job.state is JobState.FAILED or (
            exit_code is None and compiled is None and bool(request.options.get("output"))
        )
        if compiled is not None and output is not None:
            texts = tuple(str(output.with_name(Path(text).name)) for text in compiled.texts)
            compiled = replace(compiled, path=str(output), texts=texts)
        if rivals and exit_code is None and not failed:
            alone = compiled.request_of(request) if compiled else request
            compared = compared_with(session, alone, rivals, bench_s, output, verbose=verbose)
            session.note(job.job_id, COMPARED, {"latency_s": plain(compared.latency_s)})
    error = None
    if failed and exit_code is None:
        error = tuned.undelivered or error_of(job.problem, job.message)
    if as_json:
        emit({**_data(tuned, compiled, compared), "hosts": hosts, **_told(error)})
    else:
        _print(tuned, request, compiled, compared, output=output, verbose=verbose)
    if exit_code is not None:
        raise typer.Exit(exit_code)
    _end_with(error, as_json=as_json)


def _told(error: TuneryError | None) -> dict[str, str]:
    return {"error": " ".join(str(error).split())} if error else {}


def _end_with(error: TuneryError | None, *, as_json: bool) -> None:
    """Raise the error that a command ends with after its result; in JSON the result has told it."""
    if error is not None:
        raise typer.Exit(failure.exit_code(error)) if as_json else error


def watched(
    session: "Session", request: "Request", *, verbose: bool, job_id: str = ""
) -> "tuple[TuneReport, int | None]":
    """Tune with a live line; the second value is the exit code if a signal stopped it."""
    from tunery._processor import entered
    from tunery.cli.console.interrupt import Interrupt
    from tunery.cli.console.live import LiveLine
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


def _data(report: "TuneReport", compiled: "CompileReport | None", compared: "BenchReport | None") -> dict[str, Any]:
    from tunery.reports.data import bench_data, compile_data, tune_data

    data = tune_data(report)
    if compiled is not None:
        data["compiled"] = compile_data(compiled)
    if compared is not None:
        data["bench"] = bench_data(compared)
    return data


def _print(
    report: "TuneReport",
    request: "Request",
    compiled: "CompileReport | None",
    compared: "BenchReport | None",
    server: str = "",
    *,
    output: Path | None = None,
    verbose: bool,
) -> None:
    from tunery.cli.console.left_out import of_tune
    from tunery.domain.request import MODEL_CHANGED
    from tunery.reports.text import tune_text

    left_out = of_tune(report, request) if verbose else []
    said = tune_text(
        report, request, compiled, compared, width(), verbose=verbose, left_out=left_out, server=server, output=output
    )
    say(said)
    if compiled and compiled.model_changed and MODEL_CHANGED not in report.job.message:
        say(MODEL_CHANGED)
