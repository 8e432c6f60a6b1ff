"""`tunery dialects`: which compilers there are, and the virtual environments of those that need one."""

from typing import TYPE_CHECKING, Annotated

import typer

from tunery._errors import UsageError
from tunery.cli.console.commands import Result, command, remark
from tunery.cli.console.remote import Server

if TYPE_CHECKING:
    from tunery.dialects import Dialect

Name = Annotated[str, typer.Argument(metavar="NAME", help="A dialect: see `tunery dialects list`.")]


@command("dialects list", "dialects list")
def list_(server: Server = "") -> Result:
    """List the dialects, with the state of their environments."""
    from tunery._environments import environment_fault
    from tunery.dialects import get_dialect, installed_dialects

    _check_here(server)
    rows, lines = [], []
    for name in installed_dialects():
        needed = get_dialect(name).requirements
        fault = environment_fault(name, needed) if needed else ""
        rows.append(
            {"name": name, "requirements": needed, "own_environment": bool(needed), "ready": not fault, "fault": fault}
        )
        own = f"an environment of its own: {', '.join(needed)}" if needed else "tunery's"
        lines.append(f"{name:<13} {fault or own}")
    return Result({"dialects": rows}, lines)


@command("dialects install", "dialects install NAME")
def install(name: Name, server: Server = "") -> Result:
    """Make a dialect's virtual environment, or make it anew; nothing else is changed."""
    from tunery._environments import install_environment

    _check_here(server)
    needed = _with_environment(name).requirements
    remark(f"installing {', '.join(needed)} into an environment of its own")
    directory = str(install_environment(name, needed))
    said = f"installed {directory}; `tunery dialects remove {name}` removes it"
    return Result({"name": name, "directory": directory, "requirements": needed}, [said])


@command("dialects check", "dialects check NAME")
def check(name: Name, server: Server = "") -> Result:
    """Check whether a dialect can work here; each line says ok, absent, warn or fail, and what to do."""
    from tunery.cli.doctor import checked
    from tunery.dialects import get_dialect
    from tunery.domain import Check, CheckState

    _check_here(server)
    return checked(list(get_dialect(name).doctor()) or [Check(name, CheckState.OK, "it needs nothing beyond tunery")])


@command("dialects remove", "dialects remove NAME")
def remove(name: Name, server: Server = "") -> Result:
    """Remove a dialect's virtual environment; records stay."""
    from tunery._environments import remove_environment

    _check_here(server)
    _with_environment(name)
    removed = remove_environment(name)
    said = "removed" if removed else f"the dialect {name} has no environment on this machine"
    return Result({"name": name, "removed": removed}, [said])


def _with_environment(name: str) -> "Dialect":
    from tunery.dialects import get_dialect

    dialect = get_dialect(name)
    if not dialect.requirements:
        raise UsageError(f"the dialect {name} works in tunery's own environment; there is nothing to install")
    return dialect


def _check_here(server: str) -> None:
    """Refuse to do it elsewhere; the variable of a service does not matter to what is of this machine."""
    if server:
        raise UsageError("environments are of the machine that does the work: run this command there, without --server")
