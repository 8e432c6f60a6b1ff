"""LSTM, GRU and RNN: the inputs of all steps are one product, the steps are written out."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from tunery._errors import DialectError
from tunery.dialects.metaschedule._tvm import relax
from tunery.dialects.metaschedule.importing.rules.common import Convert, const_like, emitter, shape_of, text_of

_MOST_STEPS = 256
"""Steps of a recurrent network that are written out one by one."""
_TOGETHER = 16

Step = Callable[[Any, tuple[Any, ...]], tuple[Any, ...]]
"""From one step's projected input and the states before it to the states after it."""


class _Cell:
    """One direction of a recurrent operator: weights `w` (gates x inputs), `r` (gates x hidden), biases of both."""

    def __init__(self, builder: Any, hidden: int, w: Any, r: Any, biases: tuple[Any, Any] | None) -> None:
        self.emit = emitter(builder)
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


def recurrent(operator: str) -> Convert:
    """Return the rule of a recurrent operator: the inputs of all steps are one product, the steps are written out."""

    def rule(builder: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
        emit = emitter(builder)
        x, w, r, b, lengths, h0, c0, peepholes = (*inputs, *[None] * 8)[:8]
        _refuse_variants(operator, attributes, lengths, peepholes)
        batch_first = bool(attributes.get("layout", 0))
        if batch_first:
            x = emit(relax.op.permute_dims(x, [1, 0, 2]))
            h0, c0 = (emit(relax.op.permute_dims(s, [1, 0, 2])) if s is not None else None for s in (h0, c0))
        steps, batch, width = shape_of(x, operator)
        directions, _, hidden = shape_of(r, operator)
        if steps > _MOST_STEPS:
            raise DialectError(
                f"{operator} has {steps} steps; at most {_MOST_STEPS} are supported: give a shorter input"
            )
        rows = emit(relax.op.reshape(x, [steps * batch, width]))
        zero = relax.const(np.zeros((batch, hidden), x.ty.dtype.dtype), x.ty.dtype.dtype)
        wanted = text_of(attributes.get("direction", "forward"))
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
        y = _stacked(emit, outputs, 1)  # steps, directions, batch, hidden
        finals = [_stacked(emit, [end[i] for end in ends], 0) for i in range(len(ends[0]))]
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
            zeros = const_like(np.zeros(cell.hidden), of_states)
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
    return _stacked(cell.emit, hidden, 0), states


def _stacked(emit: Callable[[Any], Any], values: list[Any], axis: int) -> Any:
    """Return values along a new dimension, a few at a time: TVM nests a choice for each array that is put together."""
    parts = [emit(relax.op.expand_dims(value, axis)) for value in values]
    while len(parts) > 1:
        groups = [parts[at : at + _TOGETHER] for at in range(0, len(parts), _TOGETHER)]
        parts = [emit(relax.op.concat(group, axis)) if len(group) > 1 else group[0] for group in groups]
    return parts[0]


def _picked(emit: Callable[[Any], Any], index: int, value: Any) -> Any:
    """Return one direction's part of a tensor whose first dimension is the directions."""
    taken = emit(relax.op.strided_slice(value, [0], [index], [index + 1]))
    return emit(relax.op.squeeze(taken, [0]))


def _refuse_variants(operator: str, attributes: dict[str, Any], lengths: Any, peepholes: Any) -> None:
    """Raise for what the rule does not compute."""
    said = [text_of(one) for one in attributes.get("activations", ())]
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
