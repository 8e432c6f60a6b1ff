"""`tunery bench`: whole networks, beside their rivals."""

from typing import Annotated

import typer

from tunery.cli import _options as options
from tunery.cli._output import emit, say


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("bench", epilog="Example: tunery bench zoo:mobilenet_v2 --against untuned,onnxruntime")(bench)


def bench(
    model: options.ModelName,
    *,
    against: options.Against = "onnxruntime,untuned",
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.1, max=3600.0, help="How long to measure each of them.")
    ] = 10.0,
    target: options.TargetName = "native",
    store: options.StoreUrl = "",
    threads: options.Threads = 0,
    shape: options.Shapes = None,
    dialect: options.DialectName = options.DIALECT,
    json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001 - read by the error handler
) -> None:
    """Measure a model as tuned so far against its rivals: interleaved, on the same threads, median and spread."""
    from tunery._report import bench_data, bench_text

    request = options.make_request(model, target=target, store=store, threads=threads, shapes=shape, dialect=dialect)
    rivals = options.parse_rivals(against)
    from tunery.jobs.session import bench as bench_model

    report = bench_model(request, rivals, seconds)
    if json:
        emit(bench_data(report))
    else:
        say(bench_text(report))
