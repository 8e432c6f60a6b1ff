"""`tunery devices`: what can run kernels here."""

from typing import Any

import typer

from tunery.cli import _options as options
from tunery.cli._output import emit, say

app = typer.Typer(help="What can run kernels here.", no_args_is_help=False)


@app.command("list", epilog="Example: tunery devices list --json")
def list_(
    store: options.StoreUrl = "",
    json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001 - read by the error handler
) -> None:
    """List this machine's devices, with the fingerprint that their records carry, and how many records there are."""
    from tunery.measure import this_device, usable_cores
    from tunery.store import open_store

    device = this_device(usable_cores())
    with open_store(store) as opened:
        known = dict(opened.stats().devices)
    here: dict[str, Any] = {
        "kind": device.kind,
        "name": device.name,
        "cores": device.cores,
        "fingerprint": device.fingerprint,
        "facts": device.facts,
        "records": known.pop(device.fingerprint, 0),
    }
    if json:
        emit({"devices": [here], "elsewhere": known})
        return
    say(f"{device.kind}  {device.name}, {len(device.cores)} cores  {device.fingerprint}  {here['records']} records")
    for name, value in device.facts.items():
        say(f"  {name}: {_fact(value)}")
    for fingerprint, count in known.items():
        say(f"elsewhere  {fingerprint}  {count} records")


def _fact(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {entry}" for key, entry in value.items())
    return " ".join(value) if isinstance(value, list) else str(value)
