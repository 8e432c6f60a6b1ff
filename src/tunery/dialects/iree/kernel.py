"""IREE's runtime in this process: modules, the arrays that they are given, and what they make of them."""

import importlib
import importlib.util
import sys
import time
import weakref
from collections.abc import Sequence
from importlib.machinery import PathFinder
from typing import Any

import numpy as np
from typing_extensions import override

from tunery._environments import check_environment, site_packages
from tunery._errors import DialectError
from tunery.devices import Device
from tunery.dialects import Array, Kernel
from tunery.dialects.iree.tools import NAME, REQUIREMENTS
from tunery.domain import TensorSpec

_ELEMENTS = {"float32": "FLOAT_32", "float64": "FLOAT_64", "float16": "FLOAT_16", "bfloat16": "BFLOAT_16",
             "bool": "BOOL_8", "int8": "SINT_8", "int16": "SINT_16", "int32": "SINT_32",
             "int64": "SINT_64", "uint8": "UINT_8", "uint16": "UINT_16", "uint32": "UINT_32",
             "uint64": "UINT_64"}  # fmt: skip
_devices: dict[int, Any] = {}


def runtime() -> Any:
    """Return `iree.runtime`: this Python's, or that of the dialect's environment, of which nothing else is imported."""
    if "iree.runtime" not in sys.modules and importlib.util.find_spec("iree") is None:
        check_environment(NAME, REQUIREMENTS)
        spec = PathFinder.find_spec("iree", [str(site_packages(NAME))])
        assert spec is not None, "an environment without what was installed"
        sys.modules["iree"] = importlib.util.module_from_spec(spec)
    return importlib.import_module("iree.runtime")


def _device(threads: int) -> Any:
    """Return IREE's device of this process with so many threads, which it starts for good."""
    if threads not in _devices:
        iree = runtime()
        iree.flags.parse_flags(f"--task_topology_group_count={threads}")
        if threads > 1:
            _devices[threads] = iree.get_driver("local-task").create_default_device()
        else:  # this thread runs each dispatch itself: nothing is handed over
            # Unlike the other, this device keeps no memory; glibc has blocks of over 32 MB cleared for each call.
            _devices[threads] = iree.get_driver("local-sync").create_default_device(allocators=["caching"])
    return _devices[threads]


class Module:
    """A compiled module, loaded; `function` is called on arrays of its own."""

    def __init__(self, binary: bytes, function: str, threads: int) -> None:
        iree = runtime()
        self._device = _device(threads)
        instance = iree.VmInstance()
        try:
            module = iree.VmModule.copy_buffer(instance, binary)
            self._context = iree.VmContext(instance, [iree.create_hal_module(instance, self._device), module])
            self._function = module.lookup_function(function)
        except (RuntimeError, ValueError) as error:
            raise DialectError(f"the built module cannot be loaded: {str(error)[:200]}") from error
        if self._function is None:
            raise DialectError(f"the built module has no function {function}")
        self.arrays: list[Array] = []
        """What was given, as it is now."""
        # What lies in a device must go before the device does, at the end of the process as well.
        self._held: list[Any] = []
        weakref.finalize(self, _end, self._device, self.arrays, self._held)

    def give(self, arrays: Sequence[Array]) -> None:
        iree = runtime()
        if strange := sorted({str(array.dtype) for array in arrays} - _ELEMENTS.keys()):
            raise DialectError(f"IREE takes no arrays of {strange[0]}")
        _let_go(self.arrays, self._held)
        arguments = iree.VmVariantList(len(arrays))
        for array in arrays:
            plain = np.ascontiguousarray(array).reshape(array.shape)
            if array.dtype.kind == "V":  # what NumPy does not know crosses as integers of its size
                plain = plain.view(f"u{array.dtype.itemsize}")
            view = self._device.allocator.allocate_buffer_copy(
                memory_type=iree.MemoryType.DEVICE_LOCAL | iree.MemoryType.HOST_VISIBLE,
                allowed_usage=iree.BufferUsage.DEFAULT | iree.BufferUsage.MAPPING,
                device=self._device,
                buffer=plain,
                element_type=getattr(iree.HalElementType, _ELEMENTS[str(array.dtype)]),
            )
            arguments.push_ref(view)
            self._held.append(view)
            self.arrays.append(_mapped(view, array.shape, array.dtype))
        self._held += [None, arguments]

    def call(self, calls: int = 1) -> float:
        make, invoke, function, arguments = (
            runtime().VmVariantList,
            self._context.invoke,
            self._function,
            self._held[-1],
        )
        self._held[-2] = None
        try:
            start = time.perf_counter_ns()
            for _ in range(calls):
                returned = make(1)
                invoke(function, arguments, returned)
            elapsed = time.perf_counter_ns() - start
        except (RuntimeError, ValueError) as error:
            raise DialectError(f"the module fails: {str(error)[:200]}") from error
        self._held[-2] = returned
        return max(elapsed * 1e-9, 1e-9)

    def results(self, specs: Sequence[TensorSpec]) -> list[Array]:
        iree, returned = runtime(), self._held[-2]
        views = (returned.get_as_object(place, iree.HalBufferView) for place in range(len(specs)))
        return [
            np.array(_mapped(view, view.shape, numpy_dtype(spec.dtype)))
            for view, spec in zip(views, specs, strict=True)
        ]


class IreeKernel(Kernel):
    """A built dispatch: results go to buffers that it was given, so that one that writes too little is seen."""

    def __init__(self, module: Module, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
        self._module, self._inputs, self._outputs = module, inputs, outputs

    @override
    def bind(self, inputs: Sequence[Array]) -> None:
        made = [np.zeros(spec.shape, numpy_dtype(spec.dtype)) for spec in self._outputs]
        self._module.give([*inputs, *made])
        self.poison()

    @override
    def poison(self) -> None:
        for array in self._module.arrays[len(self._inputs) :]:
            poison: Any = np.nan
            if array.dtype.kind in "biu":
                poison = False if array.dtype.kind == "b" else np.iinfo(array.dtype.name).min
            array.fill(poison)

    @override
    def run(self) -> None:
        self._module.call()

    @override
    def time(self, calls: int) -> float:
        return self._module.call(calls)

    @override
    def outputs(self) -> list[Array]:
        return [array.copy() for array in self._module.arrays[len(self._inputs) :]]


def check_device(device: Device) -> None:
    if device.kind != "cpu":
        raise DialectError(f"a kernel of the dialect {NAME} does not run on a device of kind {device.kind!r}")


def numpy_dtype(name: str) -> Any:
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))


def _mapped(view: Any, shape: Sequence[int], dtype: Any) -> Array:
    plain = np.dtype(f"u{dtype.itemsize}") if dtype.kind == "V" else dtype
    array: Array = view.map().asarray(list(shape), plain)
    return array.view(dtype)


def _end(device: Any, *lists: list[Any]) -> None:
    _let_go(*lists)
    device.allocator.trim()  # what the calls have left


def _let_go(*lists: list[Any]) -> None:
    for each in lists:
        while each:
            each.pop()
