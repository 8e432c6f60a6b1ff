"""The way to OpenCL: its library, and its first device, of which this process opens nothing."""

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tunery._errors import DialectError
from tunery._extras import pip_install
from tunery._processor import room_for_addresses
from tunery._settings import cache_directory

NO_PLATFORM = (
    "there is no OpenCL platform: install one, for example PoCL (Debian, Ubuntu: apt-get install pocl-opencl-icd)"
)
MOST_THREADS = "POCL_MAX_PTHREAD_COUNT"
"""The variable that tells PoCL, before it starts, how many threads its device has."""
_VENDORS = Path("/etc/OpenCL/vendors")
_ELSEWHERE = frozenset({"OCL_ICD_VENDORS", "OCL_ICD_FILENAMES"})  # what names drivers of other places


def no_library() -> str:
    return f"the Python package pyopencl is not installed: {pip_install('opencl')}"


@dataclass(frozen=True)
class FoundDevice:
    """A device, and its number among all; `is_confined`: PoCL is the only driver, and runs kernels confined."""

    device: Any
    number: int
    is_confined: bool

    @property
    def name(self) -> str:
        return f"{self.device.name.strip()} {self.device.driver_version.strip()}"


@cache
def find() -> FoundDevice:
    """Find the first GPU, or else the first device, once in a process."""
    directory = cache_directory() / "opencl"  # which PoCL wants to write, also where it compiles nothing
    directory.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("POCL_CACHE_DIR", str(directory))
    try:
        import pyopencl as cl
    except ImportError as error:
        raise DialectError(no_library()) from error
    drivers = [one.name for place in (_VENDORS, Path(cl.__file__).parent / ".libs") for one in place.glob("*.icd")]
    is_pocl = bool(drivers) and not _ELSEWHERE & os.environ.keys() and all("pocl" in one for one in drivers)
    with room_for_addresses():  # without it, that of a GPU would say nothing of itself, and another be taken
        try:
            devices = [one for platform in cl.get_platforms() for one in platform.get_devices()]
        except cl.Error:
            devices = []
    if not devices:
        raise DialectError(NO_PLATFORM)
    number = next((n for n, one in enumerate(devices) if one.type & cl.device_type.GPU), 0)
    return FoundDevice(devices[number], number, is_pocl)
