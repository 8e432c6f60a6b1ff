"""`tunery version`: which versions run."""

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed

import typer

from tunery.cli import _options as options
from tunery.cli._output import emit, say

_PACKAGES = ("tunery", "apache-tvm", "apache-tvm-ffi", "onnx", "onnxruntime", "numpy", "lightgbm")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("version", epilog="Example: tunery version")(version)


def version(
    json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001 - read by the error handler
) -> None:
    """Show the versions of tunery, its compiler and Python."""
    found: dict[str, str | None] = {name: _installed(name) for name in _PACKAGES}
    found["python"] = platform.python_version()
    if json:
        emit(found)
    else:
        for name, value in found.items():
            say(f"{name} {value or '(not installed)'}")


def _installed(name: str) -> str | None:
    try:
        return installed(name)
    except PackageNotFoundError:
        return None
