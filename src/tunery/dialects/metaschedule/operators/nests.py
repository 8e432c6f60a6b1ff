"""A fused program as plain data: its loop nests in order, each an expression of what it loads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tunery.dialects.metaschedule._tvm import tvm


class UnknownProgramError(Exception):
    """A program is of no form that is known here."""


@dataclass(frozen=True)
class Affine:
    """A sum of axes times factors, and a number; `(i, n)` is axis `i` divided by `n`, `(i, 1)` the axis itself."""

    factors: Mapping[tuple[int, int], int]
    offset: int = 0

    @property
    def axis(self) -> int | None:
        if self.offset == 0 and len(self.factors) == 1:
            [((axis, quotient), factor)] = self.factors.items()
            return axis if (quotient, factor) == (1, 1) else None
        return None

    @property
    def is_zero(self) -> bool:
        return not self.factors and self.offset == 0


@dataclass(frozen=True)
class ElementLoad:
    """An element of a tensor, by its number in the program."""

    tensor: int
    indices: tuple[Affine, ...]


@dataclass(frozen=True)
class Constant:
    """A number of a type."""

    value: float
    dtype: str


@dataclass(frozen=True)
class Apply:
    """An operator of some operands; `dtype` is that of its result."""

    name: str
    operands: tuple["Expression", ...]
    dtype: str


Expression = ElementLoad | Constant | Apply


@dataclass(frozen=True)
class Tensor:
    """A tensor of the program; a parameter of it, or in between."""

    shape: tuple[int, ...]
    dtype: str
    parameter: bool


@dataclass(frozen=True)
class Nest:
    """One loop nest, which computes the whole tensor `output`, at the index `places`. `extents` are those of its axes,
    `reduced` the numbers of the axes that are summed up; the sum begins at `initial`."""

    name: str
    extents: tuple[int, ...]
    reduced: frozenset[int]
    output: int
    places: tuple[Affine, ...]
    value: Expression
    initial: Expression | None
    condition: tuple[Expression, ...] = ()

    @property
    def in_order(self) -> bool:
        """Whether its axes that are not summed up are the output's, in order."""
        kept = [axis for axis in range(len(self.extents)) if axis not in self.reduced]
        return [place.axis for place in self.places] == kept


@dataclass(frozen=True)
class NestedProgram:
    """Tensors and nests."""

    tensors: tuple[Tensor, ...]
    nests: tuple[Nest, ...]


_BINARY = {
    "Add": "add", "Sub": "subtract", "Mul": "multiply", "Div": "divide", "Max": "maximum", "Min": "minimum",
    "EQ": "equal", "NE": "not_equal", "LT": "less", "LE": "less_equal", "GT": "greater", "GE": "greater_equal",
    "And": "and", "Or": "or",
}  # fmt: skip


def read_program(module: Any) -> NestedProgram:
    return _Reader(module["main"]).program


