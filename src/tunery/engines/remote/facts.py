"""What this host says of itself, and what it finds amiss."""

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version

from tunery._locks import own_directory
from tunery._processor import granted_cores
from tunery._settings import cache_directory
from tunery.devices import open_device
from tunery.devices.cpu.doctor import confinement
from tunery.devices.cpu.facts import granted_bytes, usable_cores
from tunery.devices.here import devices_here
from tunery.dialects import Dialect, get_dialect, installed_dialects
from tunery.domain import Check, CheckState, HostFacts

_LEAST_DISK_BYTES = 2 << 30


def host_facts() -> HostFacts:
    return HostFacts(
        version=version("tunery"),
        python=platform.python_version(),
        system=platform.system(),
        machine=platform.machine(),
        node=platform.node(),
        cores=usable_cores(),
        granted=granted_cores(),
        memory_bytes=granted_bytes(),
        clock_s=time.time(),
        devices=(open_device("cpu").describe(),),
        packages=dict(_packages()),
    )


def host_checks(*, measuring: bool = False) -> Iterator[Check]:
    """Look at what a host's workers need here, one after the other: the cache, the sandbox, devices, and each dialect.
    With `measuring` only what runs kernels that others have compiled: the dialect's runtime."""
    yield cache_check()
    yield confinement()
    yield Check("devices", CheckState.OK, ", ".join(f"{device.kind} {device.name}" for device in devices_here()[0]))
    for name in installed_dialects():
        try:
            dialect = get_dialect(name)
            yield from _runtime_checks(dialect) if measuring else dialect.doctor()
        except Exception as error:  # noqa: BLE001 - whatever a plug-in does, the others are looked at
            yield Check(name, CheckState.FAIL, f"the dialect does not load: {error}", "install it again")


def _runtime_checks(dialect: Dialect) -> Iterator[Check]:
    modules = dialect.environment().measuring_preload
    if not modules:
        return
    command = [sys.executable, "-P", "-c", f"import {', '.join(modules)}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        yield Check("runtime", CheckState.OK, f"{dialect.name} runs kernels; a compiler and a linker are not needed")
        return
    last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    packages = " ".join(dialect.packages)
    yield Check("runtime", CheckState.FAIL, f"{dialect.name} cannot run kernels: {last[:200]}", f"install {packages}")


def cache_check() -> Check:
    directory = cache_directory()
    try:
        own_directory(directory)
        with tempfile.TemporaryFile(dir=directory):
            free = shutil.disk_usage(directory).free
    except OSError as error:
        why = f"user {os.getuid()} cannot write {directory}: {error.strerror}"
        return Check("cache", CheckState.FAIL, why, "give that user the directory, or set TUNERY_CACHE there")
    found = f"{directory}, {free / (1 << 30):.1f} GiB free"
    if free < _LEAST_DISK_BYTES:
        return Check("cache", CheckState.WARN, found, f"make room for {_LEAST_DISK_BYTES >> 30} GiB")
    return Check("cache", CheckState.OK, found)


def _packages() -> Iterator[tuple[str, str]]:
    for line in requires("tunery") or ():
        name = re.split(r"[^\w.-]", line, maxsplit=1)[0]
        try:
            yield name, version(name)
        except PackageNotFoundError:
            continue
