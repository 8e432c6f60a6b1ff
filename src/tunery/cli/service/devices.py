"""`tunery devices`: what can run kernels here, and how many measurements it bears at once."""

import platform
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tunery._errors import UsageError
from tunery.cli.console import options
from tunery.cli.console.commands import Only, Result, command, remark, width
from tunery.cli.console.remote import Server, server_of
from tunery.domain.request import Request

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tunery.domain import Calibration

SlotThreads = Annotated[int, typer.Option("--threads", min=1, help="Threads of a kernel: as many cores make a slot.")]


@command("devices list", "devices list --json")
def list_(store: options.StoreUrl = "", server: Server = "", verbose: bool = False) -> Result:
    """List this machine's devices, with their fingerprint, their records, and what calibration found.

    At a service, those that it has measured on.
    """
    if url := server_of(server, store):
        return _list_there(url)
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

    def lines() -> "Iterator[str]":
        for device, made in zip(here, calibrations, strict=True):
            yield from _lines({**device, "cores": len(device["cores"])}, made)
        for kind, why in unusable.items():
            if verbose or pip_install(kind) not in why:  # of what is not installed few want to hear
                yield printable(f"{kind}  cannot be used: {why}", lines=False)
        for fingerprint, count in known.items():
            one = measured.get(fingerprint)
            name, host = (str(one.facts.get("name", "")), one.host) if one else ("", "")
            yield _elsewhere(fingerprint, name, count, "" if host == platform.node() else host)

    return Result({"devices": here, "unusable": unusable, "elsewhere": known}, lines())


def _elsewhere(fingerprint: str, name: str, count: int, host: str = "") -> str:
    return "  ".join(filter(None, ("elsewhere", host, name, fingerprint, f"{count} records")))


def _list_there(url: str) -> Result:
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

    def lines() -> "Iterator[str]":
        for one, where in zip(devices, (one["host"] for one in found), strict=True):
            if where:
                yield from _lines(one, TypeAdapter(list[Calibration]).validate_python(one["calibrations"]))
            else:
                yield _elsewhere(one["fingerprint"], str(one["name"]), one["records"])
        if not devices:
            yield "no devices yet: the service has measured nothing"

    return Result({"devices": devices, "elsewhere": {}}, lines())


def _lines(device: "Mapping[str, Any]", calibrations: "Sequence[Calibration]") -> "Iterator[str]":
    what = f"{device['kind']}  {device['name']}, {device['cores']} cores"
    yield f"{what}  {device['fingerprint']}  {device['records']} records"
    yield from (f"  {name}: {_fact(value)}" for name, value in device["facts"].items())
    for calibration in calibrations:
        yield from _shown(calibration)
    if not calibrations:
        yield "  not calibrated: `tunery devices calibrate` finds out how many measurements it bears at once"


@command("devices calibrate", "devices calibrate --threads 1")
def calibrate(
    *,
    threads: SlotThreads = 1,
    server: Annotated[str, typer.Option("--server", hidden=True)] = "",
    request: Annotated[Request, Only("target", "store", "dialect")],
) -> Result:
    """Time reference kernels alone and beside one another, and store how many may be measured at once."""
    if server:
        raise UsageError(
            "a service is calibrated on its own machine, for all accounts: give this command there, without --server"
        )
    from tunery.cli.console.live import Interrupt
    from tunery.service.session import calibrate_device

    stopped = "stopped; nothing of this calibration is kept"
    with Interrupt(lambda: None, message=stopped):  # asyncio's own would wait for the end of a measurement
        found = calibrate_device(replace(request, threads=threads), remark)
    return Result(_data(found), _shown(found))


def _data(calibration: "Calibration") -> dict[str, Any]:
    from dataclasses import asdict

    return {**asdict(calibration), "points": [asdict(point) for point in calibration.points]}


def _shown(calibration: "Calibration") -> "Iterator[str]":
    from tunery.reports.format import as_text, new_table

    slots = f"{calibration.slots} slot{'s' if calibration.slots > 1 else ''}"
    yield f"  calibrated for kernels of {calibration.threads} threads ({calibration.dialect}), {slots}:"
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
        yield as_text(table, width())
    chosen = ", ".join(f"{degree} for {kind}-bound" for kind, degree in calibration.degrees.items())
    yield f"  measurements at once: {chosen} kernels"
    if calibration.neighbours_disturb:
        yield "  even one neighbour distorts timings, so nothing runs beside a measurement here"


def _fact(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {entry}" for key, entry in value.items())
    return " ".join(value) if isinstance(value, list) else str(value)
