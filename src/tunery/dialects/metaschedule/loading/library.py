"""TVM's runtime library, which is all that a compiled network needs: 3 MB, without the compiler's 260 and its LLVM. It
is TVM's where that is installed, so that both may be in one process, in any order; else the one in tunery's wheel."""

import ctypes
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from tunery._errors import UsageError
from tunery._extras import COMPILER
from tunery.dialects import Array
from tunery.domain import TensorSpec

_CPU, _POOLED = 1, 2
_LIBRARY, _VERSION = "libtvm_runtime.so", "VERSION"
_COMPILER, _FFI = "apache-tvm", "apache-tvm-ffi"
_OURS = Path(__file__).parent / "lib"  # `tools/runtime_wheel.py` fills it


def _import_ffi() -> Any:
    """Import `tvm_ffi` without torch, which it takes in where there is one, at the cost of seconds."""
    missing = "torch" not in sys.modules
    if missing:
        sys.modules["torch"] = None  # type: ignore[assignment]  # an import of it fails meanwhile
    try:
        import tvm_ffi
    finally:
        if missing:
            del sys.modules["torch"]
    return tvm_ffi


def runtime_library() -> Path:
    found = importlib.util.find_spec("tvm")
    places = [Path(found.origin or "").parent / "lib"] if found else []
    for place in (*places, _OURS):
        if (place / _LIBRARY).exists():
            return place / _LIBRARY
    raise UsageError(f"there is no {_LIBRARY}, which wheels of tunery hold: {COMPILER}")


def versions() -> dict[str, str]:
    """Return which versions of TVM run a network here: the compiler's, or that of the library in tunery's wheel."""
    try:
        compiler = version(_COMPILER)
    except PackageNotFoundError:
        if not (_OURS / _VERSION).exists():
            raise UsageError(f"there is no {_LIBRARY}, which wheels of tunery hold: {COMPILER}") from None
        compiler = (_OURS / _VERSION).read_text(encoding="utf-8").strip()
    return {_COMPILER: compiler, _FFI: version(_FFI)}


tvm_ffi = _import_ffi()
_runtime = ctypes.PyDLL(str(runtime_library()), ctypes.RTLD_GLOBAL)
_allocate = tvm_ffi.get_global_func("runtime.TVMTensorAllocWithScope")
_fill = tvm_ffi.get_global_func("runtime.TVMTensorCopyFromBytes")
_read = tvm_ffi.get_global_func("runtime.TVMTensorCopyToBytes")
_load_library = tvm_ffi.get_global_func("ffi.Module.load_from_file.so")


def empty(shape: Sequence[int], dtype: str) -> Any:
    return _allocate(tvm_ffi.Shape(tuple(shape)), tvm_ffi.dtype(dtype), tvm_ffi.device("cpu", 0), None)


def tensor(array: Array) -> Any:
    made = empty(array.shape, _name(array.dtype))
    write(made, array)
    return made


def write(destination: Any, array: Array) -> None:
    if array.size:
        whole = np.ascontiguousarray(array)
        _fill(destination, ctypes.c_void_p(whole.ctypes.data), whole.nbytes)


def shared(array: Array) -> Any:
    if array.ctypes.data % ALIGNMENT:
        return tensor(array)
    return tvm_ffi.from_dlpack(array)


def foreign(buffer: object) -> Any:
    return tvm_ffi.from_dlpack(buffer)


class Input:
    """A buffer that compiled code reads, and in whose place it may read a large array where that lies."""

    def __init__(self, spec: TensorSpec) -> None:
        self.tensor = empty(spec.shape, spec.dtype)
        self._array = _memory_of(self.tensor, spec)
        self._address = ctypes.c_void_p.from_address(self.tensor.__chandle__() + _TENSOR_HEADER)
        self._own = self._address.value

    def copy(self, array: Array) -> None:
        self._array[...] = array

    def place(self, array: Array) -> None:
        if array.nbytes >= _LARGE and array.flags.c_contiguous and not array.ctypes.data % ALIGNMENT:
            self._address.value = array.ctypes.data
        else:
            self._array[...] = array

    def reset(self) -> None:
        self._address.value = self._own


_TENSOR_HEADER = 24  # of tvm_ffi's objects (TVMFFIObject in its c_api.h), before a tensor's DLTensor and its address
ALIGNMENT = 64  # that compiled code relies on
_LARGE = 1 << 15  # bytes; to look where an array lies costs more than to copy fewer


def _memory_of(tensor: Any, spec: TensorSpec) -> Array:
    dtype = _numpy(spec.dtype)
    held = (ctypes.c_char * (spec.size * dtype.itemsize)).from_address(tensor.data_ptr())
    return np.frombuffer(held, dtype).reshape(spec.shape)


def address(tensor: Any) -> int:
    return int(tensor.data_ptr())


def view(source: Any) -> Array:
    """Return an array on a tensor's memory, which it keeps; a copy where NumPy alone does not know the dtype."""
    try:
        found: Array = np.from_dlpack(source)
    except (RuntimeError, BufferError):
        return read(source)
    return found


def read(source: Any) -> Array:
    dtype = str(source.dtype)
    made: Array = np.empty(tuple(source.shape), _numpy(dtype))
    if made.size:
        _read(source, ctypes.c_void_p(made.ctypes.data), made.nbytes)
    return made


def _name(dtype: Any) -> str:
    return "bool" if dtype == np.bool_ else str(dtype)


def _numpy(dtype: str) -> Any:
    try:
        return np.dtype(dtype)
    except TypeError:
        import ml_dtypes  # bfloat16 and smaller

        return np.dtype(getattr(ml_dtypes, dtype))


def register(name: str, function: Callable[..., Any]) -> None:
    tvm_ffi.register_global_func(name, function, override=True)


def is_tensor(value: Any) -> bool:
    return isinstance(value, tvm_ffi.Tensor)


class VirtualMachine:
    """Relax's virtual machine on a compiled library."""

    def __init__(self, library: Any) -> None:
        self._module = library["vm_load_executable"]()
        self._module["vm_initialization"](_CPU, 0, _POOLED)

    def parameters(self, function: str) -> int:
        return int(self._module["get_function_arity"](function))

    def bound(self, function: str, arguments: Sequence[Any]) -> Callable[[], Any]:
        self._module["save_function"](function, "bound", 1, *arguments)
        found: Callable[[], Any] = self._module["bound"]
        return found

    def watched(self, function: str, watch: Callable[..., int]) -> Callable[..., Any]:
        self._module["set_instrument"](watch)
        found: Callable[..., Any] = self._module[function]
        return found


def load(path: Path) -> Any:
    """Load a shared library that TVM has made; it is unloaded with the last that uses it."""
    return tvm_ffi.load_module(str(path), keep_module_alive=False)


def load_unnamed(path: Path) -> Any:
    """Load a shared library whose name does not say that it is one; it goes with what is returned."""
    return _load_library(str(path), "so")


def set_threads(library: Any, threads: int) -> None:
    library.get_function("tunery_threads", query_imports=True)(threads)
