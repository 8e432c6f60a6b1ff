"""Making the device that a runtime measures on known to a store."""

import platform

from tunery.domain import DeviceDescription
from tunery.runtime.pools import Runtime
from tunery.store import Store


async def introduce(runtime: Runtime, store: Store) -> DeviceDescription:
    """Return the device that a runtime's measurers describe, after storing its facts.

    Raises:
        WorkError: no measurer starts.
    """
    device = await runtime.device()
    store.devices.save(device.fingerprint, device.as_facts(), platform.node())
    return device
