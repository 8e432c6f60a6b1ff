"""`tunery devices`: what can run kernels here, and how many measurements it bears at once."""

import platform
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tunery._errors import UsageError
from tunery.cli.console import options
from tunery.cli.console.output import emit, remark, say, width
from tunery.cli.console.remote import Server, server_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tunery.domain import Calibration

app = typer.Typer(help="What can run kernels here.", no_args_is_help=False)
SlotThreads = Annotated[int, typer.Option("--threads", min=1, help="Threads of a kernel: as many cores make a slot.")]


@app.command("list", epilog="Example: tunery devices list --json")
def list_(
    store: options.StoreUrl = "",
    server: Server = "",
    json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """List this machine's devices, with their fingerprint, their records, and what calibration found.

    At a service, those that it has measured on.
    """
    if url := server_of(server, store):
        _list_there(url, as_json=json)
        return
    from tunery._extras import pip_install
    from tunery.devices.here import devices_here
    from tunery.reports.format import printable
    from tunery.store import open_store

    with open_store(store, create=False, keep=False) as opened:
        found, unusable = devices_here()
        known = dict(opened.stats().devices)
        measured = {one.fingerprint: one for one in reversed(opened.devices.find())}
        calibrations = [opened.calibrations(device.fingerprint) for device in found]
    here: list[dict[str, Any]] = [
        {
            "kind": device.kind,
            "name": device.name,
            "cores": device.cores,
            "fingerprint": device.fingerprint,
            "facts": device.facts,
            "records": known.pop(device.fingerprint, 0),
            "calibrations": [_data(one) for one in made],
        }
        for device, made in zip(found, calibrations, strict=True)
    ]
    if json:
        emit({"devices": here, "unusable": unusable, "elsewhere": known})
        return
    for device, made in zip(here, calibrations, strict=True):
        _print({**device, "cores": len(device["cores"])}, made)
    for kind, why in unusable.items():
        if verbose or pip_install(kind) not in why:  # of what is not installed few want to hear
            say(printable(f"{kind}  cannot be used: {why}", lines=False))
    for fingerprint, count in known.items():
        one = measured.get(fingerprint)
        name, host = (str(one.facts.get("name", "")), one.host) if one else ("", "")
        say(_elsewhere(fingerprint, name, count, "" if host == platform.node() else host))


def _elsewhere(fingerprint: str, name: str, count: int, host: str = "") -> str:
    return "  ".join(filter(None, ("elsewhere", host, name, fingerprint, f"{count} records")))


def _list_there(url: str, *, as_json: bool) -> None:
    from pydantic import TypeAdapter

    from tunery.domain import Calibration
    from tunery.web.client import connect

    with connect(url) as service:
        found = service.devices()
    for calibration in (one for device in found for one in device["calibrations"]):
        calibration["made_at"] = datetime.fromisoformat(calibration["made_at"]).timestamp()
    named = ("kind", "name", "cores")
    devices = [
        {**{name: one["facts"].get(name) for name in named}, "fingerprint": one["fingerprint"],
         "facts": {name: value for name, value in one["facts"].items() if name not in named},
         "records": one["records"],
         "calibrations": [{"device": one["fingerprint"], **calibration} for calibration in one["calibrations"]]}
        for one in found
    ]  # fmt: skip
    if as_json:
        emit({"devices": devices, "elsewhere": {}})
        return
    for one, where in zip(devices, (one["host"] for one in found), strict=True):
        if where:
            _print(one, TypeAdapter(list[Calibration]).validate_python(one["calibrations"]))
        else:
            say(_elsewhere(one["fingerprint"], str(one["name"]), one["records"]))
    if not devices:
        say("no devices yet: the service has measured nothing")


def _print(device: "Mapping[str, Any]", calibrations: "Sequence[Calibration]") -> None:
    say(f"{device['kind']}  {device['name']}, {device['cores']} cores  {device['fingerprint']}  "
        f"{device['records']} records")  # fmt: skip
    for name, value in device["facts"].items():
        say(f"  {name}: {_fact(value)}")
    for calibration in calibrations:
        _show(calibration)
    if not calibrations:
        say("  not calibrated: `tunery devices calibrate` finds out how many measurements it bears at once")


@app.command("calibrate", epilog="Example: tunery devices calibrate --threads 1")
def calibrate(
    *,
    target: options.TargetName = "native",
    threads: SlotThreads = 1,
    store: options.StoreUrl = "",
    server: Annotated[str, typer.Option("--server", hidden=True)] = "",
    dialect: options.DialectName = options.DIALECT,
    json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001 - read by the error handler
) -> None:
    """Time reference kernels alone and beside one another, and store how many may be measured at once."""
    if server:
        raise UsageError(
            "a service is calibrated on its own machine, for all accounts: give this command there, without --server"
        )
    from tunery.cli.console.interrupt import Interrupt
    from tunery.service.session import calibrate_device

    request = options.make_request("", target=target, store=store, threads=threads, shapes=None, dialect=dialect)
    try:
        with Interrupt(lambda: None):  # asyncio's own would wait for the end of a measurement
            found = calibrate_device(request, remark)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("stopped; nothing of this calibration is kept") from None
    if json:
        emit(_data(found))
        return
    _show(found)


def _data(calibration: "Calibration") -> dict[str, Any]:
    from dataclasses import asdict

    return {**asdict(calibration), "points": [asdict(point) for point in calibration.points]}


def _show(calibration: "Calibration") -> None:
    from tunery.reports.format import as_text, new_table

    slots = f"{calibration.slots} slot{'s' if calibration.slots > 1 else ''}"
    say(f"  calibrated for kernels of {calibration.threads} threads ({calibration.dialect}), {slots}:")
    table = new_table("kernels", "#at once", "#slower", "#tau", "#tau alone", "#throughput", "chosen")
    for point in calibration.points:
        table.add_row(
            f"{point.kind}-bound",
            str(point.degree),
            f"{point.deviation:+.1%}",
            f"{point.tau:.3f}",
            f"{calibration.isolated_tau.get(point.kind, float('nan')):.3f}",
            f"{point.gain:.2f}x",
            "yes" if calibration.degrees.get(point.kind) == point.degree else "",
        )
    if calibration.points:
        say(as_text(table, width()))
    chosen = ", ".join(f"{degree} for {kind}-bound" for kind, degree in calibration.degrees.items())
    say(f"  measurements at once: {chosen} kernels")
    if calibration.neighbours_disturb:
        say("  even one neighbour distorts timings, so nothing runs beside a measurement here")


def _fact(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {entry}" for key, entry in value.items())
    return " ".join(value) if isinstance(value, list) else str(value)
