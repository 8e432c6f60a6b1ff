"""Imports TVM with its tensor intrinsics, cheaply, and does nothing else: the module a zygote loads before it forks.

`tvm.s_tir.tensor_intrin` calls `inspect.stack()` at every one of its thousands of script lines, and that reads source
files: 85 % of its ten seconds. Only the frames are used, so a walk over them does, in 1.6 s.
"""

import inspect
import sys


def _frames(context: int = 1) -> list[inspect.FrameInfo]:  # noqa: ARG001 - the signature of inspect.stack
    frame, found = sys._getframe(1), []
    current = frame
    while current is not None:
        code = current.f_code
        found.append(inspect.FrameInfo(current, code.co_filename, current.f_lineno, code.co_name, [""], 0))
        current = current.f_back  # type: ignore[assignment]
    return found


_stack = inspect.stack
inspect.stack = _frames
try:
    import tvm
    import tvm.s_tir.tensor_intrin  # noqa: F401
finally:
    inspect.stack = _stack
