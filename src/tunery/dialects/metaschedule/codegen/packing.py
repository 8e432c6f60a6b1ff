"""Weight packing as data: a rewritten layout is a permutation, so no code need be compiled to apply it.

Compiling the packing function took a fifth of a candidate's build; NumPy applies the same permutation from its index
expressions, kept as nested lists that JSON can hold.
"""

from typing import Any

from tunery.dialects.metaschedule._tvm import tvm
from tunery.dialects.metaschedule.loading.preparing import OPERATORS, Index


def read_packing(function: Any) -> dict[str, tuple[str, list[Index]]] | None:
    """Return, per packed parameter of a packing PrimFunc, its source parameter and its index expressions.

    The axes of the source are named `0`, `1`, ... None where the function is anything but plain permutations.
    """
    found: dict[str, tuple[str, list[Index]]] = {}
    root = function.body.block.body if isinstance(function.body, tvm.s_tir.SBlockRealize) else function.body
    for nest in root.seq if isinstance(root, tvm.tirx.SeqStmt) else [root]:
        store = _inner_store(nest)
        if store is None or not isinstance(store.value, tvm.ir.TensorLoad):
            return None
        if not all(isinstance(index, tvm.ir.Var) for index in store.value.indices):
            return None
        axes = {variable: str(i) for i, variable in enumerate(store.value.indices)}
        indices = [_encode(index, axes) for index in store.indices]
        if any(index is None for index in indices):
            return None
        found[store.buffer.name] = (store.value.source.name, [index for index in indices if index is not None])
    return found


def _inner_store(node: Any) -> Any:
    while True:
        if isinstance(node, tvm.tirx.BufferStore):
            return node
        if isinstance(node, tvm.s_tir.SBlockRealize):
            node = node.block
        elif hasattr(node, "body"):
            node = node.body
        else:
            return None


def _encode(expression: Any, axes: dict[Any, str]) -> Index | None:
    if isinstance(expression, tvm.ir.Var):
        return axes.get(expression)
    if isinstance(expression, tvm.tirx.IntImm):
        return int(expression.value)
    name = type(expression).__name__
    if name not in OPERATORS:
        return None
    left, right = _encode(expression.a, axes), _encode(expression.b, axes)
    return None if left is None or right is None else [name, left, right]
