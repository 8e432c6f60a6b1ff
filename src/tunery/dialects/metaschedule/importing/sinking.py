"""Layout conversions back and forth around what only rearranges channels: left out.

`ConvertLayout` knows nothing of reshapes, so a network that shuffles its channels (ShuffleNet: reshape, transpose,
reshape, split, concatenate) goes back to channels first for each shuffle, and to channels last for the next
convolution: a fifth of its time.
"""

from typing import Any

from tvm.relax.expr_functor import PyExprMutator, mutator

from tunery.dialects.metaschedule._tvm import relax, tvm

_TO_FIRST, _TO_LAST = [0, 3, 1, 2], [0, 2, 3, 1]
_SHUFFLED, _SHUFFLED_LAST = [0, 2, 1, 3, 4], [0, 1, 2, 4, 3]
_FIRST, _LAST = 1, 3
_RANK = 4


def sink_layouts(module: Any) -> Any:
    """Return the module with shuffles, splits and concatenations of channels done channels last.

    Only where they lie between conversions from and to channels last.
    """
    sinker = _Sinker(module)
    for name, function in module.functions_items():
        if isinstance(function, relax.Function):
            sinker.builder_.update_func(name, sinker.visit_expr(function))
    return sinker.builder_.get()


@mutator
class _Sinker(PyExprMutator):  # type: ignore[misc] # TVM has no types
    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self._twins: dict[Any, Any] = {}

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if _axes(call) == _TO_LAST:
            twin = self._twin(call.args[0])
            return call if twin is None else twin
        return call

    def _twin(self, value: Any) -> Any:
        """Return a variable of the same array with channels last, None if there is none."""
        if not isinstance(value, relax.Var):
            return None
        if value not in self._twins:
            self._twins[value] = self._found(self.lookup_binding(value))
        return self._twins[value]

    def _found(self, bound: Any) -> Any:
        if isinstance(bound, relax.TupleGetItem):
            parts = self._twin(bound.tuple_value)
            return None if parts is None else self.builder_.emit(relax.TupleGetItem(parts, bound.index))
        if _axes(bound) == _TO_FIRST:
            return bound.args[0]
        if _is(bound, "split") and int(bound.attrs.axis) == _FIRST:
            twin = self._twin(bound.args[0])
            sections = bound.attrs.indices_or_sections
            return None if twin is None else self.builder_.emit(relax.op.split(twin, sections, _LAST))
        if _is(bound, "concat") and int(bound.attrs.axis) == _FIRST:
            twins = [self._twin(part) for part in self._parts(bound.args[0])]
            return self.builder_.emit(relax.op.concat(twins, _LAST)) if twins and None not in twins else None
        return self._shuffled(bound) if _is(bound, "reshape") else None

    def _parts(self, value: Any) -> list[Any]:
        value = self.lookup_binding(value) if isinstance(value, relax.Var) else value
        return list(value.fields) if isinstance(value, relax.Tuple) else []

    def _shuffled(self, bound: Any) -> Any:
        """Return the twin of `reshape(permute_dims(reshape(x)))` that transposes groups of channels."""
        permuted: Any = self.lookup_binding(bound.args[0]) if isinstance(bound.args[0], relax.Var) else None
        if _axes(permuted) != _SHUFFLED or not isinstance(permuted.args[0], relax.Var):
            return None
        grouped = self.lookup_binding(permuted.args[0])
        shapes = [_shape(one) for one in (bound, grouped)]
        if not _is(grouped, "reshape") or None in shapes:
            return None
        (n, channels, *places), (_, groups, each, *others) = shapes
        if len(places) + 2 != _RANK or places != others or groups * each != channels:
            return None
        twin = self._twin(grouped.args[0])
        if twin is None or _shape(twin) != [n, *places, channels]:
            return None
        split = self.builder_.emit(relax.op.reshape(twin, (n, *places, groups, each)))
        moved = self.builder_.emit(relax.op.permute_dims(split, _SHUFFLED_LAST))
        return self.builder_.emit(relax.op.reshape(moved, (n, *places, channels)))


def _is(expression: Any, name: str) -> bool:
    return isinstance(expression, relax.Call) and expression.op == tvm.ir.Op.get(f"relax.{name}")


def _axes(expression: Any) -> list[int] | None:
    if not _is(expression, "permute_dims") or expression.attrs.axes is None:
        return None
    return [int(axis) for axis in expression.attrs.axes]


def _shape(expression: Any) -> Any:
    try:
        return [int(size) for size in expression.ty.shape]
    except (TypeError, ValueError, AttributeError):
        return None
