"""ONNX's Clip as operators that layout conversion understands.

TVM 0.27's importer writes each bound of a Clip as a finished tensor program, and HardSigmoid as `relax.clip`.
`ConvertLayout` cannot carry a layout through either, so every ReLU6 and HardSwish of a channels-last network stood
between two transposes and was not fused with its convolution. An axis of a squeeze that counts from the end makes it
fail as a whole, and the network would stay without channels last.
"""

from typing import Any

from tvm.relax.expr_functor import PyExprMutator, mutator

from tunery.dialects.metaschedule._tvm import relax, tvm

_OPERATORS = {"T_maximum": relax.op.maximum, "T_minimum": relax.op.minimum}


def restore_clips(module: Any) -> Any:
    """Return the module with each clip as `relax.maximum` and `relax.minimum` with a constant, and axes from the front.

    Bounds that are not constant stay as they are; fold constants first.
    """
    rewriter = _Clips(module)
    for name, function in module.functions_items():
        if isinstance(function, relax.Function):
            rewriter.builder_.update_func(name, rewriter.visit_expr(function))
    return relax.transform.DeadCodeElimination()(rewriter.builder_.get())


@mutator
class _Clips(PyExprMutator):  # type: ignore[misc] # TVM has no types
    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self._module = module
        self._call_tir, self._clip = tvm.ir.Op.get("relax.call_tir"), tvm.ir.Op.get("relax.clip")
        self._squeeze = tvm.ir.Op.get("relax.squeeze")

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if call.op == self._clip:
            return self._bounded(*call.args)
        if call.op == self._squeeze and call.attrs.axis is not None:
            return _from_the_front(call)
        if call.op != self._call_tir:
            return call
        store = _elementwise_store(self._module[call.args[0]])
        if store is None or store[0] not in _OPERATORS:
            return call
        name, value = store
        data, *bounds = call.args[1].fields
        bound = self._constant(bounds[0]) if bounds else _immediate(value.b)
        if bound is None:
            return call
        return _OPERATORS[name](data, relax.const(bound, str(data.ty.dtype)))

    def _bounded(self, data: Any, low: Any, high: Any) -> Any:
        dtype = str(data.ty.dtype)
        above = self.builder_.emit(relax.op.maximum(data, relax.const(low.value, dtype)))
        return relax.op.minimum(above, relax.const(high.value, dtype))

    def _constant(self, argument: Any) -> float | int | None:
        if isinstance(argument, relax.Var):
            argument = self.lookup_binding(argument)
        if not isinstance(argument, tvm.ir.GenericConst) or argument.value.numpy().ndim:
            return None
        number: float | int = argument.value.numpy().item()
        return number


def _from_the_front(squeeze: Any) -> Any:
    data, axes = squeeze.args[0], [int(axis) for axis in squeeze.attrs.axis]
    rank = int(getattr(data.ty, "ndim", -1))
    return relax.op.squeeze(data, [axis % rank for axis in axes]) if rank > 0 and min(axes, default=0) < 0 else squeeze


def _elementwise_store(function: Any) -> tuple[str, Any] | None:
    """Return the block's name and the stored value of a program that is one plain loop nest."""
    node = function.body.block.body if hasattr(function.body, "block") else None
    while isinstance(node, tvm.tirx.For):
        node = node.body
    block = getattr(node, "block", None)
    if block is None or not isinstance(block.body, tvm.tirx.BufferStore):
        return None
    return block.name_hint, block.body.value


def _immediate(value: Any) -> float | int | None:
    number: float | int | None = getattr(value, "value", None)
    return number
