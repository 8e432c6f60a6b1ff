"""Which devices this machine has."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from tunery.devices import accelerators, open_device
from tunery.domain import DeviceDescription

_LOOK_S = 30.0
_LOOK = """
import json, sys
from tunery.devices import open_device
one = open_device(sys.argv[1]).describe()
print(json.dumps([one.kind, one.name, one.cores, dict(one.facts)]))
"""


def devices_here() -> list[DeviceDescription]:
    """Return the devices that can be measured on here, the processor first."""
    kinds = accelerators()
    with ThreadPoolExecutor(len(kinds)) as pool:
        found = [one for one in pool.map(_described, kinds) if one is not None]
    return [open_device("cpu").describe(), *(one for one in found if not one.absent)]


def _described(kind: str) -> DeviceDescription | None:
    """Return the device of a kind, None where there is none.

    It is opened in a process of its own: a driver starts threads, takes memory, and may crash.
    """
    command = [sys.executable, "-P", "-c", _LOOK, kind]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LOOK_S, check=True)
    except subprocess.SubprocessError:
        return None
    kind, name, cores, facts = json.loads(done.stdout.splitlines()[-1])
    return DeviceDescription(kind, name, tuple(cores), facts)
