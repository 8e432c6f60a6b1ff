"""One place that imports TVM, cheaply and with the settings every process of ours needs.

Import `tvm` only through this module: `from tunery.dialects.metaschedule._tvm import tvm`.
"""

import inspect
import os
import sys
from types import FrameType

# TVM's thread pool otherwise overrides the process's CPU affinity and lands every process on core 0.
os.environ.setdefault("TVM_BIND_THREADS", "0")


def _frames(context: int = 1) -> list[inspect.FrameInfo]:  # noqa: ARG001 - the signature of inspect.stack
    """Walk the stack without reading source files."""
    frame: FrameType | None = sys._getframe(1)
    found = []
    while frame is not None:
        code = frame.f_code
        found.append(inspect.FrameInfo(frame, code.co_filename, frame.f_lineno, code.co_name, [""], 0))
        frame = frame.f_back
    return found


# The tensor intrinsics call inspect.stack() 496 times; reading source lines there is 85 % of a 10 s import.
_original, inspect.stack = inspect.stack, _frames
try:
    import tvm
    import tvm.s_tir.tensor_intrin
    import tvm_ffi
    from tvm import relax
    from tvm.s_tir import meta_schedule
finally:
    inspect.stack = _original

__all__ = ["meta_schedule", "relax", "tvm", "tvm_ffi"]
