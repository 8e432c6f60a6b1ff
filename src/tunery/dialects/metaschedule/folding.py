"""Weights that are only moved, folded with NumPy.

`FoldConstant` compiles a program for every constant expression it meets. Most of these reorder a weight for the layout
that `ConvertLayout` chose, one program per shape: 10 of the 12 s in which MobileNetV2 was lowered.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunery.dialects.metaschedule._tvm import relax, tvm


def move_constants(module: Any) -> Any:
    """Return the module with every transposition or reshape of a constant as a constant."""
    rewriter = _Movements(module)
    for name, function in module.functions_items():
        if isinstance(function, relax.Function):
            rewriter.builder_.update_func(name, rewriter.visit_expr(function))
    return rewriter.builder_.get()


@mutator
class _Movements(PyExprMutator):  # type: ignore[misc] # TVM has no types
    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self._transposition = tvm.ir.Op.get("relax.permute_dims")
        self._shapings = [tvm.ir.Op.get(f"relax.{name}") for name in ("reshape", "expand_dims", "squeeze", "flatten")]

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if call.op != self._transposition and call.op not in self._shapings:
            return call
        shape, data = _static(call), self._data(call.args[0])
        if shape is None or data is None:
            return call
        if call.op == self._transposition:
            axes = call.attrs.axes
            data = np.transpose(data, None if axes is None else [int(axis) for axis in axes])
        return relax.const(np.ascontiguousarray(data.reshape(shape)), str(call.ty.dtype))

    def _data(self, argument: Any) -> npt.NDArray[Any] | None:
        """Return the array an argument stands for, None if it is computed."""
        if isinstance(argument, relax.Var):
            argument = self.lookup_binding(argument)
        if not isinstance(argument, tvm.ir.GenericConst):
            return None
        data: npt.NDArray[Any] = argument.value.numpy()
        return data


def _static(call: Any) -> list[int] | None:
    try:
        return [int(size) for size in call.ty.shape]
    except (TypeError, ValueError, AttributeError):
        return None
