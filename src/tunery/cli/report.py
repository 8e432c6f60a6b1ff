"""`tunery report`: a job as a page."""

from pathlib import Path
from typing import Annotated

import typer

from tunery.cli.console import options
from tunery.cli.console.commands import Result, command
from tunery.cli.console.output import output_path
from tunery.cli.console.remote import Server, Socket, own_store, server_of


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
    from tunery._outputs import PAGE, check_output, whole_file

    path = output_path(output, "report.html")
    if url := server_of(server, store, socket):
        from tunery.web.client import connect

        check_output(path, PAGE, inputs=[], force=force)
        with connect(url) as service:
            return Result({"page": path, "view": service.report(job, path)}, [f"written to {path}"])
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
    return Result({"page": path, "view": view}, [f"written to {path}"])
