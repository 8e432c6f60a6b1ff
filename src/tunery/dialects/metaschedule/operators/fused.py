"""The steps that are fused behind an operator: each with its other operands."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tunery.dialects.metaschedule.operators.nests import (
    Affine,
    Constant,
    ElementLoad,
    Expression,
    Nest,
    NestedProgram,
    UnknownProgramError,
)
from tunery.domain.operator_key import number

_COMMUTATIVE = frozenset({"add", "multiply", "maximum", "minimum", "equal", "not_equal", "and", "or"})


@dataclass
class _Step:
    """An operator of texts, and of earlier results by their number."""

    name: str
    operands: list[str | int]


def steps_behind(
    program: NestedProgram, nests: Sequence[Nest], result: int, order: Sequence[int], names: Mapping[int, str]
) -> list[str]:
    """Return the steps that nests take from a result, element by element, as an operator key has them. `order` has the
    dimensions of the result as the key tells its shape; `names` has the key's own tensors."""
    found = _Chain(program, result, order, names)
    for nest in nests:
        found.follow(nest)
    written = [nest.output for nest in program.nests if program.tensors[nest.output].parameter]
    last = nests[-1].output if nests else result
    if written != [last]:
        raise UnknownProgramError
    return found.texts()


class _Chain:
    def __init__(self, program: NestedProgram, result: int, order: Sequence[int], names: Mapping[int, str]) -> None:
        self._program, self._order = program, order
        self._shape = program.tensors[result].shape
        self._dtype = program.tensors[result].dtype
        self._results: dict[int, str | int] = {result: 0}
        self._names = dict(names)
        self._others: dict[int, tuple[int, tuple[Affine, ...]]] = {}
        self._steps: list[_Step] = []

    def follow(self, nest: Nest) -> None:
        if (
            nest.reduced
            or nest.condition
            or not nest.in_order
            or self._program.tensors[nest.output].shape != self._shape
        ):
            raise UnknownProgramError
        self._results[nest.output] = self._operand(nest.value)

    def texts(self) -> list[str]:
        steps = _clipped(self._steps)
        found = []
        for place, step in enumerate(steps, 1):
            operands = list(step.operands)
            if step.name in _COMMUTATIVE:
                operands.sort(key=lambda one: (one != place - 1, str(one)))
            if operands and operands[0] == place - 1:
                operands = operands[1:]
            texts = [f"${one}" if isinstance(one, int) else one for one in operands]
            found.append(step.name + ("=" + ",".join(texts) if texts else ""))
        return found

    def _operand(self, expression: Expression) -> str | int:
        if isinstance(expression, Constant):
            return number(expression.value, expression.dtype)
        if isinstance(expression, ElementLoad):
            return self._loaded(expression)
        name, operands = expression.name, [self._operand(one) for one in expression.operands]
        if name in {"cast", "reinterpret"}:
            operands.append(expression.dtype)
        self._steps.append(_Step(name, operands))
        return len(self._steps)

    def _loaded(self, load: ElementLoad) -> str | int:
        tensor = self._program.tensors[load.tensor]
        axes = [index.axis for index in load.indices]
        if load.tensor in self._results:
            if axes != list(range(len(self._shape))):
                raise UnknownProgramError
            return self._results[load.tensor]
        if not tensor.parameter or load.tensor in self._names:
            raise UnknownProgramError
        if load.tensor in self._others:
            place, indices = self._others[load.tensor]
            if indices != load.indices:
                raise UnknownProgramError
            return f"@{place}"
        sizes = dict.fromkeys(range(len(self._shape)), 1)
        for axis, index, size in zip(axes, load.indices, tensor.shape, strict=True):
            if not (axis is None and index.is_zero and size == 1) and (axis is None or sizes[axis] != 1):
                raise UnknownProgramError
            if axis is not None:
                sizes[axis] = size
        self._others[load.tensor] = len(self._others), load.indices
        shape = "x".join(str(sizes[axis]) for axis in self._order)
        # Without its type one size alone reads as a number.
        return shape if tensor.dtype == self._dtype and "x" in shape else f"{shape or 1}:{tensor.dtype}"


def _clipped(steps: Sequence[_Step]) -> list[_Step]:
    """Return the steps with each maximum and minimum by numbers told as ONNX does: as `relu` or `clip`."""
    found: list[_Step] = []
    place: dict[int, int] = {0: 0}
    for number_of, step in enumerate(steps, 1):
        limits = [one for one in step.operands if isinstance(one, str) and _is_number(one)]
        before = [one for one in step.operands if isinstance(one, int)]
        alone = len(limits) == 1 and len(before) == 1
        once = alone and sum(one.operands.count(before[0]) for one in steps) == 1
        last = found[-1] if found else None
        if step.name == "minimum" and once and last and place[before[0]] == len(found) and last.name in {"relu", "low"}:
            low = "0" if last.name == "relu" else str(last.operands[1])
            if float(low) <= float(limits[0]):
                found[-1] = _Step("clip", [last.operands[0], low, limits[0]])
                place[number_of] = len(found)
                continue
        operands = [place[one] if isinstance(one, int) else one for one in step.operands]
        if step.name == "maximum" and alone:
            operands = [place[before[0]]] + ([] if float(limits[0]) == 0 else [limits[0]])
        name = ("low" if len(operands) == 2 else "relu") if step.name == "maximum" and alone else step.name
        found.append(_Step(name, operands))
        place[number_of] = len(found)
    return [_Step("maximum" if one.name == "low" else one.name, one.operands) for one in found]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
