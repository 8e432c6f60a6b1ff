"""Printing: JSON or text on stdout, remarks on stderr."""

import json
import os
import sys
from contextlib import suppress
from pathlib import Path

import typer

from tunery._errors import UsageError
from tunery.reports.format import printable


def emit(data: object) -> None:
    """Print one JSON document; numbers that JSON does not know are null."""
    from tunery.reports.data import plain

    typer.echo(json.dumps(plain(data), indent=2, allow_nan=False))


def say(text: str) -> None:
    """Print text; a character the terminal cannot show is replaced, one that it would obey is escaped."""
    encoding = sys.stdout.encoding or "utf-8"
    typer.echo(printable(text).encode(encoding, "replace").decode(encoding))


def remark(text: str) -> None:
    """Print a remark on the way to the result, on stderr, as `say` does."""
    encoding = sys.stderr.encoding or "utf-8"
    typer.echo(printable(text).encode(encoding, "replace").decode(encoding), err=True)


def width() -> int | None:
    """Return the terminal's width for tables; None where the output goes to a file, which is as wide as need be."""
    try:
        return max(os.get_terminal_size(sys.stdout.fileno()).columns, 60)
    except (OSError, ValueError):
        return None


def output_path(text: str, name: str = "") -> Path:
    """Return the file that an option or argument names: in a directory, `name`.

    Raises:
        UsageError: it ends as a directory does, and there is none.
    """
    path, is_directory = Path(text), False
    with suppress(OSError):  # a name that is too long is refused where the file is checked
        is_directory = path.is_dir()
    if text.endswith(os.sep) and not is_directory:
        raise UsageError(f"there is no directory {text!r}; make it first, or name a file")
    return path / name if name and is_directory else path
