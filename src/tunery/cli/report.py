"""`tunery report`: a job as a page."""

from pathlib import Path
from typing import Annotated

import typer

from tunery.cli.console import options
from tunery.cli.console.output import emit, output_path, say
from tunery.cli.console.remote import Server, Socket, own_store, server_of


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("report", epilog="Example: tunery report 3f2a9c01b7de -o report.html")(report)


def report(
    job: Annotated[str, typer.Argument(metavar="JOB", help="A job's id, as `tunery jobs list` shows it.")],
    *,
    output: Annotated[str, typer.Option("-o", "--output", metavar="FILE", help="The page to write.")] = "report.html",
    force: options.Force = False,
    store: options.StoreUrl = "",
    socket: Socket = "",
    server: Server = "",
    json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001 - read by the error handler
) -> None:
    """Write a job's gain over time and spend, its operators and who worked when to one page that needs no network."""
    from tunery._outputs import PAGE, check_output, whole_file

    path = output_path(output, "report.html")
    if url := server_of(server, store, socket):
        from tunery.web.client import connect

        check_output(path, PAGE, inputs=[], force=force)
        with connect(url) as service:
            shown = service.report(job, path)
        if json:
            emit({"page": path, "view": shown})
        else:
            say(f"written to {path}")
        return
    from tunery.reports.job import job_view
    from tunery.reports.page import job_page
    from tunery.store import file_of, open_store

    store = store or own_store(socket)
    kept_in = file_of(store)
    inputs: list[Path] = [kept_in] if kept_in else []
    check_output(path, PAGE, inputs=inputs, force=force)
    with open_store(store, create=False, keep=False) as opened:
        view = job_view(opened, job)
    with whole_file(path, PAGE, inputs=inputs, force=force) as file:
        file.write(job_page(view).encode())
    if json:
        emit({"page": path, "view": view})
        return
    say(f"written to {path}")
