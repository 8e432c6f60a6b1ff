"""One place that imports TVM, cheaply and with the settings every process of ours needs.

Import `tvm` only through this module: `from tunery.dialects.metaschedule._tvm import tvm`. Engines preload it.

Half of TVM's ten-second start is the registration of tensor intrinsics: each of 496 decorators walks the stack with
source lines, and three quarters of the rest are for CUDA. Here the stack is walked without source, and only intrinsics
of this kind of processor are registered, and others where a target needs them (all are plain data of the compiler:
which are loaded does not change what a program means).
"""

import gc
import importlib
import inspect
import os
import platform
import sys
from collections.abc import Mapping
from types import FrameType, ModuleType
from typing import Any

from tunery._errors import DialectError
from tunery._processor import granted_cores
from tunery.domain.closed_target import closed

# TVM's thread pool otherwise overrides the process's CPU affinity and lands every process on core 0.
os.environ.setdefault("TVM_BIND_THREADS", "0")
# Its pool is made once, for half the logical processors, and can later be told to use fewer threads, never more.
os.environ.setdefault("TVM_NUM_THREADS", str(granted_cores()))

_INTRINSICS = "tvm.s_tir.tensor_intrin"
_left_out: list[ModuleType] = []
_ELSEWHERE = ["cuda", "rocm", "hexagon", "metal"]
if platform.machine() == "x86_64":
    _ELSEWHERE += ["arm_cpu", "riscv_cpu"]


def _frames(context: int = 1) -> list[inspect.FrameInfo]:  # noqa: ARG001 - the signature of inspect.stack
    frame: FrameType | None = sys._getframe(1)
    found = []
    while frame is not None:
        code = frame.f_code
        found.append(inspect.FrameInfo(frame, code.co_filename, frame.f_lineno, code.co_name, [""], 0))
        frame = frame.f_back
    return found


def _without_others() -> None:
    for name in _ELSEWHERE:
        full = f"{_INTRINSICS}.{name}"
        if full not in sys.modules:
            sys.modules[full] = left = ModuleType(full)
            _left_out.append(left)


def _without_type_checks() -> None:
    """Take the checks of argument types off schedules' methods: a third of what preparing a search took."""
    from tvm.s_tir.schedule import Schedule

    for name, method in list(vars(Schedule).items()):
        if hasattr(method, "__wrapped__"):
            setattr(Schedule, name, method.__wrapped__)


_original, inspect.stack = inspect.stack, _frames
_collecting = gc.isenabled()
gc.disable()  # a million short-lived syntax nodes, none of them cyclic garbage worth looking for
try:
    import tvm

    _without_others()
    import tvm.s_tir.tensor_intrin
    import tvm_ffi
    from tvm import relax
    from tvm.s_tir import meta_schedule

    _without_type_checks()
finally:
    inspect.stack = _original
    if _collecting:
        gc.enable()


def replaceable(owner: Any, name: str, *parameters: str) -> Any:
    """Return a function of another library whose place ours takes, if it takes what we know it to take."""
    function = getattr(owner, name, None)
    if function is None or tuple(inspect.signature(function).parameters)[: len(parameters)] != parameters:
        whose = f"{getattr(owner, '__name__', owner)}.{name}"
        raise DialectError(f"{whose} is not the function that tunery knows; install the versions that tunery requires")
    return function


FIELDS = ("kind", "mcpu", "mtriple", "mattr", "num-cores", "opt-level", "vector-width", "unswitch")
"""What the description of a target holds."""
# Level 2 leaves "am I in the padding?" inside the loop over channels, as masked loads from beyond the array. Where that
# memory is not mapped, each is a fault to be suppressed: kernels two to three times as slow by the luck of an address.
_UNSWITCH = "-enable-nontrivial-unswitch=true"  # docs/decisions/005


def open_target(config: Mapping[str, object]) -> Any:
    """Return TVM's own target object, with the intrinsics registered that MetaSchedule's rules for it name. Nothing but
    this makes one: what it is made of is checked to be data, whoever has written it."""
    fields = closed(config, FIELDS)
    options = {"cl-opt": [_UNSWITCH]} if fields.pop("unswitch", False) else {}
    target = tvm.target.Target({**fields, **options})
    if "arm_cpu" in target.keys:
        _register(f"{_INTRINSICS}.arm_cpu")
    return target


def _register(module: str) -> None:
    """Import a module that was left out for being of another kind of processor; it takes 1.7 s."""
    if sys.modules.get(module) in _left_out:
        del sys.modules[module]
        importlib.import_module(module)


__all__ = ["FIELDS", "meta_schedule", "open_target", "relax", "replaceable", "tvm", "tvm_ffi"]
