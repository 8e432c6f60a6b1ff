"""What runs kernels, behind one contract: our own kinds, and others by the entry point group `tunery.devices`."""

from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points

from tunery._errors import UsageError
from tunery.devices._base import ConstantBuffers, Device, EnergyMeter, ForeignLoad, Load, Watch

__all__ = ["ConstantBuffers", "Device", "EnergyMeter", "ForeignLoad", "Load", "Watch", "device_class", "open_device"]

_GROUP = "tunery.devices"
_OURS = {"cpu": "tunery.devices.cpu.device:CpuDevice", "fake": "tunery.devices.fake:FakeDevice"}


def device_class(kind: str) -> type[Device]:
    """Return the class of devices of a kind.

    Raises:
        UsageError: no installed device has that kind.
    """
    if kind in _OURS:
        entry = EntryPoint(kind, _OURS[kind], _GROUP)
    else:
        others = {entry.name: entry for entry in entry_points(group=_GROUP)}
        if kind not in others:
            raise UsageError(f"unknown kind of device {kind!r}; installed: {', '.join(sorted({*_OURS, *others}))}")
        entry = others[kind]
    found: type[Device] = entry.load()
    return found


def open_device(kind: str, cores: Sequence[int] = (), slot: Sequence[int] = ()) -> Device:
    """Open a device in this process; `cores` and `slot` are those of `Device`.

    Raises:
        UsageError: no installed device has that kind.
    """
    return device_class(kind)(cores, slot)
