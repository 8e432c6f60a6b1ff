"""`tunery zoo`: networks that come with tunery."""

import typer

from tunery.cli import _options as options
from tunery.cli._output import emit, say, width

app = typer.Typer(help="Networks that come with tunery.", no_args_is_help=False)


@app.command("list", epilog="Example: tunery zoo list")
def list_(
    json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001 - read by the error handler
) -> None:
    """List the zoo's networks; use one as zoo:NAME, or zoo:NAME@8 with a batch of 8."""
    from tunery._report import as_text, new_table
    from tunery.frontends import zoo

    found = zoo.names()
    if json:
        emit({"networks": found})
        return
    table = new_table("name", "kind", "#parameters")
    for entry in found:
        table.add_row(entry.name, entry.kind, f"{entry.parameters / 1e6:.1f}M")
    say(as_text(table, width()))
