"""The way to CUDA: its driver, the first GPU, and a context and a stream of it."""

import os
import weakref
from dataclasses import dataclass
from functools import cache
from typing import Any

from tunery._errors import DeviceLostError, DialectError
from tunery._extras import pip_install
from tunery.devices.addresses import room_for_addresses

NO_DRIVER = "there is no CUDA driver: install that of the GPU, which `nvidia-smi` shows"
_NO_GPU = "there is no GPU for CUDA: `nvidia-smi` lists those that the driver sees, CUDA_VISIBLE_DEVICES may hide them"
_LEAST_DRIVER = 12040
_LOST = frozenset({214, 700, 702, 710, 714, 715, 716, 717, 718, 719})
"""The driver's errors after which a process gets no other answer: memory faults, traps, a kernel that was ended."""


def no_library() -> str:
    return f"the Python package cuda-bindings is not installed: {pip_install('cuda')}"


def done(answer: tuple[Any, ...]) -> Any:
    status, *values = answer
    code = int(status)
    if code in _LOST:
        raise DeviceLostError(f"the kernel broke the GPU's context: {status.name}")
    if code:
        raise DialectError(f"CUDA answers {status.name}")
    return values[0] if values else None


@dataclass(frozen=True)
class Gpu:
    """The first GPU: the module `cu` of the driver's calls, its ordinal, and what it is. None of it is in use yet."""

    cu: Any
    ordinal: Any
    name: str
    arch: str
    driver: str

    def attribute(self, name: str) -> int:
        which = getattr(self.cu.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(done(self.cu.cuDeviceGetAttribute(which, self.ordinal)))


@cache
def find() -> Gpu:
    os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")  # or a kernel's first run would be its loading
    try:
        from cuda.bindings import driver as cu
    except ImportError as error:
        raise DialectError(no_library()) from error
    try:
        with room_for_addresses():
            (status,) = cu.cuInit(0)
    except RuntimeError as error:  # the package finds no driver to load
        raise DialectError(NO_DRIVER) from error
    if int(status):
        raise DialectError(f"{_NO_GPU} ({status.name})")
    version = int(done(cu.cuDriverGetVersion()))
    if version < _LEAST_DRIVER:
        raise DialectError(
            f"the CUDA driver is for CUDA {_version(version)}; install one for {_version(_LEAST_DRIVER)}"
        )
    if not int(done(cu.cuDeviceGetCount())):
        raise DialectError(_NO_GPU)
    ordinal = done(cu.cuDeviceGet(0))
    name = done(cu.cuDeviceGetName(128, ordinal)).split(b"\0")[0].decode(errors="replace").strip()
    found = Gpu(cu, ordinal, name, "", _version(version))
    major, minor = (found.attribute(f"COMPUTE_CAPABILITY_{part}") for part in ("MAJOR", "MINOR"))
    return Gpu(cu, ordinal, name, f"sm_{major}{minor}", found.driver)


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


@dataclass(frozen=True)
class CudaStream:
    """The first GPU in this process, with a context and a stream of our own."""

    gpu: Gpu
    context: Any
    stream: Any

    def use(self) -> Any:
        done(self.gpu.cu.cuCtxSetCurrent(self.context))
        return self.gpu.cu

    def let_go_with(self, owner: object, *calls: tuple[Any, ...]) -> None:
        weakref.finalize(owner, _let_go, self, calls).atexit = False

    def wait(self) -> None:
        done(self.gpu.cu.cuStreamSynchronize(self.stream))


def _let_go(to: CudaStream, calls: tuple[tuple[Any, ...], ...]) -> None:
    try:
        cu = to.use()
        for name, *arguments in calls:
            done(getattr(cu, name)(*arguments))
    except (DialectError, DeviceLostError):
        return  # then all of it goes with the process


@cache
def connect() -> CudaStream:
    gpu = find()
    cu = gpu.cu
    with room_for_addresses():
        context = done(cu.cuDevicePrimaryCtxRetain(gpu.ordinal))
    done(cu.cuCtxSetCurrent(context))
    return CudaStream(gpu, context, done(cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING)))
