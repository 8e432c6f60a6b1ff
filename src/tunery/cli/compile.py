"""`tunery compile`: a loadable file from the best verified records."""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from json import dumps
from typing import TYPE_CHECKING, Annotated

import typer

from tunery._errors import UsageError
from tunery.cli.console import options
from tunery.cli.console.output import emit, say, width
from tunery.cli.console.remote import Server, fetched_file, network_path, say_hosts, server_of, watching

if TYPE_CHECKING:
    from rich.table import Table

    from tunery.domain import Network
    from tunery.domain.request import CompileReport, Request


class Ready(StrEnum):
    """What a compilation may do before it builds."""

    RECORDS = "records"
    QUICK = "quick"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("compile", epilog="Example: tunery compile resnet18.onnx -o resnet18.tunery")(compile_)


def compile_(
    model: options.ModelName,
    *,
    output: Annotated[str, typer.Option("-o", "--output", metavar="FILE", help="Where to write the network.")],
    force: options.Force = False,
    sign: Annotated[str, typer.Option("--sign", metavar="KEY", help="Sign it with this private key.")] = "",
    effort: Annotated[
        Ready,
        typer.Option(
            "--effort", help="What was not measured is predicted (quick), or the compiler's default (records)."
        ),
    ] = Ready.QUICK,
    few_shot: options.FewShot = 0,
    few_shot_budget: options.FewShotBudget = None,
    target: Annotated[
        list[str],
        typer.Option("--target", help="What to generate code for: native, a name, or JSON; repeat it for several."),
    ] = ["native"],  # noqa: B006 - typer copies it
    on: options.HostName = "",
    store: options.StoreUrl = "",
    threads: options.Threads = 0,
    shape: options.Shapes = None,
    any_shape: Annotated[
        bool, typer.Option("--any-shape", help="Let ONNX Runtime run other shapes: the file holds the model too.")
    ] = False,
    onnxruntime: options.OnnxRuntime = options.HandOver.AUTO,
    trust: options.Trust = False,
    dialect: options.DialectName = options.DIALECT,
    server: Server = "",
    json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Build a model to one file: from the best verified records, and from predictions for what was not measured."""
    if few_shot and effort is Ready.RECORDS:
        raise UsageError("--effort records takes only what was measured before; leave it out to use --few-shot")
    request = options.make_request(
        model, target=target[0], on=on, store=store, threads=threads, shapes=shape, dialect=dialect, trust=trust
    )
    from tunery.domain.request import CompileOptions
    from tunery.reports.data import compile_data

    fill = options.fill_options(few_shot, few_shot_budget, predict=effort is Ready.QUICK)
    told = CompileOptions(
        **fill, force=force, sign=sign, any_shape=any_shape, onnxruntime=onnxruntime.value, targets=tuple(target[1:])
    )  # fmt: skip
    hosts: dict[str, list[str]] = {}
    if url := server_of(server, store):
        if told.targets:
            raise UsageError(
                "a service compiles for one target; fetch a file of each, and put them together with `tunery combine`"
            )
        if sign:
            raise UsageError("--sign needs the key here; fetch the file first, and sign on a machine of your own")
        from tunery.web.client import compile_there, connect

        path = fetched_file(request, output, force=force)
        with connect(url) as service, watching(service, verbose=verbose, output=path, force=force) as watcher:
            report, network = compile_there(service, replace(request, options=told.for_service()), path, watcher)
    else:
        from tunery._processor import entered
        from tunery.cli.console.live import LiveLine
        from tunery.service.session import compile_model

        start_ahead(*request.dialects)
        options.check_shapes(request)
        path, hosts = network_path(request, output), {"hosts": say_hosts()}
        with LiveLine(verbose=verbose, began=entered()) as live:
            report, network = compile_model(request, path, told, lambda text: live.say(text, phase=text))
    if json:
        emit({**compile_data(report), **hosts})
        return
    _print(report, network, request, predicted=told.policy is not None, verbose=verbose and not url)


def _print(report: "CompileReport", network: "Network", request: "Request", *, predicted: bool, verbose: bool) -> None:
    from tunery.cli.console.left_out import of_compile
    from tunery.domain.request import MODEL_CHANGED
    from tunery.reports.comparison import batch_lines
    from tunery.reports.format import as_text
    from tunery.reports.text import call, dialect_lines, elsewhere_lines, headlines, target_lines

    for line in headlines(report):
        say(line)
    if report.coverage:
        say(as_text(_table(report), width()))
    lines = [
        *(_sources(report, predicted=predicted) if report.coverage else ()),
        *batch_lines(network.batch_of_one),
        *dialect_lines(report),
        *elsewhere_lines(report.elsewhere),
        *(of_compile(report, request) if verbose else ()),
    ]
    for line in lines:
        say(line)
    if report.max_abs_error is not None:
        say(f"largest deviation from ONNX Runtime's outputs: {report.max_abs_error:.3g}")
    if report.model_changed:
        say(MODEL_CHANGED)
    if report.texts:
        say(f"source, header and parameters: {', '.join(report.texts)}")
    if len(report.targets) > 1:
        say(f"for {len(report.targets)} targets, of which the best is loaded: {', '.join(report.targets)}")
    for line in target_lines(report):
        say(line)
    there = f" on {request.on}" if request.on else ""
    say(f"written to {report.path} ({report.size_bytes / 1e6:.1f} MB); run it{there} with")
    say(f"  import tunery\n  network = tunery.load_compiled({dumps(str(report.path), ensure_ascii=False)})")
    say(f"  outputs = {call(network)}")


def _sources(report: "CompileReport", *, predicted: bool) -> Iterator[str]:
    """Yield lines about where the tasks' candidates come from."""
    from tunery.reports.text import equal_device_lines

    guessed = sum(rung == "zero-shot" for rung, _ in report.coverage.values())
    borrowed = Counter(
        source for task, source in report.sources.items() if report.coverage[task][0] == "compatible-device"
    )
    covered = sum(key is not None for _, key in report.coverage.values()) - guessed - sum(borrowed.values())
    fresh = f"; {report.measured} candidates were measured for it now" if report.measured else ""
    yield f"{report.network}: {covered} of {len(report.coverage)} tasks use a verified record{fresh}"
    if not predicted and report.untuned:
        yield f"{report.untuned} of them all run untuned, which is slow: without --effort records they are predicted"
    yield from equal_device_lines((rung, report.sources.get(task, "")) for task, (rung, _) in report.coverage.items())
    for source, count in borrowed.items():
        yield f"{count} use what was measured on {source}, verified here: `tunery tune` times it here"
    if guessed:
        yield f"{guessed} use a predicted schedule, verified and not measured: `tunery tune` finds faster ones"
    for why in dict.fromkeys(report.refused.values()):
        said = [task for task, reason in report.refused.items() if reason == why]
        names = said[0] if len(said) == 1 else f"{len(said)} tasks"
        yield f"{names} {'runs' if len(said) == 1 else 'run'} as the compiler makes it: {why}"


def _table(report: "CompileReport") -> "Table":
    from tunery.reports.format import new_table
    from tunery.reports.text import said_source

    table = new_table("task", "workload", "from", "candidate")
    for task, (rung, key) in report.coverage.items():
        name, _, workload = task.rpartition(":")
        table.add_row(name, workload, said_source(rung, report.sources.get(task, "")), key or "-")
    return table


def start_ahead(dialect: str, *more: str) -> None:
    """Have what workers are forked from import the compiler while this process still imports itself."""
    from tunery.engines.local import ahead
    from tunery.runtime import preparer_environment, worker_environment

    environments = [preparer_environment()]
    with suppress(*([UsageError] if more else [])):  # of several, one may be missing
        environments.insert(0, worker_environment(dialect))
    for environment in environments:
        ahead.start(environment)
