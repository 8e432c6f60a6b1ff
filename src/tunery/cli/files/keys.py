"""`tunery keys`: the keys that compiled networks are signed with."""

from pathlib import Path
from typing import Annotated

import typer

from tunery.cli.console import options
from tunery.cli.console.output import emit, say

app = typer.Typer(no_args_is_help=False, help="Make keys to sign compiled networks with.")


@app.command("create", epilog="Example: tunery keys create team.key")
def create(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The private key; FILE.pub becomes the public one.")],
    json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001 - read by the error handler
) -> None:
    """Make an ed25519 key pair: the private key signs compiled networks, the public one is for who loads them."""
    from tunery.delivery.files.signing import create_key

    public = create_key(file)
    if json:
        emit({"private": file, "public": public})
    else:
        say(f"private key written to {file}: keep it to yourself, and sign with `tunery compile MODEL --sign FILE`")
        say(f"public key written to {public}: for whoever loads what you sign")
