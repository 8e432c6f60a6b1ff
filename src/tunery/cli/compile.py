"""`tunery compile`: a loadable file from the best verified records."""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from json import dumps
from typing import TYPE_CHECKING, Annotated

import typer

from tunery._errors import UsageError
from tunery.cli.console import options
from tunery.cli.console.commands import Only, Result, command, width
from tunery.cli.console.remote import Server, network_path, say_hosts, server_of, watching
from tunery.domain.request import CompileOptions, Request

if TYPE_CHECKING:
    from rich.table import Table

    from tunery.domain import Network, Record
    from tunery.domain.request import CompileReport, TuneReport


class Ready(StrEnum):
    """What a compilation may do before it builds."""

    RECORDS = "records"
    QUICK = "quick"


@command("compile", "compile resnet18.onnx -o resnet18.tunery")
def compile_(
    *,
    request: Annotated[Request, Only("model", "on", "store", "threads", "shapes", "trust", "dialect")],
    output: Annotated[str, typer.Option("-o", "--output", metavar="FILE", help="Where to write the network.")],
    effort: Annotated[
        Ready,
        typer.Option(
            "--effort", help="What was not measured is predicted (quick), or the compiler's default (records)."
        ),
    ] = Ready.QUICK,
    target: Annotated[
        list[str],
        typer.Option("--target", help="What to generate code for: native, a name, or JSON; repeat it for several."),
    ] = ["native"],  # noqa: B006 - typer copies it
    how: Annotated[CompileOptions, Only(but=("predict",))],
    server: Server = "",
    verbose: bool = False,
) -> Result:
    """Build a model to one file: from the best verified records, and from predictions for what was not measured."""
    if how.few_shot and effort is Ready.RECORDS:
        raise UsageError("--effort records takes only what was measured before; leave it out to use --few-shot")
    request = options.with_inputs(replace(request, target=target[0]), how.inputs)
    from tunery.reports.data import compile_data

    told = replace(how, predict=effort is Ready.QUICK, targets=tuple(target[1:]))
    hosts: dict[str, list[str]] = {}
    if url := server_of(server, request.store):
        from tunery.web.client import There, connect

        path = network_path(request, output)
        with connect(url) as service, watching(service, verbose=verbose, output=path, force=told.force) as watcher:
            report, network = There(service, watcher).compile(request, path, told)
    else:
        options.check_shapes(request)
        start_ahead(*request.dialects)
        from tunery._processor import entered
        from tunery.cli.console.live import LiveLine
        from tunery.service.session import compile_model

        path, hosts = network_path(request, output), {"hosts": say_hosts()}
        with LiveLine(verbose=verbose, began=entered()) as live:
            report, network = compile_model(request, path, told, lambda text: live.say(text, phase=text))
    lines = _lines(report, network, request, predicted=told.policy is not None, verbose=verbose and not url)
    return Result({**compile_data(report), **hosts}, lines)


def _lines(
    report: "CompileReport", network: "Network", request: Request, *, predicted: bool, verbose: bool
) -> Iterator[str]:
    from tunery.domain.request import MODEL_CHANGED
    from tunery.reports import text
    from tunery.reports.comparison import batch_lines
    from tunery.reports.format import as_text

    yield from text.headlines(report)
    if report.coverage:
        yield as_text(_table(report), width())
        yield from _sources(report, predicted=predicted)
    yield from text.refused_lines(report)
    yield from batch_lines(network.batch_of_one)
    yield from text.dialect_lines(report)
    yield from text.elsewhere_lines(report.elsewhere)
    yield from text.value_lines(report)
    yield from _left_out(report, request) if verbose else text.failed_rules(report)
    if report.max_abs_error is not None:
        yield f"largest deviation from ONNX Runtime's outputs: {report.max_abs_error:.3g}"
    if report.model_changed:
        yield MODEL_CHANGED
    if report.texts:
        yield f"source, header and parameters: {', '.join(report.texts)}"
    if len(report.targets) > 1:
        yield f"for {len(report.targets)} targets, of which the best is loaded: {', '.join(report.targets)}"
    yield from text.target_lines(report)
    there = f" on {request.on}" if request.on else ""
    yield f"written to {report.path} ({report.size_bytes / 1e6:.1f} MB); run it{there} with"
    yield f"  import tunery\n  network = tunery.load_compiled({dumps(str(report.path), ensure_ascii=False)})"
    yield f"  outputs = {text.call(network)}"


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
    from tunery.engines.local import nursery
    from tunery.runtime import preparer_environment, worker_environment

    environments = [preparer_environment()]
    with suppress(*([UsageError] if more else [])):  # of several, one may be missing
        environments.insert(0, worker_environment(dialect))
    for environment in environments:
        nursery.start(environment)


def left_out_of_tune(report: "TuneReport", request: "Request") -> list[str]:
    """Return a line per task of the job and reason."""
    from tunery.dialects import get_dialect
    from tunery.store import open_store

    compilers = {name: get_dialect(name).compiler for name in {task.target.dialect for task in report.tasks}}
    with open_store(request.store, create=False, keep=False) as store:
        found = {
            task.workload.label: _reasons(store.records(task.key, compiler=compilers[task.target.dialect]))
            for task in report.tasks
        }
    from tunery.reports.text import left_out_lines

    return left_out_lines(found)


def _left_out(report: "CompileReport", request: "Request") -> list[str]:
    """Return a line per task and reason; of one that uses a record, also what other searches of it did without."""
    from tunery.dialects import get_dialect
    from tunery.store import open_store

    compiler = get_dialect(report.dialect or request.dialect).compiler
    found = dict(report.left_out)
    with open_store(request.store, create=False, keep=False) as store:
        for share in report.tasks:
            label = f"{share.name}:{share.workload[:8]}"
            _, used = report.coverage.get(label, ("", None))
            for task in store.tasks(workload_key=share.workload) if used else ():
                records = store.records(task.key, compiler=compiler)
                if any(record.candidate.key == used for record in records):  # else it is of another target
                    found[label] = {**_reasons(records), **found.get(label, {})}
    from tunery.reports.text import left_out_lines

    return left_out_lines(found)


def _reasons(records: "Iterable[Record]") -> dict[str, str]:
    return {name: why for record in records for name, why in record.left_out.items()}
