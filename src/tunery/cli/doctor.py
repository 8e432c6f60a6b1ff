"""`tunery doctor`: is this machine ready?"""

import typer

from tunery.cli import _options as options
from tunery.cli._output import emit, say


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor", epilog="Example: tunery doctor")(doctor)


def doctor(
    store: options.StoreUrl = "",
    json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001 - read by the error handler
) -> None:
    """Check this machine: each line says ok, warn or fail, and what to do."""
    from tunery.cli._checks import State, all_checks

    found = list(all_checks(store))
    failed = any(check.state is State.FAIL for check in found)
    if json:
        emit({"ok": not failed, "checks": found})
    else:
        for check in found:
            say(f"{check.state.value:<5} {check.name:<9} {check.found}{'; ' + check.advice if check.advice else ''}")
    raise typer.Exit(1 if failed else 0)
