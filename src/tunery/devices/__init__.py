"""What runs kernels, behind one contract: our own kinds, and others by the entry point group `tunery.devices`."""

from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from tunery._errors import UsageError
from tunery.devices._base import ConstantBuffers, Device, EnergyMeter, ForeignLoad, Load, Watch

__all__ = [
    "ConstantBuffers",
    "Device",
    "EnergyMeter",
    "ForeignLoad",
    "Load",
    "Watch",
    "accelerators",
    "device_class",
    "open_device",
    "traits_of",
]

_GROUP = "tunery.devices"
_OURS = {
    "cpu": ("cpu.device", "CpuDevice"),
    "cuda": ("cuda.device", "CudaDevice"),
    "opencl": ("opencl.device", "OpenClDevice"),
}


def device_class(kind: str) -> type[Device]:
    """Return the class of devices of a kind.

    Raises:
        UsageError: no installed device has that kind.
    """
    if kind in _OURS:
        entry = EntryPoint(kind, "{}.{}:{}".format(__name__, *_OURS[kind]), _GROUP)
    else:
        others = _others()
        if kind not in others:
            raise UsageError(f"unknown kind of device {kind!r}; installed: {', '.join(sorted({*_OURS, *others}))}")
        entry = others[kind]
    found: type[Device] = entry.load()
    return found


def accelerators() -> list[str]:
    """Return the kinds of devices that this machine may have beside its processor."""
    return sorted({*_OURS, *_others()} - {"cpu", "fake"})


def _others() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=_GROUP)}


def open_device(kind: str, cores: Sequence[int] = (), slot: Sequence[int] = ()) -> Device:
    """Open a device in this process; `cores` and `slot` are those of `Device`.

    Raises:
        UsageError: no installed device has that kind.
    """
    return device_class(kind)(cores, slot)


def traits_of(facts: Mapping[str, Any] | None) -> Mapping[str, float] | None:
    """Return the traits of a device from what a store has of it; None where that is nothing.

    Raises:
        UsageError: no installed device has its kind.
    """
    # Facts of earlier versions tell no kind: they knew processors only.
    return None if facts is None else device_class(str(facts.get("kind", "cpu"))).traits(facts)
