"""ONNX operators that are imported by our own rules, because TVM's lack them or give other values than ONNX Runtime.

Each rule is a converter as TVM's importer has them, by ONNX's name; the definitions are ONNX's operator specification.
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tunery._errors import DialectError
from tunery.dialects.metaschedule._tvm import relax, tvm
from tunery.dialects.metaschedule.importing import quantised
from tunery.dialects.metaschedule.importing.segments import OPERATOR, Segment
from tunery.domain import SEGMENT, TensorSpec

_MOST_STEPS = 256
"""Steps of a recurrent network that are written out one by one."""

Convert = Callable[[Any, list[Any], dict[str, Any]], Any]
"""From a block builder, the inputs and the attributes to an expression."""


@contextmanager
def own_operators(segments: Sequence[Segment] = ()) -> Iterator[None]:
    """Have TVM's ONNX importer use the rules of this module, also for calls of `segments`, until the context ends."""
    from tvm.relax.frontend.onnx import onnx_frontend

    theirs = onnx_frontend._get_convert_map
    own = {**_RULES, OPERATOR: _segment_call(segments), quantised.PRODUCT: quantised.product}
    rules = {**theirs(), **{name: _converter(rule) for name, rule in own.items()}}
    rules |= {name: _where_it_applies(rule, rules[name]) for name, rule in _SPECIAL_RULES.items()}
    onnx_frontend._get_convert_map = lambda: rules
    try:
        yield
    finally:
        onnx_frontend._get_convert_map = theirs


def _converter(rule: Convert) -> type:
    class Converter:
        @staticmethod
        def get_converter(_: int) -> Callable[..., Any]:
            return lambda builder, inputs, attributes, _: rule(builder, list(inputs), attributes)

    return Converter


def _where_it_applies(rule: Convert, otherwise: Any) -> type:
    """Return the converter of a rule that returns None for what it leaves to another converter."""

    class Converter:
        @staticmethod
        def get_converter(opset: int) -> Callable[..., Any]:
            def convert(builder: Any, inputs: Any, attributes: dict[str, Any], parameters: Any) -> Any:
                found = rule(builder, list(inputs), attributes)
                theirs = otherwise.get_converter(opset)
                return theirs(builder, inputs, attributes, parameters) if found is None else found

            return convert

    return Converter


def _emit(builder: Any, expression: Any) -> Any:
    return builder.normalize(expression)


def _shape(value: Any, operator: str) -> list[int]:
    try:
        return [int(dim) for dim in value.ty.shape]
    except (TypeError, ValueError) as error:
        raise DialectError(f"{operator} has an input of unknown size") from error


def _const(value: Any, like: Any) -> Any:
    return relax.const(np.asarray(value, like.ty.dtype.dtype), like.ty.dtype.dtype)


# -- segments -------------------------------------------------------------------------------------------------------


