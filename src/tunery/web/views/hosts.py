"""Hosts and devices as they are now."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel

from tunery.domain import HERE, Calibration
from tunery.reports.data import plain
from tunery.service.machines import Machine
from tunery.store import Charge, KnownDevice, Store
from tunery.web._bodies import at
from tunery.web._service import ADMIN, Caller, Reader, Service, TheService

router = APIRouter(prefix="/v1", tags=["operations"])


class CalibrationOut(BaseModel):
    """What was found about measuring on a device; `degrees` says how many may be measured at once, by kind."""

    dialect: str
    threads: int
    slots: int
    degrees: dict[str, int]
    points: list[dict[str, Any]]
    isolated_tau: dict[str, float | None]
    flop_per_s: float
    bytes_per_s: float
    clock_overhead_s: float
    made_at: datetime


class DeviceOut(BaseModel):
    """A device that something was measured on; `queue` is how many stages wait for it now.

    `host` is empty where only imported records know it.
    """

    fingerprint: str
    host: str
    facts: dict[str, Any]
    last_seen: datetime
    records: int
    queue: int
    calibrations: list[CalibrationOut]


@router.get("/hosts")
async def hosts(service: TheService, caller: Reader) -> list[Machine]:
    """List the machines that jobs run on, the service's own first; why one is away only an administrator is told."""
    used = await service.store.read(lambda store: store.ledger_by_host())
    return await hosts_now(service, caller, used)


@router.get("/devices")
async def devices(service: TheService, _: Reader) -> list[DeviceOut]:
    """List the devices that something was measured on, with their calibrations."""
    return await devices_now(service)


async def hosts_now(service: Service, caller: Caller, used: Mapping[str, Charge] | None = None) -> list[Machine]:
    """Return the hosts as they are shown: their own names, and what they say of their trouble, are administrators'."""
    found = await service.manager.machines()
    if used is not None:
        found = [replace(host, core_s=_core_s(used, host.node if host.name == HERE else host.name)) for host in found]
    return found if caller.role == ADMIN else [replace(host, trouble="", node="") for host in found]


def _core_s(used: Mapping[str, Charge], host: str) -> float:
    return used[host].core_s if host in used else 0.0


async def devices_now(service: Service) -> list[DeviceOut]:
    def ask(store: Store) -> list[tuple[KnownDevice, list[Calibration], int]]:
        counts = store.count_by_device()
        return [
            (device, store.calibrations(device.fingerprint), counts.get(device.fingerprint, 0))
            for device in store.devices.find()
        ]

    found = await service.store.read(ask)
    queues = {(device, kind): count for machine in await service.manager.machines()
              for device in machine.devices for kind, count in machine.device_queue.items()}  # fmt: skip
    return [_shown(*one, queues.get((one[0].fingerprint, str(one[0].facts.get("kind"))), 0)) for one in found]


def _shown(device: KnownDevice, calibrations: list[Calibration], records: int, queue: int) -> DeviceOut:
    made = [CalibrationOut(**{**plain(one), "made_at": at(one.made_at)}) for one in calibrations]
    return DeviceOut(fingerprint=device.fingerprint, host=device.host, facts=plain(device.facts),
                     last_seen=at(device.last_seen), records=records, queue=queue, calibrations=made)  # fmt: skip
