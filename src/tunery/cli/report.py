"""`tunery report`: a job as a page; `tunery spend`: what jobs have cost, by stage, by task and by outcome."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tunery.cli.console import options
from tunery.cli.console.commands import Result, command, output_path, width
from tunery.cli.console.remote import Server, Socket, source

if TYPE_CHECKING:
    from tunery.reports.spending import Row


@command("report", "report 3f2a9c01b7de -o report.html")
def report(
    job: Annotated[str, typer.Argument(metavar="JOB", help="A job's id, as `tunery jobs list` shows it.")],
    *,
    output: Annotated[str, typer.Option("-o", "--output", metavar="FILE", help="The page to write.")] = "report.html",
    force: options.Force = False,
    store: options.StoreUrl = "",
    socket: Socket = "",
    server: Server = "",
) -> Result:
    """Write a job's gain over time and spend, its operators and who worked when to one page that needs no network."""
    from tunery._outputs import PAGE, check_output

    path = output_path(output, "report.html")
    with source(server, store, socket) as known:
        check_output(path, PAGE, inputs=known.files, force=force)
        view = known.report(job, path)
    return Result({"page": path, "view": view}, [f"written to {path}"])


@command("spend", "spend 3f2a9c01b7de --chart spend.png")
def spend(
    job: Annotated[str, typer.Argument(metavar="[JOB]", help="A job's id; without one, all jobs together.")] = "",
    *,
    prices: Annotated[
        str, typer.Option("--prices", metavar="FILE", help="What the machine costs: a price sheet.")
    ] = "",
    chart: Annotated[
        str, typer.Option("--chart", metavar="FILE", help="Also draw it to this PNG, SVG or PDF file.")
    ] = "",
    force: options.Force = False,
    store: options.StoreUrl = "",
    server: Server = "",
    verbose: bool = False,
) -> Result:
    """Show where a job's time, energy and money went, or all jobs', and what went into candidates that did not help.

    Money is what was charged then; with --prices, what it would cost by that sheet.
    """
    from tunery._outputs import CHART, check_output
    from tunery.reports.spending import VIEWS, draw

    file = output_path(chart, "spend.png") if chart else None
    with source(server, store) as known:
        inputs = [*known.files, *([Path(prices)] if prices else [])]
        if file:
            check_output(file, CHART, inputs=inputs, force=force)
        found = known.spend(job, prices)
    views = {title: found[title] for title in VIEWS}
    if file:
        draw({VIEWS[title]: rows for title, rows in views.items()}, found["did_not_help"], file, inputs=inputs,
             force=force)  # fmt: skip
    nothing = ["nothing was spent yet"]
    if not verbose:
        views = {**views, "hosts": []}
    return Result(found, _lines(views, [found["total"]], found["did_not_help"]) if found["total"] else nothing)


def _lines(views: "dict[str, list[Row]]", total: "list[Row]", wasted: list[dict[str, Any]]) -> Iterator[str]:
    from tunery.reports.format import as_text, duration, energy, money, new_table
    from tunery.reports.spending import SHARED, VIEWS, bar

    for title, rows in {**views, "in all": total}.items():
        if len(rows) < 2 and title in views:
            continue  # it would say what the total says
        heading = f"by {VIEWS[title]}" if title in views else title
        what = "#candidates" if title == "outcomes" else "#runs"
        table = new_table(heading, what, "#worker time", "#core time", "#device time", "#energy", "#money", "")
        most = max(row["core_s"] for row in rows) or 1.0
        for row in rows:
            times = (duration(row[name]) for name in ("worker_s", "core_s", "device_s"))
            joules = "-" if row["joules"] is None else energy(row["joules"])
            paid = " + ".join(money(amount, currency) for currency, amount in row["money"].items()) or "-"
            count = "" if row["name"] == SHARED else str(row["count"])
            table.add_row(row["name"], count, *times, joules, paid, bar(row["core_s"] / most))
        yield as_text(table, width()) + "\n"
    yield f"{SHARED}: import, proposals, untuned kernels, the best again, learning, workers' starts\n"
    if total[0]["modelled"]:
        yield "energy is modelled from core time: this machine has no counter that tunery may read\n"
    if wasted:
        table = new_table("on candidates that did not help", "#runs", "#worker time", "#core time", "#energy", "")
        for row in wasted:
            shares = (f"{row[name]:.0%}" for name in ("count_share", "worker_share", "core_share", "energy_share"))
            name = "these three" if row["stage"] == "all" else row["stage"]
            table.add_row(name, *shares, bar(row["core_share"]))
        yield as_text(table, width())
