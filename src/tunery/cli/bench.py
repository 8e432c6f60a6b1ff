"""`tunery bench`: whole networks, beside their rivals."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated

import typer

from tunery.cli.console import options
from tunery.cli.console.output import emit, remark, say, width
from tunery.cli.console.remote import Server, answered, server_of

if TYPE_CHECKING:
    from tunery.domain.request import BenchReport, Progress, Request
    from tunery.service.session import Session


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("bench", epilog="Example: tunery bench zoo:mobilenet_v2 --against untuned,onnxruntime")(bench)


def bench(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="An ONNX file, a saved torch program (.pt2), or zoo:NAME.")
    ],
    *,
    against: options.Against = "onnxruntime,untuned",
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.1, max=3600.0, help="How long to measure each of them.")
    ] = 10.0,
    target: options.TargetName = "native",
    on: options.HostName = "",
    store: options.StoreUrl = "",
    threads: options.Threads = 0,
    shape: options.Shapes = None,
    trust: options.Trust = False,
    dialect: options.DialectName = options.DIALECT,
    server: Server = "",
    json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Measure a model as tuned so far against its rivals: interleaved, on the same threads, median and spread."""
    from tunery.reports.comparison import bench_text
    from tunery.reports.data import bench_data, bench_report
    from tunery.reports.format import shape_texts

    request = options.make_request(
        model, target=target, on=on, store=store, threads=threads, shapes=shape, dialect=dialect, trust=trust
    )
    rivals = options.parse_rivals(against)
    if url := server_of(server, store):
        asked_for = replace(request, kind="bench", options={"against": list(rivals), "seconds": seconds})
        reports = [bench_report(answered(url, one, verbose=verbose)) for one in asked_for.each_shape]
    else:
        from tunery.service.session import Session

        with Session(request.store, keep=False) as session:
            reports = [
                compared_with(session, one, rivals, seconds, None, verbose=verbose) for one in request.each_shape
            ]
    if json:
        data = [bench_data(report) for report in reports]
        emit(data[0] if len(data) == 1 else {"networks": data})
        return
    for one, report in zip(request.each_shape, reports, strict=True):
        if len(reports) > 1:
            say(f"\n{', '.join(shape_texts(one))}")
        say(bench_text(report, width()))


def compared_with(
    session: "Session",
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
    from tunery._processor import entered
    from tunery.cli.console.live import LiveLine
    from tunery.delivery.comparing.compare import predicted_s
    from tunery.domain.request import CONTESTANTS
    from tunery.reports.format import duration

    names = " and ".join(CONTESTANTS[rival] for rival in (*rivals, *others)) or "nobody"
    first = "compiling first, then " if compiled is None or "untuned" in rivals else ""
    beforehand = [f"comparing with {names}: {first}about {duration(predicted_s((*rivals, *others), seconds))}"]
    with LiveLine(verbose=verbose, began=entered()) as live:

        def show(progress: "Progress") -> None:
            while beforehand:  # not before the model and the target are known to be meant
                remark(beforehand.pop())
            live.show(progress)

        return session.bench(request, rivals, seconds, compiled, show, others=others)
