"""A kernel in CUDA on a GPU's stream, timed by its events."""

import base64
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
from typing_extensions import override

from tunery._errors import DialectError
from tunery.devices.cuda.device import CudaDevice
from tunery.devices.cuda.driver import CudaStream, done
from tunery.dialects import Array
from tunery.dialects.kernels.buffers import drawn
from tunery.dialects.kernels.cuda.arrays import GpuArray
from tunery.dialects.kernels.cuda.compilation import CudaBinary, compiled
from tunery.dialects.kernels.kernel import BuiltKernel, check_alike
from tunery.dialects.kernels.launched.sizes import Sizes
from tunery.dialects.kernels.specification import Argument, KernelSpecification

_AT_ONCE = 32  # calls in the stream
_MOST_DRAWN = 1 << 20  # bytes of an input that is drawn here and copied for each call
_DRAWING = (256, 4096)  # threads of a block, and blocks at most
DRAW = """
extern "C" __global__ void tunery_draw(T *into, const T *of, unsigned long long size, unsigned long long seed) {
    const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < size; i += step) {
        unsigned long long z = seed + (i + 1) * 0x9E3779B97F4A7C15ull;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
        into[i] = of[(z ^ (z >> 31)) % size];
    }
}
"""
"""Writes numbers that are drawn from others by SplitMix64 (Steele, Lea, Flood 2014) to an array, from a seed."""
_WIDTHS = {1: "char", 2: "short", 4: "int", 8: "long long"}


@cache
def drawing(width: int, arch: str) -> CudaBinary:
    """Compile what draws numbers of so many bytes."""
    code, symbol = compiled(f"typedef {_WIDTHS[width]} T;\n{DRAW}", "tunery_draw", [f"-arch={arch}"])
    return CudaBinary(Sizes((), None), base64.b64encode(code).decode(), symbol, arch)


class _Module:
    """A kernel's code on the GPU, with variables of its own."""

    def __init__(self, compiled: CudaBinary, to: CudaStream) -> None:
        cu = to.use()
        try:
            module = done(cu.cuModuleLoadData(base64.b64decode(compiled.code)))
        except DialectError as error:
            raise DialectError(f"{to.gpu.name} does not load what was built for {compiled.arch}: {error}") from error
        to.let_go_with(self, ("cuModuleUnload", module))
        self.function: Any = done(cu.cuModuleGetFunction(module, compiled.symbol.encode()))
        of = cu.CUfunction_attribute
        shared, most = compiled.launch.shared, to.gpu.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
        declared = int(done(cu.cuFuncGetAttribute(of.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, self.function)))
        if shared + declared > most:
            raise DialectError(
                f"a block takes {shared + declared} bytes of shared memory, and {most} is the GPU's limit"
            )
        if shared:
            done(cu.cuFuncSetAttribute(self.function, of.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared))
        most = int(done(cu.cuFuncGetAttribute(of.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, self.function)))
        if math.prod(compiled.launch.group or ()) > most:
            raise DialectError(
                f"a block of {math.prod(compiled.launch.group or ())} threads takes more registers than the GPU has: "
                f"{most} is this kernel's limit"
            )


