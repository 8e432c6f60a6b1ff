"""Where a program reads at a place that it has read from memory."""

from collections.abc import Collection
from typing import Any

import tvm_ffi

from tunery.dialects.metaschedule._tvm import tvm


def looked_up(program: Any) -> list[Any]:
    read, found = variables_with_loads(program), list[Any]()

    def load(access: Any) -> None:
        if any(has_load(at, read) for at in access.indices):
            found.append(access.source)

    tvm_ffi.structural_walk(program, ((tvm.ir.TensorLoad,), load), order="pre")
    return found


def variables_with_loads(program: Any) -> set[Any]:
    found: set[Any] = set()

    def bind(binding: Any) -> None:
        if has_load(binding.value, found):
            found.add(binding.var)

    tvm_ffi.structural_walk(program, ((tvm.tirx.Bind, tvm.tirx.Let), bind), order="pre")
    return found


def has_load(expression: Any, read: Collection[Any]) -> bool:
    if isinstance(expression, tvm.ir.Var | tvm.tirx.IntImm):
        return expression in read
    end = tvm_ffi.structural.VisitInterrupt
    rules = ((tvm.ir.TensorLoad, end), (tvm.ir.Var, lambda one: end() if one in read else None))
    return tvm_ffi.structural_walk(expression, rules) is not None
