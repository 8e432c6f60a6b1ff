"""`tunery dialects`: which compilers there are, and the virtual environments of those that need one."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tunery._errors import UsageError
from tunery.cli.console import options
from tunery.cli.console.output import emit, remark, say
from tunery.cli.console.remote import Server

if TYPE_CHECKING:
    from tunery.dialects import Dialect

app = typer.Typer(help="Compilers, and the environments that some of them need.", no_args_is_help=False)
Name = Annotated[str, typer.Argument(metavar="NAME", help="A dialect: see `tunery dialects list`.")]


@app.command("list", epilog="Example: tunery dialects list")
def list_(
    server: Server = "",
    json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001 - read by the error handler
) -> None:
    """List the dialects, with the state of their environments."""
    from tunery._environments import environment_fault
    from tunery.dialects import get_dialect, installed_dialects

    _here(server)
    found: list[dict[str, Any]] = []
    for name in installed_dialects():
        dialect = get_dialect(name)
        fault = environment_fault(name, dialect.requirements) if dialect.requirements else ""
        found.append({
            "name": name, "requirements": dialect.requirements, "own_environment": bool(dialect.requirements),
            "ready": not fault, "fault": fault,
        })  # fmt: skip
    if json:
        emit({"dialects": found})
        return
    for one in found:
        own = f"an environment of its own: {', '.join(one['requirements'])}" if one["own_environment"] else "tunery's"
        say(f"{one['name']:<13} {one['fault'] or own}")


@app.command("install", epilog="Example: tunery dialects install NAME")
def install(
    name: Name,
    server: Server = "",
    json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001 - read by the error handler
) -> None:
    """Make a dialect's virtual environment, or make it anew; nothing else is changed."""
    from tunery._environments import install_environment

    _here(server)
    dialect = _with_environment(name)
    remark(f"installing {', '.join(dialect.requirements)} into an environment of its own")
    place = install_environment(name, dialect.requirements)
    if json:
        emit({"name": name, "directory": str(place), "requirements": dialect.requirements})
    else:
        say(f"installed {place}; `tunery dialects remove {name}` removes it")


@app.command("check", epilog="Example: tunery dialects check NAME")
def check(
    name: Name,
    server: Server = "",
    json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001 - read by the error handler
) -> None:
    """Check whether a dialect can work here; each line says ok, absent, warn or fail, and what to do."""
    from tunery.cli.doctor import tell_checks
    from tunery.dialects import get_dialect
    from tunery.domain import Check, CheckState

    _here(server)
    found = list(get_dialect(name).doctor()) or [Check(name, CheckState.OK, "it needs nothing beyond tunery")]
    tell_checks(found, as_json=json)


@app.command("remove", epilog="Example: tunery dialects remove NAME")
def remove(
    name: Name,
    server: Server = "",
    json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001 - read by the error handler
) -> None:
    """Remove a dialect's virtual environment; records stay."""
    from tunery._environments import remove_environment

    _here(server)
    _with_environment(name)
    removed = remove_environment(name)
    if json:
        emit({"name": name, "removed": removed})
    else:
        say("removed" if removed else f"the dialect {name} has no environment on this machine")


def _with_environment(name: str) -> "Dialect":
    from tunery.dialects import get_dialect

    dialect = get_dialect(name)
    if not dialect.requirements:
        raise UsageError(f"the dialect {name} works in tunery's own environment; there is nothing to install")
    return dialect


def _here(server: str) -> None:
    """Refuse to do it elsewhere; the variable of a service does not matter to what is of this machine."""
    if server:
        raise UsageError("environments are of the machine that does the work: run this command there, without --server")
