"""Printing: JSON or text on stdout, remarks on stderr."""

import json
import os
import sys

import typer

from tunery._errors import UsageError


def emit(data: object) -> None:
    """Print one JSON document; numbers that JSON does not know are null."""
    from tunery.reports.data import plain

    typer.echo(json.dumps(plain(data), indent=2, allow_nan=False))


def say(text: str) -> None:
    """Print text; a character the terminal cannot show is replaced."""
    encoding = sys.stdout.encoding or "utf-8"
    typer.echo(text.encode(encoding, "replace").decode(encoding))


def remark(text: str) -> None:
    """Print a remark on the way to the result, on stderr."""
    typer.echo(text, err=True)


def width() -> int | None:
    """Return the terminal's width for tables; None where the output goes to a file, which is as wide as need be."""
    try:
        return max(os.get_terminal_size(sys.stdout.fileno()).columns, 60)
    except (OSError, ValueError):
        return None


def check_output(text: str, default_name: str) -> str:
    """Return the file to write for `-o`: in a directory it is `default_name`.

    Raises:
        UsageError: the directory is not there or cannot be written, or `text` names a device or a pipe.
    """
    from pathlib import Path

    path = Path(text)
    try:
        path = path / default_name if path.is_dir() else path
        parent = path.parent
        if not parent.is_dir():
            raise UsageError(f"there is no directory {str(parent)!r}; create it, or choose another place with -o")
        if path.exists() and not path.is_file():  # it would be replaced by a file
            raise UsageError(f"{str(path)!r} is not a file; choose another place with -o")
        # A new file takes the old one's place, so the directory counts, too.
        if not os.access(parent, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
            raise UsageError(f"{str(path)!r} cannot be written; choose another place with -o")
    except OSError as error:
        raise UsageError(f"{text!r} cannot be written ({error.strerror}); choose another place with -o") from error
    return str(path)
