"""Arrays kept in the layout of convolutions: what lies between them is done there too.

A convolution along one axis is one of two with a row (`rules.convolutions`), and the squeeze that takes the row away
again is no operator of single elements: nothing behind it was fused. So that is done on the array with the row.

TVM computes transposed convolutions channels first only, over an input with zeros between its elements: with a stride
of 2 three of four products are by zero. An output of stride s is s * s smaller ones, its phases, each the convolution
of the input with every s-th element of the kernel (Shi et al., "Is the deconvolution layer the same as a convolutional
layer?", 2016). One convolution gives them all as channels, channels last; it is tuned like any other.

`ConvertLayout` knows nothing of reshapes, so a network that shuffles its channels (ShuffleNet: reshape, transpose,
reshape, split, concatenate) goes back to channels first for each shuffle, and to channels last for the next
convolution: a fifth of its time. What only rearranges channels between two conversions is done channels last.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunery.dialects.metaschedule._tvm import relax, tvm
from tunery.dialects.metaschedule.importing.rules.common import rewritten
from tunery.dialects.metaschedule.importing.rules.convolutions import ROW

_ROW_RANK = 3
_TO_FIRST, _TO_LAST = [0, 3, 1, 2], [0, 2, 3, 1]
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
    done = relax.transform.DeadCodeElimination()(rewritten(_Rows(module), module))
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
        return bound.args[0] if axes == [ROW] and int(bound.args[0].ty.ndim) == _ROW_RANK + 1 else None

    def _with_row(self, operand: Any) -> Any:
        """Return an operand with a row: what it was taken from, or a constant; None of any other."""
        if not isinstance(operand, tvm.ir.GenericConst):
            return self._row_of(operand)
        array = operand.value.numpy()
        if array.ndim <= 1:
            return operand  # it lies along the last dimension, or has none
        if array.ndim > _ROW_RANK:
            return None
        *others, last = [1] * (_ROW_RANK - array.ndim) + list(array.shape)
        return relax.const(array.reshape(*others, 1, last), str(operand.ty.dtype))


_LAYOUT = ("NHWC", "IOHW", "NHWC")
_PLACES = 2


def interleave_phases(module: Any) -> Any:
    """Return the module with its channels-last transposed convolutions rewritten. Those with groups, dilations or
    weights that are no constants are computed channels first, as TVM can."""
    return _rewritten(module, phases=True)


def keep_channels_first(module: Any) -> Any:
    return _rewritten(module, phases=False)


def _rewritten(module: Any, *, phases: bool) -> Any:
    return rewritten(_Rewriter(module, phases=phases), module)


@mutator
class _Rewriter(PyExprMutator):  # type: ignore[misc] # TVM has no types
    def __init__(self, module: Any, *, phases: bool) -> None:
        super().__init__(module)
        self._phases = phases

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if call.op != tvm.ir.Op.get("relax.nn.conv2d_transpose"):
            return call
        if (call.attrs.data_layout, call.attrs.kernel_layout, call.attrs.out_layout) != _LAYOUT:
            return call
        plain = int(call.attrs.groups) == 1 and all(int(each) == 1 for each in call.attrs.dilation)
        constant = isinstance(call.args[1], tvm.ir.GenericConst)
        return self._by_phases(call) if self._phases and plain and constant else self._channels_first(call)

    def _channels_first(self, call: Any) -> Any:
        data, kernel = call.args
        names = ("strides", "padding", "output_padding", "dilation")
        arguments = {name: [int(each) for each in getattr(call.attrs, name)] for name in names}
        data = self.builder_.emit(relax.op.permute_dims(data, _TO_FIRST))
        result = relax.op.nn.conv2d_transpose(data, kernel, groups=int(call.attrs.groups), **arguments)
        return relax.op.permute_dims(self.builder_.emit(result), _TO_LAST)

    def _by_phases(self, call: Any) -> Any:
        """Return the same array by phases.

        Output f - padding is the sum over i and t of input i times weight t where i * stride + t = f. With
        t = a * stride + r it is phase r = f mod stride at q = f / stride: the sum over a of input q - a times weight t.
        """
        emit, op = self.builder_.emit, relax.op
        data, kernel = call.args
        strides = [int(each) for each in call.attrs.strides]
        before = [int(each) for each in call.attrs.padding[:_PLACES]]
        made, *taps = _sizes(kernel)[1:]
        n, *_ = _sizes(data)
        _, *places, _ = _sizes(call)
        # How many weights a phase has along each axis, so that the phases reach to the last output.
        each = [
            max(-(-tap // s), -(-(pad + out) // s) - size + 1)
            for tap, s, pad, out, size in zip(taps, strides, before, places, _sizes(data)[1:3], strict=True)
        ]
        (a, b), (s, t) = each, strides
        weights = kernel.value.numpy()
        more = [(0, 0), (0, 0), (0, a * s - taps[0]), (0, b * t - taps[1])]
        weights = np.pad(weights, more).reshape(-1, made, a, s, b, t)[:, :, ::-1, :, ::-1, :]
        weights = weights.transpose(2, 4, 0, 3, 5, 1).reshape(a, b, -1, s * t * made)
        kernel = relax.const(np.ascontiguousarray(weights), str(weights.dtype))
        phases = emit(op.nn.conv2d(data, kernel, padding=[a - 1, b - 1], data_layout="NHWC", kernel_layout="HWIO"))
        _, h, w, _ = _sizes(phases)
        phases = emit(op.reshape(phases, (n, h, w, s, t, made)))
        phases = emit(op.permute_dims(phases, (0, 1, 3, 2, 4, 5)))
        whole = op.reshape(phases, (n, h * s, w * t, made))
        if before == [0, 0] and places == [h * s, w * t]:
            return whole
        ends = [start + size for start, size in zip(before, places, strict=True)]
        return op.strided_slice(emit(whole), [1, 2], before, ends)


def _sizes(expression: Any) -> Sequence[int]:
    return [int(size) for size in expression.ty.shape]


_SHUFFLED, _SHUFFLED_LAST = [0, 2, 1, 3, 4], [0, 1, 2, 4, 3]
_FIRST, _LAST = 1, 3
_RANK = 4


def sink_layouts(module: Any) -> Any:
    """Return the module with shuffles, splits and concatenations of channels done channels last. Only where they lie
    between conversions from and to channels last."""
    return rewritten(_Sinker(module), module)


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
