"""Which devices this machine has."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from tunery.devices import accelerators, open_device
from tunery.domain import DeviceDescription

_LOOK_S = 30.0
_READ_S = 1.0  # for what was said while one before it hung
_KILLED_S = 1.0
_MARK = "tunery-device "
_LOOK = """
import json, sys
from tunery.devices import open_device
try:
    one = open_device(sys.argv[1]).look()
    found = one.absent or [one.kind, one.name, one.cores, dict(one.facts)]
except Exception as error:
    found = str(error) or type(error).__name__
print("\\n" + sys.argv[2] + json.dumps(found), flush=True)
"""


def devices_here() -> tuple[list[DeviceDescription], dict[str, str]]:
    looked = _look_at(accelerators())
    found = [one for one in looked.values() if isinstance(one, DeviceDescription)]
    return [open_device("cpu").describe(), *found], {kind: one for kind, one in looked.items() if isinstance(one, str)}


def _look_at(kinds: Sequence[str]) -> dict[str, DeviceDescription | str]:
    """Each is opened in a process of its own: a driver starts threads, takes memory, and may crash or hang."""
    found: dict[str, DeviceDescription | str] = {}
    looking: dict[str, subprocess.Popen[str]] = {}
    until = time.monotonic() + _LOOK_S
    try:
        for kind in kinds:
            try:
                looking[kind] = subprocess.Popen(
                    [sys.executable, "-P", "-c", _LOOK, kind, _MARK], stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, errors="replace",
                )  # fmt: skip
            except OSError as error:
                found[kind] = f"no process could be started to look at it: {error}"
        for kind, process in looking.items():
            found[kind] = _told(process, max(until - time.monotonic(), _READ_S))
    finally:
        for process in looking.values():
            process.kill()
        for process in looking.values():
            assert process.stdout is not None
            process.stdout.close()
            with suppress(subprocess.TimeoutExpired):  # inside a driver that hangs, not even a kill ends it
                process.wait(_KILLED_S)
    return found


def _told(process: "subprocess.Popen[str]", seconds: float) -> DeviceDescription | str:
    try:
        said, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        return f"its driver has not answered within {_LOOK_S:g} s"
    for line in said.splitlines():
        if line.startswith(_MARK):
            with suppress(ValueError):
                told = json.loads(line.removeprefix(_MARK))
                if isinstance(told, str):
                    return told
                kind, name, cores, facts = told
                return DeviceDescription(kind, name, tuple(cores), facts)
    code = process.returncode
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return f"the process that looked at it {how}"
