"""Constants that are only moved or selected, folded with NumPy.

`FoldConstant` compiles a program for every constant expression it meets. Most of these reorder a weight for the layout
that `ConvertLayout` chose, or guard a Clip's bound against NaN: 10 of the 12 s in which MobileNetV2 was lowered.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunery.dialects.metaschedule._tvm import relax, tvm


def move_constants(module: Any) -> Any:
    """Return the module with every transposition, reshape, NaN test or selection of constants as a constant."""
    rewriter = _Folder(module)
    for name, function in module.functions_items():
        if isinstance(function, relax.Function):
            rewriter.builder_.update_func(name, rewriter.visit_expr(function))
    return rewriter.builder_.get()


@mutator
class _Folder(PyExprMutator):  # type: ignore[misc] # TVM has no types
    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self._transposition = tvm.ir.Op.get("relax.permute_dims")
        self._nan_test, self._selection = tvm.ir.Op.get("relax.isnan"), tvm.ir.Op.get("relax.where")
        self._shapings = [tvm.ir.Op.get(f"relax.{name}") for name in ("reshape", "expand_dims", "squeeze", "flatten")]

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        shape = _static(call)
        if shape is None:
            return call
        data = self._computed(call)
        return call if data is None else relax.const(np.array(data.reshape(shape), order="C"), str(call.ty.dtype))

    def _computed(self, call: Any) -> npt.NDArray[Any] | None:
        """Return what a call computes, None if it is another operator or not all of its arguments are constant."""
        if call.op in self._shapings:
            return self._data(call.args[0])
        if call.op not in (self._transposition, self._nan_test, self._selection):
            return None
        arrays = [self._data(argument) for argument in call.args]
        given = [array for array in arrays if array is not None]
        if len(given) < len(arrays):
            return None
        if call.op == self._nan_test:
            return np.asarray(np.isnan(given[0]))
        if call.op == self._selection:
            return np.where(given[0], given[1], given[2])
        axes = call.attrs.axes
        return np.transpose(given[0], None if axes is None else [int(axis) for axis in axes])

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
