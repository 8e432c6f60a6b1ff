"""Batch normalisation with constants is one product and one sum.

TVM writes out the definition: a difference, a quotient, a product and a sum for every element. Where a convolution
comes before, it folds them into its weights; where none does (DenseNet normalises what it has concatenated) they stay.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunery.dialects.metaschedule._tvm import relax, tvm

_LARGEST_MEAN = 1e3  # of what is scaled already: the larger, the less is left of the sum's digits
_STEPS = ("add", "multiply", "divide", "subtract")  # the last one first


def scale_and_shift(module: Any) -> Any:
    """Return the module with `(x - mean) / deviation * scale + shift` as one product and one sum."""
    rewriter = _Scaler(module)
    for name, function in module.functions_items():
        if isinstance(function, relax.Function):
            rewriter.builder_.update_func(name, rewriter.visit_expr(function))
    return rewriter.builder_.get()


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
