"""Kernels in OpenCL: built from the author's source under its parameters, run on a queue, timed by its events."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from typing_extensions import override

from tunery._errors import DialectError, brief
from tunery.devices.opencl.platform import OpenClQueue
from tunery.dialects import Array
from tunery.dialects.configurations.expressions import Value
from tunery.dialects.kernels.buffers import GuardedArray
from tunery.dialects.kernels.gcc import macros
from tunery.dialects.kernels.kernel import QueuedKernel
from tunery.dialects.kernels.launched.sizes import Sizes, sizes
from tunery.dialects.kernels.specification import Argument, KernelSpecification

_TYPES = {
    "float16": "half", "float32": "float", "float64": "double", "int8": "char", "uint8": "uchar", "int16": "short",
    "uint16": "ushort", "int32": "int", "uint32": "uint", "int64": "long", "uint64": "ulong",
}  # fmt: skip
_ZONE = 4096  # bytes on each side of an array that the device sees, and nobody may change
_AT_ONCE = 64  # calls in the queue


@dataclass(frozen=True)
class OpenClProgram:
    """A program that compiles, and how it is launched."""

    source: str
    function: str
    options: tuple[str, ...]
    launch: Sizes


def build(
    to: OpenClQueue, kernel: KernelSpecification, source: str, function: str, configuration: Mapping[str, Value]
) -> "OpenClProgram":
    """Compile a program for the device, and return what makes it again: the same each time, as a binary is not."""
    cl, launch = to.cl, sizes(kernel, configuration)
    numbered = f"{macros(kernel.problem, configuration)}#line 1\n{source}\n"
    options = [*kernel.flags, "-cl-kernel-arg-info", "-w"]
    try:
        program = to.call(lambda: cl.Program(to.context, numbered).build(options=options))
        names = {one.function_name: one for one in program.all_kernels()}
    except cl.Error as error:
        raise DialectError(f"OpenCL refuses {function}: {_first_error(str(error))}") from error
    if function not in names:
        raise DialectError(f"OpenCL finds no kernel {function} in the source, only {sorted(names)}")
    _check_arguments(cl, names[function], kernel.arguments)
    _check_limits(to, names[function], launch)
    return OpenClProgram(numbered, function, tuple(options), launch)


def _check_arguments(cl: Any, built: Any, arguments: Sequence[Argument]) -> None:
    if built.num_args != len(arguments):
        raise DialectError(
            f"OpenCL's {built.function_name} has {built.num_args} arguments, and the kernel file {len(arguments)}"
        )
    for place, one in enumerate(arguments):
        wanted = _TYPES[one.dtype] + ("" if one.scalar else "*")
        found = built.get_arg_info(place, cl.kernel_arg_info.TYPE_NAME).replace(" ", "")
        if found != wanted:
            raise DialectError(f"OpenCL's {built.function_name} takes {found} as {one.name}, and should take {wanted}")


def _check_limits(to: OpenClQueue, built: Any, launch: Sizes) -> None:
    info, limits = to.cl.kernel_work_group_info, to.device
    local = built.get_work_group_info(info.LOCAL_MEM_SIZE, limits)
    if local > limits.local_mem_size:
        raise DialectError(f"it takes {local} bytes of local memory, and {limits.local_mem_size} is the device's limit")
    most = min(built.get_work_group_info(info.WORK_GROUP_SIZE, limits), limits.max_work_group_size)
    if launch.group and math.prod(launch.group) > most:
        raise DialectError(
            f"a work group of {math.prod(launch.group)} items is too large for the device, whose limit is {most}"
        )


def _first_error(text: str) -> str:
    lines = [line for line in text.splitlines() if "error:" in line]
    line = (lines or text.splitlines() or ["it says nothing"])[0]
    return " ".join(line.partition(".cl:")[2].split() or line.split())[:240]


def _loaded(to: OpenClQueue, program: OpenClProgram) -> Any:
    """Return the kernel of a program; the device's driver makes its code for these sizes at the first call."""
    try:
        built = to.call(lambda: to.cl.Program(to.context, program.source).build(options=list(program.options)))
        return to.cl.Kernel(built, program.function)
    except to.cl.Error as error:
        raise DialectError(f"the built kernel cannot be loaded: {_first_error(str(error))}") from error


