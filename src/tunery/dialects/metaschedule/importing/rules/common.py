"""What the rules share: a rule is a converter as TVM's importer has them."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from tunery._errors import DialectError
from tunery.dialects.metaschedule._tvm import relax, tvm

Convert = Callable[[Any, list[Any], dict[str, Any]], Any]
"""From a block builder, the inputs and the attributes to an expression."""


def emit(builder: Any, expression: Any) -> Any:
    return builder.normalize(expression)


def emitter(builder: Any) -> Callable[[Any], Any]:
    return functools.partial(emit, builder)


def rewritten(rewriter: Any, module: Any) -> Any:
    for name, function in module.functions_items():
        if isinstance(function, relax.Function):
            rewriter.builder_.update_func(name, rewriter.visit_expr(function))
    return rewriter.builder_.get()


def shape_of(value: Any, operator: str) -> list[int]:
    try:
        return [int(dim) for dim in value.ty.shape]
    except (TypeError, ValueError) as error:
        raise DialectError(f"{operator} has an input of unknown size") from error


def dtype_of(value: Any) -> str:
    return str(value.ty.dtype.dtype)


def const_like(value: Any, like: Any) -> Any:
    return relax.const(np.asarray(value, dtype_of(like)), dtype_of(like))


def text_of(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def reshaped_of(builder: Any, value: Any) -> Any:
    """Return what a value is with another shape, None where it is no such."""
    made = builder.lookup_binding(value) if isinstance(value, relax.Var) else value
    is_reshape = isinstance(made, relax.Call) and made.op == tvm.ir.Op.get("relax.reshape")
    return made.args[0] if is_reshape else None
