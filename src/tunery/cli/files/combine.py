"""`tunery combine`: one compiled file for several processors."""

from pathlib import Path
from typing import Annotated

import typer

from tunery.cli.console import options
from tunery.cli.console.output import emit, say


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("combine", epilog="Example: tunery combine old.tunery new.tunery -o resnet18.tunery")(combine)


def combine(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Compiled networks, for different processors.")
    ],
    *,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Where to write the network.")],
    force: options.Force = False,
    sign: Annotated[str, typer.Option("--sign", metavar="KEY", help="Sign it with this private key.")] = "",
    trusted: Annotated[
        list[Path] | None, typer.Option("--trusted", metavar="KEY", help="Check their signatures with this public key.")
    ] = None,
    json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001 - read by the error handler
) -> None:
    """Put files of one network for different processors into one, of which the best is loaded."""
    from tunery.delivery.files.combining import combine as write

    made = write(files, output, trusted=trusted or None, force=force, sign=sign or None)
    size = made.stat().st_size
    if json:
        emit({"path": made, "size_bytes": size})
        return
    say(f"written to {made} ({size / 1e6:.1f} MB); `tunery inspect` lists its targets")