class CudaKernel(BuiltKernel):
    """A kernel on a GPU. Before each call that is timed, the second cache is emptied, which also keeps the stream busy
    until the call is in it; so an event before it and one behind it tell its time."""

    def __init__(self, kernel: KernelSpecification, compiled: CudaBinary, device: CudaDevice) -> None:
        self._compiled, self._device, self._to = compiled, device, device.connection
        self._module = _Module(compiled, self._to)
        arrays = [one for one in kernel.arguments if not one.scalar]
        self._memory = {one.name: GpuArray(one.name, one.shape, one.dtype, self._to) for one in arrays}
        super().__init__(kernel, self._memory)
        self._sources: dict[str, tuple[GpuArray, _Module]] = {}  # of large inputs: what they are drawn from, and how
        self._drawn: list[Array] = []  # on their way to the GPU
        self._values = [
            np.array(self._memory[one.name].address, np.uint64) if one.value is None
            else np.array(one.value, one.dtype)
            for one in kernel.arguments
        ]  # fmt: skip
        self._pointers = np.array([value.ctypes.data for value in self._values], np.uint64)
        group = compiled.launch.group or (1,)
        blocks = [whole // each for whole, each in zip(compiled.launch.whole, group, strict=True)]
        self._sizes = (*blocks, *[1] * (3 - len(blocks)), *group, *[1] * (3 - len(group)), compiled.launch.shared)
        cu = self._to.use()
        self._events = [
            tuple(done(cu.cuEventCreate(cu.CUevent_flags.CU_EVENT_DEFAULT)) for _ in range(2)) for _ in range(_AT_ONCE)
        ]
        self._to.let_go_with(self, *(("cuEventDestroy", event) for pair in self._events for event in pair))

    @override
    def give(self, arrays: Mapping[str, Array]) -> None:
        super().give(arrays)
        self._sources.clear()

    @override
    def call(self, calls: int = 1) -> float:
        return self._run(calls, (), cold=False)

    @override
    def time_on_new(self, calls: int) -> float:
        self.poison()
        for one in self.varied:
            width = np.dtype(one.dtype).itemsize
            if math.prod(one.shape) * width > _MOST_DRAWN and one.name not in self._sources:
                source = GpuArray(one.name, one.shape, one.dtype, self._to)
                source.put(self._given[one.name])
                self._sources[one.name] = source, _Module(drawing(width, self._compiled.arch), self._to)
        elapsed_s = self._run(calls, self.varied, cold=True)
        if self.is_looked_at():
            answer = self.answer()
            self.poison()
            self.call_anew()
            check_alike(answer, self.answer())
        return elapsed_s

    def _run(self, calls: int, varied: Sequence[Argument], *, cold: bool) -> float:
        cu, stream = self._to.use(), self._to.stream
        spent_ms = 0.0
        for first in range(0, calls, _AT_ONCE):
            events = self._events[: calls - first]
            for before, after in events:
                for one in varied:
                    self._renew(cu, one)
                if cold:
                    self._device.enqueue_flush()
                done(cu.cuEventRecord(before, stream))
                done(cu.cuLaunchKernel(self._module.function, *self._sizes, stream, int(self._pointers.ctypes.data), 0))
                done(cu.cuEventRecord(after, stream))
            self._to.wait()
            self._drawn.clear()
            spent_ms += sum(done(cu.cuEventElapsedTime(*pair_)) for pair_ in events)
        return spent_ms * 1e-3

    def _renew(self, cu: Any, one: Argument) -> None:
        """Write new numbers to an input; to a large one numbers that were given, each drawn anew on the GPU."""
        width, size = np.dtype(one.dtype).itemsize, math.prod(one.shape)
        into = self._memory[one.name].address
        if size * width <= _MOST_DRAWN:
            self._drawn.append(drawn(self._random, one))
            done(cu.cuMemcpyHtoDAsync(into, self._drawn[-1].ctypes.data, size * width, self._to.stream))
            return
        (source, module), (threads, most) = self._sources[one.name], _DRAWING
        told = np.array([into, source.address, size, self._random.integers(1 << 63)], np.uint64)
        pointers = told.ctypes.data + 8 * np.arange(len(told), dtype=np.uint64)  # read as the launch is asked for
        sizes = (min(-(-size // threads), most), 1, 1, threads, 1, 1, 0)
        done(cu.cuLaunchKernel(module.function, *sizes, self._to.stream, int(pointers.ctypes.data), 0))

    @override
    def call_anew(self) -> None:
        with self._another_module():
            self.call()

    @contextmanager
    def _another_module(self) -> Iterator[None]:
        kept, self._module = self._module, _Module(self._compiled, self._to)
        try:
            yield
        finally:
            self._module = kept
