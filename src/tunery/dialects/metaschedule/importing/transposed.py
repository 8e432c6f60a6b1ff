"""Transposed convolutions, channels last: a convolution that computes all phases of the stride, then interleaves them.

TVM computes them channels first only, over an input with zeros between its elements: with a stride of 2 three of four
products are by zero. An output of stride s is s * s smaller ones, its phases, each the convolution of the input with
every s-th element of the kernel (Shi et al., "Is the deconvolution layer the same as a convolutional layer?", 2016).
One convolution gives them all as channels; it is tuned like any other.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunery.dialects.metaschedule._tvm import relax, tvm

_LAYOUT = ("NHWC", "IOHW", "NHWC")
_TO_FIRST, _TO_LAST = (0, 3, 1, 2), (0, 2, 3, 1)
_PLACES = 2


def interleave_phases(module: Any) -> Any:
    """Return the module with its channels-last transposed convolutions rewritten.

    Those with groups, dilations or weights that are no constants are computed channels first, as TVM can.
    """
    return _rewritten(module, phases=True)


def keep_channels_first(module: Any) -> Any:
    return _rewritten(module, phases=False)


def _rewritten(module: Any, *, phases: bool) -> Any:
    rewriter = _Rewriter(module, phases=phases)
    for name, function in module.functions_items():
        if isinstance(function, relax.Function):
            rewriter.builder_.update_func(name, rewriter.visit_expr(function))
    return rewriter.builder_.get()


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
