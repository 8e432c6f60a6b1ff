"""`tunery doctor`: is this machine ready? `tunery version`: which versions run."""

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from typing import TYPE_CHECKING, NoReturn

import typer

from tunery.cli.console import options
from tunery.cli.console.output import emit, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tunery.domain import Check

_LIBRARIES = ("onnx", "onnxruntime", "numpy", "lightgbm")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("version", epilog="Example: tunery version")(version)
    app.command("doctor", epilog="Example: tunery doctor")(doctor)


def doctor(
    store: options.StoreUrl = "",
    json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001 - read by the error handler
) -> None:
    """Check this machine: each line says ok, absent, warn or fail, and what to do."""
    from tunery.cli.console.checks import all_checks

    tell_checks(list(all_checks(store)), as_json=json)


def tell_checks(found: "Sequence[Check]", *, as_json: bool) -> NoReturn:
    """Print what checks have found, and end with exit code 1 if one failed."""
    from tunery.domain import CheckState

    failed = any(check.state is CheckState.FAIL for check in found)
    if as_json:
        emit({"ok": not failed, "checks": found})
    else:
        for check in found:
            say(f"{check.state.value:<6} {check.name:<9} {check.found}{'; ' + check.advice if check.advice else ''}")
    raise typer.Exit(1 if failed else 0)


def version(
    json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001 - read by the error handler
) -> None:
    """Show the versions of tunery, its compilers and Python."""
    from tunery.dialects import get_dialect, installed_dialects

    compilers: list[str] = []
    for name in installed_dialects():
        try:
            compilers += get_dialect(name).packages
        except ImportError:  # `tunery doctor` says why
            compilers.append(name)
    found: dict[str, str | None] = {name: _installed(name) for name in ("tunery", *compilers, *_LIBRARIES)}
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
