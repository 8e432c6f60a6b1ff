"""`tunery serve`: the daemon."""

from typing import Annotated

import typer

from tunery._errors import UsageError
from tunery.cli.console import options
from tunery.cli.console.daemon import Socket
from tunery.cli.console.output import emit, remark


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("serve", epilog="Example: tunery serve --local")(serve)


def serve(
    *,
    local: Annotated[bool, typer.Option("--local", help="For the user of this machine, on a unix socket.")] = False,
    store: options.StoreUrl = "",
    strategy: Annotated[
        str, typer.Option("--strategy", help="Who goes first: predictive, fair, greedy, synchronous, sequential.")
    ] = "predictive",
    socket: Socket = "",
    json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001 - read by the error handler
) -> None:
    """Run jobs for whoever submits them, until Ctrl-C; unfinished jobs go on with the next start."""
    from tunery.service._wire import socket_path
    from tunery.service.local import serve as serve_jobs

    if not local:
        raise UsageError("only a local daemon exists so far; start it with `tunery serve --local`")
    path = socket_path(socket)

    def ready(jobs: list[str]) -> None:
        if json:
            emit({"socket": path, "resumed": jobs})
        else:
            remark(f"listening at {path}" + (f"; going on with {len(jobs)} jobs" if jobs else ""))

    serve_jobs(store, path, strategy, ready)