class OpenClKernel(QueuedKernel):
    """A kernel on a device's queue, its buffers between zones that the device sees too.

    While nothing runs the buffers are mapped: the host's arrays hold what they hold. Where the device computes in the
    host's memory, as PoCL does, there are pages beyond the zones that nobody may touch.
    """

    def __init__(self, kernel: KernelSpecification, program: OpenClProgram, to: OpenClQueue) -> None:
        self._to, self._launch, self._function = to, program.launch, _loaded(to, program)
        cl, aligned = to.cl, max(64, to.device.mem_base_addr_align // 8)
        arrays = [one for one in kernel.arguments if not one.scalar]
        self._memory = {
            one.name: GuardedArray(one.name, one.shape, one.dtype, aligned=aligned, zone=_ZONE) for one in arrays
        }
        super().__init__(kernel, self._memory)
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
        self._whole: dict[str, Any] = {}
        self._parts: dict[str, Any] = {}
        self._maps: list[Any] = []
        self._shuffled: dict[str, Any] = {}
        try:
            for name, one in self._memory.items():
                self._whole[name] = cl.Buffer(to.context, flags, hostbuf=one.inside)
                self._parts[name] = self._whole[name].get_sub_region(one.offset, one.array.nbytes)
            self._function.set_args(*(
                self._parts[one.name] if one.value is None else np.dtype(one.dtype).type(one.value)
                for one in kernel.arguments
            ))  # fmt: skip
        except cl.Error as error:
            raise DialectError(f"the device has no room for the kernel's arguments: {error}") from error
        self._map()
        self._is_ready = False

    def __del__(self) -> None:
        """Let the buffers go before the host's arrays, where a device with memory of its own writes what they held."""
        if hasattr(self, "_maps"):
            self._unmap()
            for one in (*self._parts.values(), *self._whole.values()):
                one.release()

    def _map(self) -> None:
        cl = self._to.cl
        both = cl.map_flags.READ | cl.map_flags.WRITE
        for name, whole in self._whole.items():
            shape = self._memory[name].inside.shape
            mapped, _ = cl.enqueue_map_buffer(self._to.queue, whole, both, 0, shape, np.uint8, is_blocking=True)
            self._maps.append(mapped)

    def _unmap(self) -> None:
        for mapped in self._maps:
            mapped.base.release(self._to.queue)
        self._maps.clear()
        self._to.queue.finish()

    @override
    def give(self, arrays: Mapping[str, Array]) -> None:
        super().give(arrays)
        self._shuffled.clear()
        if not self._is_ready:
            self._is_ready = True
            self.call()  # the driver makes the code, PoCL in 70 to 300 ms: a race would take the kernel for a slow one

    @override
    def call(self, calls: int = 1) -> float:
        return self._called(calls, ())

    @override
    def call_on_new(self, calls: int) -> float:
        return self._called(calls, self.varied)

    def _called(self, calls: int, varied: Sequence[Argument]) -> float:
        self._unmap()
        try:
            return self._to.call(lambda: self._run(calls, varied))
        except self._to.cl.Error as error:
            raise DialectError(f"the device does not run the kernel: {brief(error)}") from error
        finally:
            self._map()

    def _run(self, calls: int, varied: Sequence[Argument]) -> float:
        cl, queue = self._to.cl, self._to.queue
        for one in varied:
            if one.name not in self._shuffled:
                values = self._random.permutation(self._given[one.name].reshape(-1))
                flags = cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR
                self._shuffled[one.name] = cl.Buffer(self._to.context, flags, hostbuf=values)
        spent_ns = 0
        for first in range(0, calls, _AT_ONCE):
            events = []
            for _ in range(min(calls - first, _AT_ONCE)):
                for one in varied:
                    self._renew(one)
                events.append(cl.enqueue_nd_range_kernel(queue, self._function, self._launch.whole, self._launch.group))
            queue.finish()
            spent_ns += sum(event.profile.end - event.profile.start for event in events)
        return spent_ns * 1e-9

    def _renew(self, one: Argument) -> None:
        """Write numbers to an input that were given, in an order that nobody knows."""
        size, into, of = math.prod(one.shape), self._parts[one.name], self._shuffled[one.name]
        width = np.dtype(one.dtype).itemsize
        begin = int(self._random.integers(size)) * width
        for source, target, count in ((begin, 0, size * width - begin), (0, size * width - begin, begin)):
            if count:
                self._to.cl.enqueue_copy(
                    self._to.queue, into, of, byte_count=count, src_offset=source, dst_offset=target
                )

    @override
    def call_anew(self) -> None:
        buffers = [self._buffers[one.name] for one in self.varied]
        kept = [one.array.copy() for one in buffers]
        for one, array in zip(buffers, kept, strict=True):
            one.put(np.roll(array.reshape(-1), array.size // 2 + 1).reshape(array.shape))
        self.call()  # what it may remember now is of another input
        for one, array in zip(buffers, kept, strict=True):
            one.put(array)
        self.poison()
        self.call()
