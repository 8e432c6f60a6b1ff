"""What PoCL, or another driver of OpenCL, does with a user's kernel, in the processes that `_child` starts. `compile`
reads sources and never runs one, so it may go on with the next. `link` has PoCL make a kernel's library for a launch,
which takes its linker. PoCL then loads the library: so the linker is told to require another one, which is not there;
`run` has it at hand. Drivers of GPUs make a kernel's code by themselves, and open files of devices: they are kept to
files, and to no list of system calls."""

import ctypes
import json
import os
import resource
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyopencl as cl

if TYPE_CHECKING:
    from tunery.dialects.kernels import _child
else:
    import _child  # this process has no more of our code

_REQUIRED = "libtunery-runs.so"
_VENDORS = "/etc/OpenCL"
_CPU_S, _FILE_BYTES = 100, 256 << 20  # of one process that links


def serve(sandbox: ModuleType) -> "_child.Serve":
    for driver in Path(_VENDORS, "vendors").glob("pocl*.icd"):
        with suppress(OSError):
            ctypes.CDLL(driver.read_text().strip())  # it takes half a second to load, and starts no thread yet

    def begin(words: Sequence[str], files: Sequence[int], channel: int) -> None:
        threads, arrays, sets, task, number, kept, *readable = words
        os.environ["POCL_MAX_PTHREAD_COUNT"] = threads
        cache = Path(os.environ["POCL_CACHE_DIR"])

        def enter(*groups: int, write: bool = True) -> None:
            if kept:
                sandbox.enter([_VENDORS, cache.parent, *readable], [cache] if write else [], *groups)
            elif not write:
                sandbox.keep_to_files([_VENDORS, cache.parent, *readable], [cache])
            else:  # a driver of a GPU takes addresses for all of its memory
                resource.setrlimit(resource.RLIMIT_AS, (resource.getrlimit(resource.RLIMIT_AS)[1],) * 2)

        if task == "run":
            _run(enter, sandbox.FILES, channel, int(number), _child.Arguments(arrays, sets, files))
            return
        os.dup2(files[0], 2)
        if task == "link":
            resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, _CPU_S))
            resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_BYTES, _FILE_BYTES))
        enter(sandbox.FILES, sandbox.PROGRAMS)
        device = _Device(int(number))
        if not kept:
            enter(write=False)
        if task == "link":
            _link(device, channel)
        else:
            _compile(device, channel, cache if kept else None)

    return begin


class _Device:
    def __init__(self, number: int) -> None:
        self.device = [one for platform in cl.get_platforms() for one in platform.get_devices()][number]
        self.context = cl.Context([self.device])
        self.queue = cl.CommandQueue(self.context)

    def build(self, program: dict[str, Any]) -> Any:
        source = Path(program["path"]).read_text(encoding="utf-8")
        return cl.Program(self.context, source).build(options=program["options"])

    def build_again(self, program: dict[str, Any]) -> Any:
        """Build a program from what the compiler has kept of it, which takes a tenth of the time, or anew."""
        try:
            kept = _binary(program, Path(os.environ["POCL_CACHE_DIR"])).read_bytes()
        except FileNotFoundError:
            return self.build(program)
        return cl.Program(self.context, [self.device], [kept]).build()


def _binary(program: dict[str, Any], cache: Path) -> Path:
    return cache / f"{Path(program['path']).stem}.bin"


def _keep(built: Any, program: dict[str, Any], names: Sequence[str], cache: Path) -> None:
    """Keep what PoCL has made of a program's source. It would add code for groups of any size, which takes long and is
    never called, and load that: it finds an empty library in the place of each."""
    for found in cache.glob("*/*/program.bc"):
        for name in names:
            if not os.path.lexists(unused := found.parent / name / "0-0-0" / f"{name}.so"):
                unused.parent.mkdir(parents=True, exist_ok=True)
                symbol = f"--defsym=_pocl_kernel_{name}_workgroup=1"
                subprocess.run(
                    [cache.parent / "linker", "-shared", symbol, "-o", unused, cache.parent / "something.o"], check=True
                )
    _binary(program, cache).write_bytes(built.get_info(cl.program_info.BINARIES)[0])


def _compile(to: _Device, channel: int, cache: Path | None) -> None:
    info = cl.kernel_work_group_info
    while order := os.read(channel, 1 << 16):
        program = json.loads(order)
        try:
            built = to.build(program)
            kernels = {one.function_name: one for one in built.all_kernels()}
        except cl.Error as error:
            said: dict[str, Any] = {"log": str(error)[-20_000:]}
        else:
            said = {"functions": sorted(kernels)}
            if (kernel := kernels.get(program["function"])) is not None:
                said |= {
                    "types": [kernel.get_arg_info(n, cl.kernel_arg_info.TYPE_NAME) for n in range(kernel.num_args)],
                    "local": kernel.get_work_group_info(info.LOCAL_MEM_SIZE, to.device),
                    "most_local": to.device.local_mem_size,
                    "most": min(kernel.get_work_group_info(info.WORK_GROUP_SIZE, to.device),
                                to.device.max_work_group_size),
                }  # fmt: skip
                if cache is not None:
                    _keep(built, program, [*kernels], cache)
        os.write(channel, json.dumps(said).encode())


