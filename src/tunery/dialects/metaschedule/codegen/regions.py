"""What a parallel loop is worth: its turns, and a rough time of one, told to `loading/native/support.c` before it. A
loop that takes less than waking a thread does is no parallel one."""

import math
from typing import Any

import tvm_ffi

from tunery.dialects.metaschedule._tvm import tvm

_SERIAL, _PARALLEL = 0, 1  # TVM's kinds of loops
_FLOP_PER_NS, _STORES_PER_NS, _CALL_FLOP = 16.0, 8.0, 20.0
"""Of one core: less than half of what good code reaches, and a call such as exp."""
_LEAST_NS = 3000.0
_COMPUTING = (
    tvm.tirx.Add, tvm.tirx.Sub, tvm.tirx.Mul, tvm.tirx.Div, tvm.tirx.Max, tvm.tirx.Min, tvm.tirx.Select, tvm.ir.Call,
)  # fmt: skip
TRANSPOSE = "tunery_transpose"
NANOSECONDS = "tunery.ns"
"""Attribute of a statement that says how long it takes."""


def estimate_regions(module: Any) -> Any:
    changed = module
    for name, program in module.functions_items():
        if isinstance(program, tvm.tirx.PrimFunc):
            estimated = tvm_ffi.structural_map(program, ((tvm.tirx.For, _estimated),))
            if not estimated.same_as(program):
                changed = module.clone() if changed is module else changed
                changed.update_func(name, estimated)
    return changed


def _estimated(loop: Any) -> Any:
    if int(loop.kind) != _PARALLEL:
        return loop
    turn_ns, extent = _nanoseconds(loop.body), loop.extent
    if isinstance(extent, tvm.tirx.IntImm) and int(extent) * turn_ns < _LEAST_NS:
        return tvm.tirx.For(loop.loop_var, loop.min, extent, _SERIAL, loop.body)
    turns = tvm.tirx.Cast("int64", extent) if str(extent.ty.dtype) != "int64" else extent
    ns = tvm.tirx.const(max(1, round(turn_ns)), "int64") * turns
    told = tvm.tirx.Evaluate(tvm.tirx.call_extern("int32", "tunery_region", turns, ns))
    return tvm.tirx.SeqStmt([told, loop])


def _nanoseconds(statement: Any) -> float:
    """Return the time of a statement; a loop of unknown length counts once."""
    if isinstance(statement, tvm.tirx.SeqStmt):
        return sum(map(_nanoseconds, statement.seq))
    if isinstance(statement, tvm.tirx.BufferStore):
        return _of_store(statement)
    if isinstance(statement, tvm.tirx.Evaluate):
        return _of_call(statement.value)
    if isinstance(statement, tvm.tirx.AttrStmt) and str(statement.attr_key) == NANOSECONDS:
        return float(int(statement.value))
    if isinstance(statement, tvm.tirx.IfThenElse):
        return _nanoseconds(statement.then_case) + (_nanoseconds(statement.else_case) if statement.else_case else 0.0)
    inside = getattr(statement, "block", None) or getattr(statement, "body", None)
    turns = int(statement.extent) if isinstance(getattr(statement, "extent", None), tvm.tirx.IntImm) else 1
    return turns * _nanoseconds(inside) if inside is not None else 0.0


def _of_store(store: Any) -> float:
    flop, sums = 0.0, False

    def load(access: Any) -> Any:
        nonlocal sums
        sums |= access.source.same_as(store.buffer)
        return tvm_ffi.WalkResult.SKIP

    def compute(part: Any) -> None:
        nonlocal flop
        flop += _CALL_FLOP if isinstance(part, tvm.ir.Call) else 1.0

    rules = ((tvm.ir.TensorLoad, load), (_COMPUTING, compute))
    tvm_ffi.structural_walk(store.value, rules, order="pre")
    return flop / _FLOP_PER_NS + (0.0 if sums else 1 / _STORES_PER_NS)


def _of_call(call: Any) -> float:
    """Return the time of a transposition; another function is taken to be long."""
    arguments = getattr(call, "args", ())
    if not arguments or getattr(arguments[0], "value", "") != TRANSPOSE:
        return _LEAST_NS
    sizes = [int(one) for one in arguments[-2:] if isinstance(one, tvm.tirx.IntImm)]
    return math.prod(sizes) * 2 / _STORES_PER_NS
