"""The way to OpenCL: its library, its first device, and a queue of it."""

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from tunery import _sandbox
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
T = TypeVar("T")


def no_library() -> str:
    return f"the Python package pyopencl is not installed: {pip_install('opencl')}"


@dataclass(frozen=True)
class Found:
    """The module `cl`, a device that nothing was opened of yet, and the `thread` that does it; `kept`: it is kept."""

    cl: Any
    device: Any
    thread: ThreadPoolExecutor
    kept: bool


@dataclass(frozen=True)
class OpenClQueue:
    """One device of OpenCL in this process, with a context and a queue that keeps the time. What compiles or runs a
    user's source is called in `thread`, which reads no files of others; nor do PoCL's threads, where it alone is
    installed."""

    cl: Any
    device: Any
    context: Any
    queue: Any
    thread: ThreadPoolExecutor

    def call(self, work: Callable[[], T]) -> T:
        return self.thread.submit(work).result()

    @property
    def name(self) -> str:
        return f"{self.device.name.strip()} {self.device.driver_version.strip()}"


@cache
def find() -> Found:
    """Find the first GPU, or else the first device, once in a process. PoCL starts its threads here, on the cores that
    the process may use, and with the rights of the one that finds it."""
    # What PoCL compiles is kept in our cache, and only while it is used.
    directory = cache_directory() / "opencl"
    directory.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("POCL_CACHE_DIR", str(directory))
    os.environ.setdefault("POCL_KERNEL_CACHE", "0")
    os.environ.setdefault("PYOPENCL_NO_CACHE", "1")
    try:
        import pyopencl as cl
    except ImportError as error:
        raise DialectError(no_library()) from error
    thread = ThreadPoolExecutor(1, "opencl")
    drivers = [one.name for place in (_VENDORS, Path(cl.__file__).parent / ".libs") for one in place.glob("*.icd")]
    elsewhere = _ELSEWHERE & os.environ.keys()
    alone = bool(drivers) and not elsewhere and all("pocl" in one for one in drivers)
    if alone:
        _keep(thread)
    return Found(cl, thread.submit(_first, cl).result(), thread, alone)


@cache
def connect() -> OpenClQueue:
    found = find()
    context, queue = found.thread.submit(_opened, found.cl, found.device).result()
    if not found.kept:  # other drivers open a GPU's files first
        _keep(found.thread)
    return OpenClQueue(found.cl, found.device, context, queue, found.thread)


def _keep(thread: ThreadPoolExecutor) -> None:
    readable = (*_sandbox.SYSTEM, _VENDORS.parent, sys.prefix, sys.base_prefix)
    _sandbox.keep(thread, readable, [os.environ["POCL_CACHE_DIR"]], _sandbox.FILES, _sandbox.PROGRAMS)


def _first(cl: Any) -> Any:
    with room_for_addresses():  # without it, that of a GPU would say nothing of itself, and another be taken
        try:
            devices = [one for platform in cl.get_platforms() for one in platform.get_devices()]
        except cl.Error:
            devices = []
        if not devices:
            raise DialectError(NO_PLATFORM)
        return next((one for one in devices if one.type & cl.device_type.GPU), devices[0])


def _opened(cl: Any, device: Any) -> tuple[Any, Any]:
    with room_for_addresses():
        context = cl.Context([device])
        return context, cl.CommandQueue(context, properties=cl.command_queue_properties.PROFILING_ENABLE)
