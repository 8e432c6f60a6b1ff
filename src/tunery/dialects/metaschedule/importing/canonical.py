"""Operators in the forms that layout conversion, fusion and values need.

`ConvertLayout` cannot carry a layout through `relax.clip` (TVM's HardSigmoid), and fails as a whole at an axis of a
squeeze that counts from the end. A scalar of 0 becomes part of a program, and `x * 0` becomes 0 there, also where x is
infinite or NaN, and `x + 0` becomes x, also where x is -0: as an array it is read.

Of a batch normalisation with constants TVM writes out the definition: a difference, a quotient, a product and a sum for
every element. Where a convolution comes before, it folds them into its weights; where none does (DenseNet normalises
what it has concatenated) one product and one sum remain.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunery.dialects.metaschedule._tvm import relax, tvm
from tunery.dialects.metaschedule.importing.rules.common import rewritten


def restore_clips(module: Any) -> Any:
    """Return the module with each clip as a maximum and a minimum, axes from the front, and zeros as arrays."""
    return relax.transform.DeadCodeElimination()(rewritten(_Clips(module), module))


@mutator
class _Clips(PyExprMutator):  # type: ignore[misc] # TVM has no types
    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self._clip, self._squeeze = (tvm.ir.Op.get(f"relax.{name}") for name in ("clip", "squeeze"))
        self._folded = [tvm.ir.Op.get(f"relax.{name}") for name in ("add", "multiply", "divide")]

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if call.op == self._clip:
            return self._bounded(*call.args)
        if call.op == self._squeeze and call.attrs.axis is not None:
            return _from_the_front(call)
        if call.op in self._folded and any(_is_zero(one) for one in call.args):
            return self._of_arrays(call)
        return call

    def _bounded(self, data: Any, low: Any, high: Any) -> Any:
        dtype = str(data.ty.dtype)
        above = self.builder_.emit(relax.op.maximum(data, relax.const(low.value, dtype)))
        return relax.op.minimum(above, relax.const(high.value, dtype))

    def _of_arrays(self, call: Any) -> Any:
        dtype = str(call.ty.dtype.dtype)
        operands = [relax.const(one.value.numpy().reshape(1), dtype) if _is_zero(one) else one for one in call.args]
        made = self.builder_.emit(relax.Call(call.op, operands, call.attrs))
        return relax.op.squeeze(made, [0]) if int(call.ty.ndim) == 0 else made


def _is_zero(operand: Any) -> bool:
    if not isinstance(operand, tvm.ir.GenericConst) or "float" not in str(operand.ty.dtype):
        return False
    value = operand.value.numpy()
    return value.ndim == 0 and bool(value == 0)


def _from_the_front(squeeze: Any) -> Any:
    data, axes = squeeze.args[0], [int(axis) for axis in squeeze.attrs.axis]
    rank = int(getattr(data.ty, "ndim", -1))
    return relax.op.squeeze(data, [axis % rank for axis in axes]) if rank > 0 and min(axes, default=0) < 0 else squeeze


_LARGEST_MEAN = 1e3  # of what is scaled already: the larger, the less is left of the sum's digits
_STEPS = ("add", "multiply", "divide", "subtract")  # the last one first


def scale_and_shift(module: Any) -> Any:
    """Return the module with `(x - mean) / deviation * scale + shift` as one product and one sum."""
    return rewritten(_Scaler(module), module)


@mutator
class _Scaler(PyExprMutator):  # type: ignore[misc] # TVM has no types
    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        value, constants = call, list[npt.NDArray[np.float64]]()
        for step in _STEPS:
            value = self.lookup_binding(value) if isinstance(value, relax.Var) else value
            if not isinstance(value, relax.Call) or value.op != tvm.ir.Op.get(f"relax.{step}"):
                return call
            constant = value.args[1]
            if not isinstance(constant, tvm.ir.GenericConst) or str(constant.ty.dtype) != "float32":
                return call
            constants.append(constant.value.numpy().astype(np.float64))
            value = value.args[0]
        shift, scale, deviation, mean = constants
        factor = scale / deviation
        rest = shift - mean * factor
        if not (np.isfinite(rest).all() and (np.abs(mean * factor) <= _LARGEST_MEAN).all()):
            return call
        product = self.builder_.emit(relax.op.multiply(value, _constant(factor)))
        return relax.op.add(product, _constant(rest))


def _constant(array: npt.NDArray[np.float64]) -> Any:
    return relax.const(array.astype(np.float32), "float32")
