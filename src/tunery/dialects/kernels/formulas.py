"""References written as NumPy: expressions over a kernel's inputs, from a white list, computed in double precision."""

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tunery.dialects import Array
from tunery.dialects.configurations.expressions import ExpressionError, Value, tree

_BINARY: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: np.add, ast.Sub: np.subtract, ast.Mult: np.multiply, ast.Div: np.divide, ast.FloorDiv: np.floor_divide,
    ast.Mod: np.mod, ast.Pow: np.power, ast.MatMult: np.matmul,
}  # fmt: skip
_COMPARISONS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Eq: np.equal, ast.NotEq: np.not_equal, ast.Lt: np.less, ast.LtE: np.less_equal, ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
}  # fmt: skip
_NAMED = (
    "abs", "arange", "argmax", "argmin", "clip", "concatenate", "cos", "cumsum", "dot", "einsum", "exp", "expand_dims",
    "floor", "log", "matmul", "max", "maximum", "mean", "min", "minimum", "outer", "pad", "prod", "reshape", "roll",
    "sin", "sort", "sqrt", "square", "stack", "sum", "swapaxes", "tanh", "transpose", "var", "where", "zeros_like",
)  # fmt: skip
_KEYWORDS = frozenset({"axis", "keepdims"})


def convolve2d(image: Any, weights: Any) -> Array:
    """Return what a window of `weights` sums at each place where all of it lies on the image (no flip)."""
    windows = np.lib.stride_tricks.sliding_window_view(image, weights.shape)
    found: Array = np.einsum("ijkl,kl->ij", windows, weights, optimize=True)
    return found


_FUNCTIONS: dict[str, Callable[..., Any]] = {name: getattr(np, name) for name in _NAMED} | {"convolve2d": convolve2d}


def check_formula(text: str, arrays: Sequence[str], constants: Mapping[str, Value]) -> None:
    _check(tree(text), text, {*arrays, *constants})


def compute(text: str, arrays: Mapping[str, Array], constants: Mapping[str, Value]) -> Array:
    wide = {name: one.astype(np.float64) if one.dtype.kind == "f" else one for name, one in arrays.items()}
    try:
        with np.errstate(all="ignore"):
            return np.asarray(_value(tree(text), {**constants, **wide}))
    except (ArithmeticError, TypeError, ValueError, IndexError, KeyError) as error:
        raise ExpressionError(f"the reference {text!r:.60} cannot be computed: {error}") from error


def _check(node: ast.expr, text: str, known: set[str]) -> None:  # noqa: C901, PLR0912 - as `_value`
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None):
            return
        case ast.Name(id=name):
            if name not in known:
                raise ExpressionError(f"{text!r:.60} refers to {name!r}, which is no input; there are {sorted(known)}")
        case ast.Call(func=ast.Name(id=name)):
            if name not in _FUNCTIONS:
                raise ExpressionError(f"{text!r:.60} calls {name!r}; there are {', '.join(_FUNCTIONS)}")
            for keyword in node.keywords:
                if keyword.arg not in _KEYWORDS:
                    raise ExpressionError(f"{text!r:.60} gives {keyword.arg!r}; there are {sorted(_KEYWORDS)}")
        case ast.BinOp(op=op) if type(op) in _BINARY:
            pass
        case ast.Compare(ops=[op]) if type(op) in _COMPARISONS:
            pass
        case ast.UnaryOp(op=ast.USub()) | ast.Tuple() | ast.List() | ast.Subscript() | ast.Slice():
            pass
        case ast.Attribute(attr="T"):
            pass
        case _:
            raise ExpressionError(f"{text!r:.60} holds {type(node).__name__}, which a reference may not")
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.keyword):
            _check(child.value, text, known)
        elif isinstance(child, ast.expr) and not (isinstance(node, ast.Call) and child is node.func):
            _check(child, text, known)


def _value(node: ast.expr, values: Mapping[str, Any]) -> Any:  # noqa: C901, PLR0911 - one branch for each kind of node
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return values[name]
        case ast.BinOp(op=op):
            return _BINARY[type(op)](_value(node.left, values), _value(node.right, values))
        case ast.Compare(ops=[op]):
            return _COMPARISONS[type(op)](_value(node.left, values), _value(node.comparators[0], values))
        case ast.UnaryOp():
            return np.negative(_value(node.operand, values))
        case ast.Tuple() | ast.List():
            return tuple(_value(each, values) for each in node.elts)
        case ast.Slice():
            return slice(*(each and _value(each, values) for each in (node.lower, node.upper, node.step)))
        case ast.Subscript():
            return _value(node.value, values)[_value(node.slice, values)]
        case ast.Attribute():
            return np.transpose(_value(node.value, values))
        case ast.Call(func=ast.Name(id=name)):
            more = {str(keyword.arg): _value(keyword.value, values) for keyword in node.keywords}
            return _FUNCTIONS[name](*(_value(each, values) for each in node.args), **more)
    raise ExpressionError(f"{type(node).__name__} cannot be computed")
