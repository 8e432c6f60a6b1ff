"""`tunery bench`: whole networks, beside their rivals."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated

import typer

from tunery._errors import UsageError
from tunery.cli import _options as options
from tunery.cli._output import check_output, emit, remark, say, width
from tunery.domain import Budget

if TYPE_CHECKING:
    from tunery.domain.request import BenchReport, Progress, Request


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("bench", epilog="Example: tunery bench zoo:mobilenet_v2 --against untuned,onnxruntime")(bench)


def bench(
    context: typer.Context,
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="An ONNX file, a saved torch program (.pt2), or zoo:NAME.")
    ] = "",
    *,
    suite: Annotated[str, typer.Option("--suite", help="Networks of the zoo instead of a model: cpu.")] = "",
    budget: options.BudgetText = None,
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="FILE", help="A suite's results; what it holds is not run again.")
    ] = "",
    against: options.Against = "onnxruntime,untuned",
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.1, max=3600.0, help="How long to measure each of them.")
    ] = 10.0,
    target: options.TargetName = "native",
    store: options.StoreUrl = "",
    threads: Annotated[
        str, typer.Option("--threads", help="Threads of a kernel; 0: all usable cores. A suite takes several: 1,2.")
    ] = "",
    shape: options.Shapes = None,
    dialect: options.DialectName = options.DIALECT,
    json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Measure a model as tuned so far against its rivals: interleaved, on the same threads, median and spread.

    With --suite, tune (--budget for each) and measure many networks, also against torch where it is installed, and
    against stock MetaSchedule where `tunery study stock` has finished a network.
    """
    counts = thread_counts(threads)
    if bool(model) == bool(suite):
        raise UsageError("name a model, or a suite with --suite cpu")
    if suite:
        given = context.get_parameter_source("against")
        if shape or (given is not None and given.name != "DEFAULT"):
            raise UsageError("--against and --shape belong to a model; a suite has its own rivals and shapes")
        request = options.make_request(
            "", target=target, store=store, threads=0, shapes=None, dialect=dialect, budget=budget
        )
        _suite(suite, request, counts, seconds, output, as_json=json, verbose=verbose)
        return
    from tunery.reports.comparison import bench_text
    from tunery.reports.text import bench_data

    if budget or output or len(counts) > 1:
        raise UsageError("--budget, -o and several thread counts belong to --suite; tune the model with `tunery tune`")
    request = options.make_request(
        model, target=target, store=store, threads=(counts or (0,))[0], shapes=shape, dialect=dialect
    )
    report = compared_with(request, options.parse_rivals(against), seconds, None, verbose=verbose)
    if json:
        emit(bench_data(report))
    else:
        say(bench_text(report, width()))


def compared_with(
    request: "Request",
    rivals: tuple[str, ...],
    seconds: float,
    compiled: Path | None,
    *,
    verbose: bool,
    others: Mapping[str, Path] = MappingProxyType({}),
) -> "BenchReport":
    """Compare whole networks with a live line, after saying how long it takes.

    `compiled` is the file to time, `others` further ones by the contestant's name.
    """
    from tunery.cli._live import LiveLine
    from tunery.delivery.compare import predicted_s
    from tunery.domain.request import CONTESTANTS
    from tunery.reports.text import duration
    from tunery.service.session import bench as bench_model

    names = " and ".join(CONTESTANTS[rival] for rival in (*rivals, *others)) or "nobody"
    first = "compiling first, then " if compiled is None or "untuned" in rivals else ""
    beforehand = [f"comparing with {names}: {first}about {duration(predicted_s((*rivals, *others), seconds))}"]
    with LiveLine(verbose=verbose) as live:

        def show(progress: "Progress") -> None:
            while beforehand:  # not before the model and the target are known to be meant
                remark(beforehand.pop())
            live.show(progress)

        return bench_model(request, rivals, seconds, compiled, show, others=others)


def thread_counts(text: str) -> tuple[int, ...]:
    """Read thread counts such as `1,2`; "" gives none.

    Raises:
        UsageError: one is not a whole number.
    """
    try:
        counts = tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        counts = (-1,)
    if any(count < 0 for count in counts):
        raise UsageError(f"--threads {text!r} is not a number of threads; write for example 2, or 1,2 for a suite")
    return counts


def _suite(
    name: str, request: "Request", counts: tuple[int, ...], seconds: float, output: str, *, as_json: bool, verbose: bool
) -> None:
    from tunery.cli.tune import watched
    from tunery.runtime.opening import thread_count
    from tunery.studies.stock import finished
    from tunery.studies.suite import SuitePlan, networks_of, run_suite
    from tunery.studies.suite_text import suite_text

    file = Path(check_output(output or f"bench-{name}.json", f"bench-{name}.json"))
    resolved = tuple(dict.fromkeys(thread_count(count) for count in counts or (0,)))
    plan = SuitePlan(networks_of(name), resolved, seconds, file)
    stopped: list[int] = []

    def tune(one: "Request") -> bool:
        _, exit_code = watched(one, verbose=verbose)
        stopped.extend([] if exit_code is None else [exit_code])
        return exit_code is None

    def stock(one: "Request") -> Path | None:
        return finished(one.model, one.threads)

    def timed(one: "Request", against: Sequence[str], seconds: float, others: Mapping[str, Path]) -> "BenchReport":
        return compared_with(one, tuple(against), seconds, None, verbose=verbose, others=others)

    chosen = tune if request.budget != Budget() else None
    results = run_suite(plan, request, chosen, remark, timed=timed, stock=stock)
    if as_json:
        emit(results)
    else:
        say(f"{suite_text(results)}\nwritten to {file}")
    if stopped:
        raise typer.Exit(stopped[0])
    if any("error" in run for run in results["runs"].values()):
        raise typer.Exit(1)
