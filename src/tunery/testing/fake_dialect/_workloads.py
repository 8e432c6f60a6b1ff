"""The computations of the fake dialect, on real arrays."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tunery.dialects import Array
from tunery.domain import TensorSpec, operator_key

KINDS = {"matmul": "dense", "gather": "gather", "elementwise": "elementwise", "argmax": "reduce"}
OPERATORS = tuple(KINDS)

_Numbers = npt.NDArray[Any]


def arguments(op: str, size: int) -> tuple[tuple[TensorSpec, ...], int]:
    """Return an operator's arguments (inputs first) and how many of them are outputs."""
    n = size
    f32, i64 = "float32", "int64"
    shapes: list[tuple[str, tuple[int, ...], str]]
    if op == "matmul":
        shapes = [("x", (n, 2 * n), f32), ("w", (2 * n, n), f32), ("out", (n, n), f32)]
    elif op == "gather":
        shapes = [("table", (4 * n, n), f32), ("indices", (2 * n,), i64), ("out", (2 * n, n), f32)]
    elif op == "elementwise":
        shapes = [("x", (n, 4 * n), f32), ("y", (n, 4 * n), f32), ("out", (n, 4 * n), f32)]
    else:
        shapes = [("x", (2 * n, 3 * n), f32), ("values", (2 * n,), f32), ("positions", (2 * n,), i64)]
    return tuple(TensorSpec(*shape) for shape in shapes), 2 if op == "argmax" else 1


def operator(op: str, size: int) -> str | None:
    if op != "matmul":
        return None
    (x, w, _), _ = arguments(op, size)
    return operator_key("matmul", {"a": (x.shape, x.dtype), "b": (w.shape, w.dtype)}, fused=["relu"])


def flop(op: str, size: int) -> float:
    """Return the operations of one execution; a gather moves data and has none, as compilers count."""
    return {"matmul": 4.0 * size**3, "gather": 0.0, "elementwise": 12.0 * size**2, "argmax": 6.0 * size**2}[op]


def compute(op: str, inputs: Sequence[Array], split: int = 0) -> list[Array]:
    """Return the operator's outputs; `split` reorders sums, so schedules differ by rounding as they do in compilers."""
    with np.errstate(all="ignore"):  # infinities are among the inputs
        if op == "matmul":
            x, w = inputs
            return _matmul(x, w, split)
        return _COMPUTE[op](*inputs)


def _matmul(x: _Numbers, w: _Numbers, split: int) -> list[Array]:
    k = split % x.shape[1]
    with np.errstate(invalid="ignore"):  # infinities of a verification's inputs
        return [np.maximum(x[:, :k] @ w[:k] + x[:, k:] @ w[k:], np.float32(0))]


def _gather(table: _Numbers, indices: _Numbers) -> list[Array]:
    if indices.min() < 0 or indices.max() >= len(table):
        raise IndexError(f"indices from {indices.min()} to {indices.max()} reach outside the table's {len(table)} rows")
    return [table[indices]]


def _elementwise(x: _Numbers, y: _Numbers) -> list[Array]:
    with np.errstate(invalid="ignore"):
        return [x * np.float32(2) + np.tanh(y)]


def _argmax(x: _Numbers) -> list[Array]:
    return [x.max(axis=1), x.argmax(axis=1).astype(np.int64)]


_COMPUTE: dict[str, Callable[..., list[Array]]] = {"gather": _gather, "elementwise": _elementwise, "argmax": _argmax}