def _segment_call(segments: Sequence[Segment]) -> Convert:
    """Return the rule of the node that stands for a segment: a call of a function that is there when it runs."""

    def rule(builder: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
        number = int(attributes["number"])
        segment = segments[number]
        given = [_emit(builder, one) for one in inputs]
        if segment.is_static:  # its outputs are given to it, in memory that is planned as that of kernels is
            kinds = [relax.TensorType(spec.shape, spec.dtype) for spec in segment.outputs]
            made = relax.op.call_dps_packed(
                f"{SEGMENT}{number}", relax.Tuple(given), kinds[0] if len(kinds) == 1 else kinds
            )
        else:
            kinds = [_type(spec, ranked=known) for spec, known in zip(segment.outputs, segment.ranked, strict=True)]
            kind = kinds[0] if len(kinds) == 1 else relax.TupleType(kinds)
            made = relax.op.call_pure_packed(f"{SEGMENT}{number}", *given, ty_args=kind)
        return _emit(builder, made)

    return rule


def _type(spec: TensorSpec, *, ranked: bool) -> Any:
    if ranked and -1 not in spec.shape:
        return relax.TensorType(spec.shape, spec.dtype)
    return relax.TensorType(dtype=spec.dtype, ndim=len(spec.shape) if ranked else -1)


# -- sums of many ---------------------------------------------------------------------------------------------------


def _chain(operator: Callable[[Any, Any], Any]) -> Convert:
    """Return a rule that takes many inputs two by two: a stack of them would have a dimension more and no layout."""

    def rule(builder: Any, inputs: list[Any], _: dict[str, Any]) -> Any:
        return functools.reduce(lambda left, right: _emit(builder, operator(left, right)), inputs)

    return rule


def _mean(builder: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    total = _chain(relax.op.add)(builder, inputs, attributes)
    return total if len(inputs) == 1 else relax.op.divide(total, _const(len(inputs), inputs[0]))


# -- values at the edge ---------------------------------------------------------------------------------------------


def _is_inf(builder: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    """Compare with the infinities: the compiler's own test is lost where it may assume that there are none."""
    (x,) = inputs
    signs = [sign for name, sign in (("detect_positive", 1), ("detect_negative", -1)) if int(attributes.get(name, 1))]
    found = [_emit(builder, relax.op.equal(x, _const(sign * math.inf, x))) for sign in signs]
    if not found:
        return relax.op.zeros(_shape(x, "IsInf"), "bool")
    return functools.reduce(lambda left, right: _emit(builder, relax.op.logical_or(left, right)), found)


def _lp_norm(builder: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    """Divide by the norm along an axis; a norm of zero leaves zeros."""
    (x,) = inputs
    axis, order = int(attributes.get("axis", -1)), int(attributes.get("p", 2))
    size = _emit(builder, relax.op.abs(x) if order == 1 else relax.op.multiply(x, x))
    norm = _emit(builder, relax.op.sum(size, axis, keepdims=True))
    norm = norm if order == 1 else _emit(builder, relax.op.sqrt(norm))
    empty = _emit(builder, relax.op.equal(norm, _const(0, x)))
    return relax.op.divide(x, _emit(builder, relax.op.where(empty, _const(1, x), norm)))


# -- repetition -----------------------------------------------------------------------------------------------------


def _tile(builder: Any, inputs: list[Any], _: dict[str, Any]) -> Any:
    """Repeat by a broadcast along new dimensions: LLVM makes a wrong loop of TVM's remainders for some processors.

    Seen of a float32 array of 2x3x4x5 that is repeated 7x6x4x2 times, with LLVM 22 for `znver4`.
    """
    x, repeats = inputs
    shape = _shape(x, "Tile")
    if not isinstance(repeats, tvm.ir.GenericConst):
        raise DialectError("Tile has repeats that are computed")
    counts = [int(count) for count in repeats.value.numpy()]
    apart = [size for pair in zip([1] * len(shape), shape, strict=True) for size in pair]
    wide = [size for pair in zip(counts, shape, strict=True) for size in pair]
    spread = _emit(builder, relax.op.broadcast_to(_emit(builder, relax.op.reshape(x, apart)), wide))
    return relax.op.reshape(spread, [count * size for count, size in zip(counts, shape, strict=True)])


# -- normalisation --------------------------------------------------------------------------------------------------


def _layer_norm(builder: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    """Return the normalised values, their mean and the inverse of their deviation."""
    x, scale, bias = (*inputs, None)[:3]
    shape, kind = _shape(x, "LayerNormalization"), x.ty.dtype.dtype
    first = int(attributes.get("axis", -1)) % len(shape)
    axes, epsilon = list(range(first, len(shape))), float(attributes.get("epsilon", 1e-5))
    wanted = shape[first:]
    outputs = int(attributes.get("tvm_custom", {}).get("num_outputs", 1))
    fits = _shape(scale, "LayerNormalization") == wanted and (bias is None or _shape(bias, "its bias") == wanted)
    y = None
    if fits:
        zero = relax.const(np.zeros(wanted, kind), kind) if bias is None else bias
        y = _emit(builder, relax.op.nn.layer_norm(x, scale, zero, axes, epsilon))
        if outputs == 1:
            return y
    wide = x if kind in {"float32", "float64"} else _emit(builder, relax.op.astype(x, "float32"))
    mean = _emit(builder, relax.op.mean(wide, axes, keepdims=True))
    centred = _emit(builder, relax.op.subtract(wide, mean))
    square = _emit(builder, relax.op.multiply(centred, centred))
    spread = _emit(builder, relax.op.mean(square, axes, keepdims=True))
    inverse = _emit(builder, relax.op.rsqrt(_emit(builder, relax.op.add(spread, _const(epsilon, wide)))))
    if y is None:
        normal = _emit(builder, relax.op.multiply(centred, inverse))
        y = _emit(builder, relax.op.multiply(_emit(builder, relax.op.astype(normal, kind)), scale))
        y = y if bias is None else _emit(builder, relax.op.add(y, bias))
    return y if outputs == 1 else relax.Tuple([y, mean, inverse])


# -- recurrent networks ---------------------------------------------------------------------------------------------

Step = Callable[[Any, tuple[Any, ...]], tuple[Any, ...]]
"""From one step's projected input and the states before it to the states after it."""


class _Cell:
    """One direction of a recurrent operator: weights `w` (gates x inputs), `r` (gates x hidden), biases of both."""

    def __init__(self, builder: Any, hidden: int, w: Any, r: Any, biases: tuple[Any, Any] | None) -> None:
        self.emit = functools.partial(_emit, builder)
        self.hidden, self.w, self.r, self.biases = hidden, w, r, biases

    def times(self, x: Any, weights: Any) -> Any:
        return self.emit(relax.op.matmul(x, self.emit(relax.op.permute_dims(weights))))

    def plus(self, left: Any, right: Any) -> Any:
        return self.emit(relax.op.add(left, right))

    def product(self, left: Any, right: Any) -> Any:
        return self.emit(relax.op.multiply(left, right))

    def gates(self, value: Any, count: int) -> list[Any]:
        return [self.emit(value) for value in _parts(self.emit, value, count, -1)]

    def rows(self, weights: Any, begin: int, end: int) -> Any:
        """Return some gates' rows of weights or biases."""
        taken = relax.op.strided_slice(weights, [0], [begin * self.hidden], [end * self.hidden])
        return self.emit(taken)


def _parts(emit: Callable[[Any], Any], value: Any, count: int, axis: int) -> list[Any]:
    if count == 1:
        return [value]
    split = emit(relax.op.split(value, count, axis))
    return [emit(relax.TupleGetItem(split, index)) for index in range(count)]


def _lstm_step(cell: _Cell) -> Step:
    sigmoid, tanh = relax.op.sigmoid, relax.op.tanh

    def step(x: Any, states: tuple[Any, ...]) -> tuple[Any, ...]:
        h, c = states
        i, o, f, g = cell.gates(cell.plus(x, cell.times(h, cell.r)), 4)
        kept = cell.product(cell.emit(sigmoid(f)), c)
        c = cell.plus(kept, cell.product(cell.emit(sigmoid(i)), cell.emit(tanh(g))))
        return cell.product(cell.emit(sigmoid(o)), cell.emit(tanh(c))), c

    return step


def _gru_step(cell: _Cell, *, reset_after: bool) -> Step:
    sigmoid, tanh, emit = relax.op.sigmoid, relax.op.tanh, cell.emit
    r_zr, r_h = cell.rows(cell.r, 0, 2), cell.rows(cell.r, 2, 3)
    bias = cell.rows(cell.biases[1], 2, 3) if reset_after and cell.biases else None

    def step(x: Any, states: tuple[Any, ...]) -> tuple[Any, ...]:
        (h,) = states
        x_z, x_r, x_h = cell.gates(x, 3)
        h_z, h_r = cell.gates(cell.times(h, r_zr), 2)
        z, r = emit(sigmoid(cell.plus(x_z, h_z))), emit(sigmoid(cell.plus(x_r, h_r)))
        if reset_after:
            recurrent = cell.times(h, r_h)
            recurrent = cell.product(r, recurrent if bias is None else cell.plus(recurrent, bias))
        else:
            recurrent = cell.times(cell.product(r, h), r_h)
        new = emit(tanh(cell.plus(x_h, recurrent)))
        return (cell.plus(new, cell.product(z, emit(relax.op.subtract(h, new)))),)

    return step


def _rnn_step(cell: _Cell) -> Step:
    def step(x: Any, states: tuple[Any, ...]) -> tuple[Any, ...]:
        return (cell.emit(relax.op.tanh(cell.plus(x, cell.times(states[0], cell.r)))),)

    return step


_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_ACTIVATIONS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}


def _recurrent(operator: str) -> Convert:
    """Return the rule of a recurrent operator: the inputs of all steps are one product, the steps are written out."""

    def rule(builder: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
        emit = functools.partial(_emit, builder)
        x, w, r, b, lengths, h0, c0, peepholes = (*inputs, *[None] * 8)[:8]
        _refuse_variants(operator, attributes, lengths, peepholes)
        batch_first = bool(attributes.get("layout", 0))
        if batch_first:
            x = emit(relax.op.permute_dims(x, [1, 0, 2]))
            h0, c0 = (emit(relax.op.permute_dims(s, [1, 0, 2])) if s is not None else None for s in (h0, c0))
        steps, batch, width = _shape(x, operator)
        directions, _, hidden = _shape(r, operator)
        if steps > _MOST_STEPS:
            raise DialectError(
                f"{operator} has {steps} steps; at most {_MOST_STEPS} are supported: give a shorter input"
            )
        rows = emit(relax.op.reshape(x, [steps * batch, width]))
        zero = relax.const(np.zeros((batch, hidden), x.ty.dtype.dtype), x.ty.dtype.dtype)
        wanted = _text(attributes.get("direction", "forward"))
        outputs, ends = [], []
        for index in range(directions):
            pick = functools.partial(_picked, emit, index)
            biases = None
            if b is not None:
                biases = tuple(_parts(emit, pick(b), 2, 0))
            cell = _Cell(builder, hidden, pick(w), pick(r), biases)
            states = [zero if one is None else pick(one) for one in ((h0, c0) if operator == "LSTM" else (h0,))]
            backward = wanted == "reverse" or index == 1
            found, last = _unrolled(operator, attributes, cell, rows, tuple(states), (steps, batch, backward))
            outputs.append(found)
            ends.append(last)
        y = emit(relax.op.stack(outputs, axis=1))  # steps, directions, batch, hidden
        finals = [emit(relax.op.stack([end[i] for end in ends], axis=0)) for i in range(len(ends[0]))]
        if batch_first:
            y = emit(relax.op.permute_dims(y, [2, 0, 1, 3]))
            finals = [emit(relax.op.permute_dims(end, [1, 0, 2])) for end in finals]
        return relax.Tuple([y, *finals])

    return rule


def _unrolled(  # noqa: PLR0917 - what a direction is made of
    operator: str,
    attributes: dict[str, Any],
    cell: _Cell,
    rows: Any,
    states: tuple[Any, ...],
    extent: tuple[int, int, bool],
) -> tuple[Any, tuple[Any, ...]]:
    """Return one direction's hidden states of all steps (steps, batch, hidden), and its last states."""
    steps, batch, backward = extent
    gates = _GATES[operator]
    reset_after = operator == "GRU" and bool(attributes.get("linear_before_reset", 0))
    projected = cell.times(rows, cell.w)
    if cell.biases:
        of_inputs, of_states = cell.biases
        if reset_after:  # the new gate's recurrent bias is multiplied by the reset gate
            kept = cell.rows(of_states, 0, 2)
            zeros = _const(np.zeros(cell.hidden), of_states)
            of_states = cell.emit(relax.op.concat([kept, zeros], 0))
        projected = cell.plus(projected, cell.plus(of_inputs, of_states))
    taken = _parts(cell.emit, cell.emit(relax.op.reshape(projected, [steps, batch, gates * cell.hidden])), steps, 0)
    step = (
        _lstm_step(cell)
        if operator == "LSTM"
        else _gru_step(cell, reset_after=reset_after)
        if operator == "GRU"
        else _rnn_step(cell)
    )
    hidden: list[Any] = [None] * steps
    for at in reversed(range(steps)) if backward else range(steps):
        one = cell.emit(relax.op.reshape(taken[at], [batch, gates * cell.hidden]))
        states = step(one, states)
        hidden[at] = states[0]
    return cell.emit(relax.op.stack(hidden, axis=0)), states


def _picked(emit: Callable[[Any], Any], index: int, value: Any) -> Any:
    """Return one direction's part of a tensor whose first dimension is the directions."""
    taken = emit(relax.op.strided_slice(value, [0], [index], [index + 1]))
    return emit(relax.op.squeeze(taken, [0]))


def _refuse_variants(operator: str, attributes: dict[str, Any], lengths: Any, peepholes: Any) -> None:
    """Raise for what the rule does not compute."""
    said = [_text(one) for one in attributes.get("activations", ())]
    usual = _ACTIVATIONS[operator]
    odd = [
        ("activations other than the usual ones", bool(said) and said not in (usual, usual * 2)),
        ("a clip", "clip" in attributes),
        ("coupled input and forget gates", bool(attributes.get("input_forget", 0))),
        ("lengths of its sequences", lengths is not None),
        ("peepholes", peepholes is not None),
    ]
    if found := [what for what, present in odd if present]:
        raise DialectError(f"{operator} with {' and '.join(found)} is not supported")


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


_RULES: dict[str, Convert] = {
    "Sum": _chain(relax.op.add),
    "Max": _chain(relax.op.maximum),
    "Min": _chain(relax.op.minimum),
    "Mean": _mean,
    "IsInf": _is_inf,
    "LpNormalization": _lp_norm,
    "Tile": _tile,
    "LayerNormalization": _layer_norm,
    **{operator: _recurrent(operator) for operator in _GATES},
}

_SPECIAL_RULES: dict[str, Convert] = {
    "QuantizeLinear": quantised.quantise,
    "DequantizeLinear": quantised.dequantise,
}

OWN_OPERATORS = frozenset(_RULES)
