"""Expressions that a kernel file holds: a white list of Python's, parsed and never run as code. Numbers, names,
arithmetic, comparisons, `and`, `or`, `not`, `x if c else y`, `in [...]`, and the functions `min`, `max`, `abs`, `int`
and `ceil`."""

import ast
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

Value = int | float | bool | str
_Run = Callable[[Mapping[str, Value]], Value]

_LONGEST, _DEEPEST = 2000, 40
_LARGEST = 1 << 80
_MOST_VALUES = 100_000

_BINARY: dict[type[ast.AST], Callable[[Value, Value], Value]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_COMPARISONS: dict[type[ast.AST], Callable[[Value, Value], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip
_UNARY: dict[type[ast.AST], Callable[[Any], Value]] = {
    ast.Not: operator.not_, ast.USub: operator.neg, ast.UAdd: operator.pos,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[..., Value]] = {"min": min, "max": max, "abs": abs, "int": int, "ceil": math.ceil}


class ExpressionError(ValueError):
    """An expression is none that may be written here, or has no value; the message is a part of a sentence."""


@dataclass(frozen=True)
class ParameterExpression:
    """A parsed expression: its text, and the names that it uses."""

    text: str
    names: frozenset[str]
    run: _Run

    def __call__(self, values: Mapping[str, Value]) -> Value:
        try:
            return self.run(values)
        except (ArithmeticError, TypeError, ValueError, KeyError) as error:
            raise ExpressionError(f"{self.text!r:.80} has no value: {error}") from error

    def holds(self, values: Mapping[str, Value]) -> bool:
        try:
            return bool(self.run(values))
        except (ArithmeticError, TypeError, ValueError):
            return False


def parse(
    text: str, known: Iterable[str], constants: Mapping[str, Value] = MappingProxyType({})
) -> ParameterExpression:
    """Parse an expression over `known` names and `constants`, which have their values already."""
    node, free = tree(text), set(known)
    run = _compiled(_Folded(constants).visit(node), text)
    names = {part.id for part in ast.walk(tree(text)) if isinstance(part, ast.Name)} - _FUNCTIONS.keys()
    for name in sorted(names - free - constants.keys()):
        listed = ", ".join(sorted({*free, *constants})[:12]) or "nothing"
        raise ExpressionError(f"{text!r:.80} refers to {name!r}, which is nothing here; known: {listed}")
    return ParameterExpression(text, frozenset(names & free), run)


class _Folded(ast.NodeTransformer):
    """Puts the values of constants in the place of their names."""

    def __init__(self, constants: Mapping[str, Value]) -> None:
        self._constants = constants

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(self._constants[node.id]) if node.id in self._constants else node


def tree(text: str) -> ast.expr:
    if len(text) > _LONGEST:
        raise ExpressionError(f"{text[:40]!r}... has more than {_LONGEST} characters")
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise ExpressionError(f"{text!r:.80} is no expression") from error
    if _depth(node, _DEEPEST) < 0:
        raise ExpressionError(f"{text!r:.80} is nested too deeply")
    return node


def values_of(text: str) -> list[Value]:
    """Return the values of a list of Kernel Tuner's: `[1, 2]`, `range(4)`, `[2*i for i in range(4)]`."""
    node = tree(text)
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "list"
        and len(node.args) == 1
    ):
        node = node.args[0]
    if isinstance(node, ast.ListComp):
        return _comprehension(node, text)
    return _listed(node, text)


def _comprehension(node: ast.ListComp, text: str) -> list[Value]:
    over = node.generators[0]
    if len(node.generators) != 1 or over.ifs or over.is_async or not isinstance(over.target, ast.Name):
        raise ExpressionError(f"{text!r:.80} is no list of values; write them out")
    name, run = over.target.id, _compiled(node.elt, text)
    used = {part.id for part in ast.walk(node.elt) if isinstance(part, ast.Name)} - _FUNCTIONS.keys()
    if used - {name}:
        raise ExpressionError(f"{text!r:.80} refers to {min(used - {name})!r}, which is nothing here")
    body = ParameterExpression(text, frozenset({name}), run)
    return [body({name: value}) for value in _listed(over.iter, text)]


def _listed(node: ast.expr, text: str) -> list[Value]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range" and not node.keywords:
        bounds = [_constant(each, text) for each in node.args]
        whole = [bound for bound in bounds if isinstance(bound, int) and abs(bound) < _LARGEST]
        if len(whole) != len(bounds) or not 1 <= len(whole) <= 3 or (len(whole) == 3 and whole[2] == 0):
            raise ExpressionError(f"{text!r:.80} is no range of whole numbers")
        found = range(*whole)
        if found[_MOST_VALUES : _MOST_VALUES + 1]:
            raise ExpressionError(f"{text!r:.80} has more than {_MOST_VALUES} values")
        return list(found)
    if isinstance(node, ast.List | ast.Tuple):
        return [_constant(each, text) for each in node.elts]
    return [_constant(node, text)]


def _constant(node: ast.expr, text: str) -> Value:
    return ParameterExpression(text, frozenset(), _compiled(node, text))({})


def _depth(node: ast.AST, left: int) -> int:
    """Return how many levels are left under the deepest part of a tree, below zero where it is too deep."""
    if left < 0:
        return left
    return min((_depth(child, left - 1) for child in ast.iter_child_nodes(node)), default=left)


def _compiled(node: ast.expr, text: str) -> _Run:  # noqa: C901, PLR0911 - one branch for each kind of node
    match node:
        case ast.Constant(value=bool() | int() | float() | str() as constant):
            if isinstance(constant, int | float) and not abs(constant) < _LARGEST:
                raise ExpressionError(f"{text!r:.80} has a number that is too large")
            return lambda _: constant
        case ast.Name(id=name):
            if name in _FUNCTIONS:
                raise ExpressionError(f"{text!r:.80} names the function {name} without calling it")
            return lambda values: values[name]
        case ast.BinOp(op=ast.Pow()):
            return _power(_compiled(node.left, text), _compiled(node.right, text))
        case ast.BinOp(op=op) if type(op) in _BINARY:
            return _applied(_BINARY[type(op)], _compiled(node.left, text), _compiled(node.right, text))
        case ast.UnaryOp(op=op) if type(op) in _UNARY:
            unary, inner = _UNARY[type(op)], _compiled(node.operand, text)
            return lambda values: unary(inner(values))
        case ast.BoolOp(op=op):
            parts = [_compiled(part, text) for part in node.values]
            if isinstance(op, ast.And):
                return lambda values: all(part(values) for part in parts)
            return lambda values: any(part(values) for part in parts)
        case ast.IfExp():
            test, then, other = (_compiled(part, text) for part in (node.test, node.body, node.orelse))
            return lambda values: then(values) if test(values) else other(values)
        case ast.Compare():
            return _comparison(node, text)
        case ast.Call(func=ast.Name(id=name), keywords=[]) if name in _FUNCTIONS and node.args:
            function, inputs = _FUNCTIONS[name], [_compiled(arg, text) for arg in node.args]
            return lambda values: function(*(one(values) for one in inputs))
    said = {ast.ListComp: "a loop", ast.GeneratorExp: "a loop", ast.Lambda: "a function", ast.Call: "this call"}
    raise ExpressionError(
        f"{text!r:.80} holds {said.get(type(node), type(node).__name__)}; write numbers, names, arithmetic, "
        "comparisons, and, or, not, in, min, max, abs, int, ceil"
    )


def _applied(function: Callable[[Value, Value], Value], left: _Run, right: _Run) -> _Run:
    def run(values: Mapping[str, Value]) -> Value:
        a, b = left(values), right(values)
        if isinstance(a, str) or isinstance(b, str):
            raise TypeError("text is no number")
        return _bounded(function(a, b))

    return run


def _power(left: _Run, right: _Run) -> _Run:
    def run(values: Mapping[str, Value]) -> Value:
        base, exponent = left(values), right(values)
        if isinstance(base, str) or isinstance(exponent, str) or not 0 <= exponent <= 64 or abs(base) > 1 << 20:
            raise ValueError("a power is too large, or none of numbers")
        return _bounded(base**exponent)

    return run


def _bounded(value: Value) -> Value:
    if not isinstance(value, str) and not abs(value) < _LARGEST:
        raise OverflowError("a number is too large")
    return value


def _comparison(node: ast.Compare, text: str) -> _Run:
    runs: list[Callable[[Value, Mapping[str, Value]], tuple[bool, Value]]] = []
    for op, right in zip(node.ops, node.comparators, strict=True):
        if isinstance(op, ast.In | ast.NotIn):
            if not isinstance(right, ast.List | ast.Tuple) or len(node.ops) > 1:
                raise ExpressionError(f"{text!r:.80} looks for something in what is no list; write x in [1, 2]")
            runs.append(_membership([_compiled(elt, text) for elt in right.elts], isinstance(op, ast.In)))
        elif type(op) in _COMPARISONS:
            runs.append(_compared(_COMPARISONS[type(op)], _compiled(right, text)))
        else:
            raise ExpressionError(f"{text!r:.80} holds {type(op).__name__}; write ==, !=, <, <=, >, >= or in")
    first = _compiled(node.left, text)

    def run(values: Mapping[str, Value]) -> Value:
        left = first(values)
        for one in runs:
            holds, left = one(left, values)
            if not holds:
                return False
        return True

    return run


def _compared(
    function: Callable[[Value, Value], bool], right: _Run
) -> Callable[[Value, Mapping[str, Value]], tuple[bool, Value]]:
    def run(left: Value, values: Mapping[str, Value]) -> tuple[bool, Value]:
        other = right(values)
        return function(left, other), other

    return run


def _membership(members: Sequence[_Run], wanted: bool) -> Callable[[Value, Mapping[str, Value]], tuple[bool, Value]]:
    return lambda left, values: (any(left == member(values) for member in members) == wanted, left)