class _Reader:
    def __init__(self, function: Any) -> None:
        body = function.body
        if not isinstance(body, tvm.s_tir.SBlockRealize):
            raise UnknownProgramError
        root = body.block
        self._buffers = [*function.params, *root.alloc_buffers]
        self._axes: list[Any] = []
        count = len(function.params)
        try:
            tensors = [
                Tensor(tuple(int(size) for size in one.ty.shape), str(one.ty.dtype), i < count)
                for i, one in enumerate(self._buffers)
            ]
            nests = list(root.body.seq) if isinstance(root.body, tvm.tirx.SeqStmt) else [root.body]
            self.program = NestedProgram(tuple(tensors), tuple(self._nest(nest) for nest in nests))
        except (AttributeError, TypeError, ValueError) as error:
            raise UnknownProgramError from error

    def _nest(self, nest: Any) -> Nest:
        while isinstance(nest, tvm.tirx.For):
            nest = nest.body
        if not isinstance(nest, tvm.s_tir.SBlockRealize) or not isinstance(nest.block.body, tvm.tirx.BufferStore):
            raise UnknownProgramError
        block = nest.block
        self._axes = [axis.var for axis in block.iter_vars]
        reduced = [int(axis.iter_type) == tvm.tirx.IterVar.CommReduce for axis in block.iter_vars]
        store, initial = block.body, None
        if block.init is not None:
            if not isinstance(block.init, tvm.tirx.BufferStore):
                raise UnknownProgramError
            initial = self._expression(block.init.value)
        value, condition = store.value, tuple[Expression, ...]()
        if isinstance(value, tvm.ir.Call) and _name(value) == "if_then_else":
            asked, value, otherwise = value.args
            condition = (self._expression(otherwise), *self._conjunction(asked))
        return Nest(
            str(block.name_hint),
            tuple(int(axis.dom.extent) for axis in block.iter_vars),
            frozenset(i for i, one in enumerate(reduced) if one),
            self._tensor(store.buffer),
            tuple(map(self._affine, store.indices)),
            self._expression(value),
            initial,
            condition,
        )

    def _conjunction(self, asked: Any) -> list[Expression]:
        if isinstance(asked, tvm.tirx.And):
            return [*self._conjunction(asked.a), *self._conjunction(asked.b)]
        return [self._bound(asked)]

    def _bound(self, asked: Any) -> Expression:
        left, right = asked.a, asked.b
        kind = type(asked).__name__
        if kind == "LE" and isinstance(left, tvm.tirx.IntImm):
            name, axis, limit = "from", self._affine(right).axis, int(left)
        elif kind == "LT" and isinstance(right, tvm.tirx.IntImm):
            name, axis, limit = "below", self._affine(left).axis, int(right)
        else:
            raise UnknownProgramError
        if axis is None:
            raise UnknownProgramError
        return Apply(name, (Constant(axis, "int64"), Constant(limit, "int64")), "bool")

    def _expression(self, node: Any) -> Expression:
        if isinstance(node, tvm.ir.TensorLoad):
            return ElementLoad(self._tensor(node.source), tuple(map(self._affine, node.indices)))
        dtype = str(node.ty.dtype)
        if isinstance(node, (tvm.tirx.IntImm, tvm.tirx.FloatImm)):
            return Constant(node.value, dtype)
        if isinstance(node, tvm.tirx.Cast):
            return Apply("cast", (self._expression(node.value),), dtype)
        if isinstance(node, tvm.tirx.Select):
            parts: Sequence[Any] = (node.condition, node.true_value, node.false_value)
            return Apply("where", tuple(map(self._expression, parts)), dtype)
        if isinstance(node, tvm.ir.Call):
            name = "where" if _name(node) == "if_then_else" else _name(node)
            return Apply(name, tuple(map(self._expression, node.args)), dtype)
        if binary := _BINARY.get(type(node).__name__):
            return Apply(binary, (self._expression(node.a), self._expression(node.b)), dtype)
        raise UnknownProgramError

    def _affine(self, node: Any) -> Affine:
        if isinstance(node, tvm.tirx.IntImm):
            return Affine({}, int(node))
        if (axis := _place(node, self._axes)) is not None:
            return Affine({(axis, 1): 1})
        kind = type(node).__name__
        if kind == "FloorDiv" and isinstance(node.b, tvm.tirx.IntImm):
            axis = self._affine(node.a).axis
            if axis is not None:
                return Affine({(axis, int(node.b)): 1})
        elif kind in {"Add", "Sub"}:
            left, right = self._affine(node.a), self._affine(node.b)
            sign = 1 if kind == "Add" else -1
            factors = dict(left.factors)
            for part, factor in right.factors.items():
                factors[part] = factors.get(part, 0) + sign * factor
            return Affine(factors, left.offset + sign * right.offset)
        elif kind == "Mul" and isinstance(node.b, tvm.tirx.IntImm):
            inner, times = self._affine(node.a), int(node.b)
            return Affine({part: factor * times for part, factor in inner.factors.items()}, inner.offset * times)
        raise UnknownProgramError

    def _tensor(self, buffer: Any) -> int:
        found = _place(buffer, self._buffers)
        if found is None:
            raise UnknownProgramError
        return found


def _name(call: Any) -> str:
    return str(call.op.name).rpartition(".")[2]


def _place(one: Any, among: Sequence[Any]) -> int | None:
    return next((i for i, other in enumerate(among) if other.same_as(one)), None)