def _link(to: _Device, channel: int) -> None:
    """Have PoCL make what it will find again where the same is launched; the process ends as that cannot be loaded."""
    program = json.loads(os.read(channel, 1 << 16))
    kernel = cl.Kernel(to.build_again(program), program["function"])
    nothing = cl.Buffer(to.context, cl.mem_flags.READ_WRITE, 1 << 16)
    kernel.set_args(*(nothing if value is None else np.dtype(kind).type(value) for kind, value in program["arguments"]))
    cl.enqueue_nd_range_kernel(to.queue, kernel, program["whole"], program["group"])
    to.queue.finish()


def _run(enter: "Callable[..., None]", group: int, channel: int, number: int, arguments: "_child.Arguments") -> None:
    """Load a kernel, give up the right to write what the driver needed to write, and call it as often as is said."""
    enter(group)
    with suppress(OSError):
        ctypes.CDLL(str(Path(os.environ["POCL_CACHE_DIR"]).parent / _REQUIRED))
    program = json.loads(os.read(channel, 1 << 16))
    try:
        kernel = _Kernel(_Device(number), program, arguments)
    except cl.Error as error:
        os.write(channel, str(error).encode()[:500])
        return
    enter(write=False)
    _child.answer(channel, kernel.order)


class _Kernel:
    """A kernel and its buffers, which are mapped while nothing runs: the host's memory holds what they hold."""

    def __init__(self, to: _Device, program: dict[str, Any], arguments: _child.Arguments) -> None:
        self._to, self._program, self._arguments = to, program, arguments
        self._kernel = cl.Kernel(to.build_again(program), program["function"])
        self._gate, self._maps, self._parts = cl.UserEvent(to.context), list[Any](), list[Any]()
        self._sets = self._buffer(np.frombuffer(arguments.sets, np.uint8))
        self._whole: list[Any] = [
            one and self._buffer(np.ctypeslib.as_array((ctypes.c_uint8 * one.size).from_address(one.address)))
            for one in arguments.guarded
        ]
        self._map()

    def _buffer(self, memory: "np.ndarray[Any, np.dtype[np.uint8]]") -> Any:
        return cl.Buffer(self._to.context, cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR, hostbuf=memory)

    def order(self, kind: int, calls: int, first: int) -> float:
        if kind == _child.PREPARE:
            self._prepare(calls, first)
        elif kind == _child.READ:
            self._map()
        else:
            start = time.perf_counter()
            self._gate.set_status(cl.command_execution_status.COMPLETE)
            self._to.queue.finish()
            return time.perf_counter() - start
        return 0.0

    def _prepare(self, calls: int, first: int) -> None:
        if first != _child.GUARDED:
            self._arguments.have_at_hand(first + calls)
        for mapped in self._maps:
            mapped.base.release(self._to.queue)
        self._maps.clear()
        self._to.queue.finish()
        self._gate = cl.UserEvent(self._to.context)
        self._parts.clear()
        self._set(first)
        for call in range(calls):
            if call and first != _child.GUARDED:
                self._set(first + call)
            cl.enqueue_nd_range_kernel(
                self._to.queue, self._kernel, self._program["whole"], self._program["group"],
                wait_for=None if call else [self._gate],
            )  # fmt: skip
        self._to.queue.flush()

    def _set(self, first: int) -> None:
        arguments = self._arguments
        for number, (kind, value) in enumerate(self._program["arguments"]):
            whole, array = self._whole[number], arguments.guarded[number]
            if array is None:
                self._kernel.set_arg(number, np.dtype(kind).type(value))
                continue
            size, place = self._program["bytes"][number], arguments.places[number]
            if first == _child.GUARDED or place is None:
                part = whole.get_sub_region(array.start, size)
            else:
                part = self._sets.get_sub_region(first * arguments.stride + place, size)
            self._parts.append(part)
            self._kernel.set_arg(number, part)

    def _map(self) -> None:
        flags = cl.map_flags.READ | cl.map_flags.WRITE
        for whole in (self._sets, *filter(None, self._whole)):
            mapped, _ = cl.enqueue_map_buffer(self._to.queue, whole, flags, 0, (whole.size,), np.uint8)
            self._maps.append(mapped)
