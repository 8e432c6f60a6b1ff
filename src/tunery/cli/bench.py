"""`tunery bench`: whole networks, beside their rivals."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated

import typer

from tunery._errors import UsageError
from tunery.cli.console import options
from tunery.cli.console.commands import Only, Result, command, remark, width
from tunery.cli.console.remote import Server, answered, server_of
from tunery.domain.request import CompileOptions, Request

if TYPE_CHECKING:
    from tunery.domain.request import BenchReport, Progress
    from tunery.service.session import Session


@command("bench", "bench zoo:mobilenet_v2 --against untuned,onnxruntime")
def bench(
    *,
    request: Annotated[Request, options.Measured],
    how: Annotated[CompileOptions, Only("inputs")],
    against: options.Against = "onnxruntime,untuned",
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.1, max=3600.0, help="How long to measure each of them.")
    ] = 10.0,
    compiled: Annotated[
        str,
        typer.Option("--compiled", metavar="FILE", help="The compiled file of the model to measure, as it is."),
    ] = "",
    server: Server = "",
    verbose: bool = False,
) -> Result:
    """Measure a model as tuned so far against its rivals: interleaved, on the same threads, median and spread.

    Without a compiled file of it, its best records are compiled first.
    """
    from tunery.reports.comparison import bench_text
    from tunery.reports.data import bench_data, bench_report
    from tunery.reports.format import shape_texts

    rivals = options.parse_rivals(against)
    request = replace(options.with_inputs(request, how.inputs), options={"inputs": how.inputs})
    file = Path(compiled) if compiled else None
    if file and not file.is_file():
        raise UsageError(f"there is no file {compiled!r}; write it with `tunery compile`, or leave out --compiled")
    if url := server_of(server, request.store):
        if file:
            raise UsageError("--compiled is a file of this machine; leave it out, or leave out --server")
        asked_for = replace(
            request, kind="bench", options={**request.options, "against": list(rivals), "seconds": seconds}
        )
        reports = [bench_report(answered(url, one, verbose=verbose)) for one in asked_for.each_shape]
    else:
        options.check_shapes(request)
        from tunery.service.session import Session

        with Session(request.store, keep=False) as session:
            reports = [
                compared_with(session, one, rivals, seconds, file, verbose=verbose) for one in request.each_shape
            ]

    def lines() -> Iterator[str]:
        for one, report in zip(request.each_shape, reports, strict=True):
            if len(reports) > 1:
                yield f"\n{', '.join(shape_texts(one))}"
            yield bench_text(report, width())

    data = [bench_data(report) for report in reports]
    return Result(data[0] if len(data) == 1 else {"networks": data}, lines())


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
    ours = "what is compiled from the best records" if compiled is None else str(compiled)
    took = duration(predicted_s((*rivals, *others), seconds))
    beforehand = [f"comparing {ours} with {names}: {first}about {took}"]
    with LiveLine(verbose=verbose, began=entered()) as live:

        def show(progress: "Progress") -> None:
            while beforehand:  # not before the model and the target are known to be meant
                remark(beforehand.pop())
            live.show(progress)

        return session.bench(request, rivals, seconds, compiled, show, others=others)
