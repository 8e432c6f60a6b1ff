"""What follows a convolution along one axis, done on the array with the row: `rules.convolutions` adds that dimension.

The squeeze that takes it away again is no operator of single elements, so nothing behind it was fused with the
convolution.
"""

from typing import Any

from tvm.relax.expr_functor import PyExprMutator, mutator

from tunery.dialects.metaschedule._tvm import relax, tvm
from tunery.dialects.metaschedule.importing.rules.convolutions import ROW

_RANK = 3
_OPERATORS = frozenset(
    tvm.ir.Op.get(f"relax.{name}")
    for name in (
        "abs", "add", "divide", "erf", "exp", "log", "maximum", "minimum", "multiply", "negative", "nn.gelu",
        "nn.gelu_tanh", "nn.leakyrelu", "nn.relu", "nn.silu", "power", "sigmoid", "sqrt", "subtract", "tanh",
    )
)  # fmt: skip
"""Operators of single elements, which change no shape but that of a constant which is broadcast."""


def keep_rows(module: Any) -> Any:
    """Return the module with operators of single elements done before the row is taken away, not behind it."""
    rewriter = _Rows(module)
    for name, function in module.functions_items():
        if isinstance(function, relax.Function):
            rewriter.builder_.update_func(name, rewriter.visit_expr(function))
    done = relax.transform.DeadCodeElimination()(rewriter.builder_.get())
    return relax.transform.CanonicalizeBindings()(done)  # layouts are lost at a variable that is another one


@mutator
class _Rows(PyExprMutator):  # type: ignore[misc] # TVM has no types
    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if call.op == tvm.ir.Op.get("relax.expand_dims") and [int(axis) for axis in call.attrs.axis] == [ROW]:
            row = self._row_of(call.args[0])
            return call if row is None else row
        if call.op not in _OPERATORS or all(self._row_of(one) is None for one in call.args):
            return call
        operands = [self._with_row(one) for one in call.args]
        if None in operands:
            return call
        wide = self.builder_.emit(relax.Call(call.op, operands, call.attrs))
        return relax.op.squeeze(wide, [ROW])

    def _row_of(self, value: Any) -> Any:
        bound = self.lookup_binding(value) if isinstance(value, relax.Var) else value
        if not isinstance(bound, relax.Call) or bound.op != tvm.ir.Op.get("relax.squeeze"):
            return None
        axes = [int(axis) for axis in bound.attrs.axis or ()]
        return bound.args[0] if axes == [ROW] and int(bound.args[0].ty.ndim) == _RANK + 1 else None

    def _with_row(self, operand: Any) -> Any:
        """Return an operand with a row: what it was taken from, or a constant; None of any other."""
        if not isinstance(operand, tvm.ir.GenericConst):
            return self._row_of(operand)
        array = operand.value.numpy()
        if array.ndim <= 1:
            return operand  # it lies along the last dimension, or has none
        if array.ndim > _RANK:
            return None
        *others, last = [1] * (_RANK - array.ndim) + list(array.shape)
        return relax.const(array.reshape(*others, 1, last), str(operand.ty.dtype))
