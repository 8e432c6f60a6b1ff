"""`tunery agent`: run this host's workers for a tunery on another host."""

from typing import Annotated

import typer

from tunery.cli.console import options


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("agent", epilog="Example: tunery agent --stdio")(agent)


def agent(
    stdio: Annotated[bool, typer.Option("--stdio", help="Talk over the standard input and output.")] = False,
    verbose: options.Verbose = False,  # noqa: ARG001 - read by the error handler
) -> None:
    """Run this host's workers for a tunery on another host, which starts this command: see `tunery hosts add`."""
    from tunery._errors import UsageError
    from tunery._settings import cache_directory
    from tunery.engines.remote.agent import serve_stdio

    if not stdio:
        raise UsageError("an agent talks over its standard input and output only: write `tunery agent --stdio`")
    raise typer.Exit(serve_stdio(cache_directory()))
