"""`tunery bundle`: a compiled network with all that runs it from C and C++."""

from pathlib import Path
from typing import Annotated

import typer

from tunery.cli.console import options
from tunery.cli.console.output import emit, say


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("bundle", epilog="Example: tunery bundle resnet18.tunery -o resnet18-bundle")(bundle)


def bundle(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A compiled network.")],
    *,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="A new directory to write.")],
    trusted: Annotated[
        list[Path] | None, typer.Option("--trusted", metavar="KEY", help="Check its signature with this public key.")
    ] = None,
    runtime: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Libraries of another kind of machine, or the wheels that hold them."),
    ] = None,
    json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001 - read by the error handler
) -> None:
    """Write a network, its runtime libraries, a C header and an example to a directory that needs no Python."""
    from tunery.delivery.files.bundling import bundle as write

    made = write(file, output, trusted=trusted or None, runtime=runtime)
    size = sum(one.stat().st_size for one in made.rglob("*") if one.is_file())
    if json:
        emit({"directory": made, "size_bytes": size})
        return
    say(f"written to {made} ({size / 1e6:.1f} MB); its README says how to build the example")
