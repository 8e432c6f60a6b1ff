"""The operator key of a fused program: of what it computes, whatever its layout and whoever has imported it."""

import math
from collections.abc import Mapping
from typing import Any

from tunery.dialects.metaschedule.operators.fused import steps_behind
from tunery.dialects.metaschedule.operators.heavy import Heavy, heavy_operator
from tunery.dialects.metaschedule.operators.nests import (
    Affine,
    Apply,
    ElementLoad,
    Nest,
    NestedProgram,
    UnknownProgramError,
    read_program,
)
from tunery.domain import OperatorKeyError, operator_key


def key_of_module(module: Any) -> str | None:
    """Return the key of what a module with one function computes, None where it is of no form that is known here. It is
    read from the program itself, all of which has to be known: two programs with one key compute the same."""
    try:
        program = read_program(module)
        found = _key(program)
    except (UnknownProgramError, OperatorKeyError):
        return None
    return found


def _key(program: NestedProgram) -> str:
    if not any(nest.reduced for nest in program.nests):
        return _transposition(program) or _elementwise(program)
    if softmax := _softmax(program):
        return softmax
    heavy = heavy_operator(program)
    fused = steps_behind(program, program.nests[heavy.nests :], heavy.result, heavy.order, heavy.names)
    return _mean(heavy, fused) or operator_key(heavy.kind, heavy.tensors, heavy.attributes, fused)


def _mean(heavy: Heavy, fused: list[str]) -> str | None:
    attributes = dict(heavy.attributes)
    if heavy.kind == "reduce_sum":
        terms, kind = math.prod(heavy.tensors["x"][0][axis] for axis in _numbers(attributes["axes"])), "reduce_mean"
    elif heavy.kind.startswith("sum_pool"):
        terms, kind = math.prod(_numbers(attributes["kernel"])), heavy.kind.replace("sum", "avg")
        if any(_numbers(attributes["pads"])):
            attributes["count_include_pad"] = 1
    else:
        return None
    return operator_key(kind, heavy.tensors, attributes) if fused == [f"divide={terms}"] else None


def _numbers(value: object) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, list | tuple) else ()


def _softmax(program: NestedProgram) -> str | None:
    """Return the key of the four nests of a softmax: the largest, the powers, their sum, the quotients."""
    if [len(nest.reduced) for nest in program.nests[:4]] != [1, 0, 1, 0]:
        return None
    largest, powers, total, quotients = program.nests[:4]
    source = next(iter(_loads(largest)[1:]), largest.output)
    axis = _reduced_dimension(largest, source)
    if axis is None:
        return None
    whole = [ElementLoad(tensor, tuple(Affine({(i, 1): 1}) for i in range(len(powers.extents))))
             for tensor in (source, powers.output)]  # fmt: skip
    at = tuple(one for i, one in enumerate(whole[0].indices) if i != axis)
    dtype = program.tensors[source].dtype
    expected = [
        Apply("exp", (Apply("subtract", (whole[0], ElementLoad(largest.output, at)), dtype),), dtype),
        Apply("divide", (whole[1], ElementLoad(total.output, at)), dtype),
    ]
    sums = [Apply(name, (ElementLoad(nest.output, nest.places), _behind(nest, one, axis)), dtype)
            for name, nest, one in (("maximum", largest, source), ("add", total, powers.output))]  # fmt: skip
    known = [powers.value, quotients.value, largest.value, total.value] == [*expected, *sums]
    known = known and not any(nest.condition for nest in program.nests[:4])
    if not known or not program.tensors[source].parameter or not (powers.in_order and quotients.in_order):
        return None
    shape, order = program.tensors[source].shape, range(len(powers.extents))
    fused = steps_behind(program, program.nests[4:], quotients.output, order, {source: "x"})
    return operator_key("softmax", {"x": (shape, dtype)}, {"axis": axis - len(shape)}, fused)


def _reduced_dimension(nest: Nest, tensor: int) -> int | None:
    terms = nest.value.operands if isinstance(nest.value, Apply) else ()
    axes = [
        [index.axis for index in one.indices] for one in terms if isinstance(one, ElementLoad) and one.tensor == tensor
    ]
    [last] = nest.reduced
    return axes[0].index(last) if axes and last in axes[0] else None


def _behind(nest: Nest, tensor: int, axis: int) -> ElementLoad:
    places = list(range(len(nest.extents) - 1))
    places.insert(axis, len(nest.extents) - 1)
    return ElementLoad(tensor, tuple(Affine({(one, 1): 1}) for one in places))


def _transposition(program: NestedProgram) -> str | None:
    [first, *others] = program.nests
    if others or not first.in_order or not isinstance(first.value, ElementLoad) or first.condition:
        return None
    tensor = program.tensors[first.value.tensor]
    axes = [index.axis for index in first.value.indices]
    if not tensor.parameter or len(axes) != len(first.places) or {*axes} != {*range(len(axes))}:
        return None
    order = [axes.index(axis) for axis in range(len(axes))]
    if first.extents != tuple(tensor.shape[dimension] for dimension in order):
        return None  # it takes a part of the tensor
    return operator_key("transpose", {"x": (tensor.shape, tensor.dtype)}, {"perm": order})


def _elementwise(program: NestedProgram) -> str:
    last = program.nests[-1]
    shape = program.tensors[last.output].shape
    source = next((one for nest in program.nests for one in _loads(nest) if _is_whole(program, one, shape)), None)
    if source is None:
        raise UnknownProgramError
    fused = steps_behind(program, program.nests, source, range(len(shape)), {})
    tensor = program.tensors[source]
    tensors: Mapping[str, tuple[tuple[int, ...], str]] = {"x": (tensor.shape, tensor.dtype)}
    return operator_key("elementwise", tensors, {}, fused)


def _loads(nest: Nest) -> list[int]:
    found, waiting = [], [nest.value]
    while waiting:
        one = waiting.pop(0)
        if isinstance(one, ElementLoad):
            found.append(one.tensor)
        elif isinstance(one, Apply):
            waiting = [*one.operands, *waiting]
    return found


def _is_whole(program: NestedProgram, tensor: int, shape: tuple[int, ...]) -> bool:
    return program.tensors[tensor].parameter and program.tensors[tensor].shape == shape
