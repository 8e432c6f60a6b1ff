"""Numbers as processors have them: what TVM's simplifier and LLVM's flags assume of them is kept from both. Neither
expects NaN or a sum that wraps around: `x == x`, `x < y || y <= x` and `x + 1 > x` become true, `!(x < y)` becomes `y
<= x`, `x - x` becomes 0, and the largest of numbers begins with the lowest finite one. An index that is read from
memory may lie anywhere. All this is undone where code is made, after scheduling, for programs are known by how they are
imported. None of it costs an instruction but the bounds of indices: LLVM narrows arithmetic of twice the width again,
without the flag that says that it does not wrap around."""

import math
from collections.abc import Collection
from typing import Any

import tvm_ffi

from tunery.dialects.metaschedule._tvm import tvm
from tunery.dialects.metaschedule.variants.loads import has_load, variables_with_loads
from tunery.dialects.metaschedule.variants.rewriting import shape_of

_T = tvm.tirx
_ARITHMETIC, _DIVISIONS = (_T.Add, _T.Sub, _T.Mul), (_T.Div, _T.Mod, _T.FloorDiv, _T.FloorMod)
_PAIRS = frozenset(
    {*_ARITHMETIC, *_DIVISIONS, _T.Min, _T.Max} | {_T.EQ, _T.NE, _T.LT, _T.LE, _T.GT, _T.GE, _T.And, _T.Or}
)
_OPERANDS = {
    **dict.fromkeys(_PAIRS, ("a", "b")),
    _T.Not: ("a",),
    _T.Cast: ("value",),
    _T.Select: ("condition", "true_value", "false_value"),
}
_LOGIC = {_T.And: _T.bitwise_and, _T.Or: _T.bitwise_or}
_WIDER = {"int32": "int64", "int64": "int128"}
_NARROW = frozenset({"int8", "uint8", "int16", "uint16", "bool"})


def exact(module: Any) -> Any:
    """Return the module with such values and indices of its tensor programs computed as they are written."""
    changed = module
    for name, program in module.functions_items():
        if isinstance(program, _T.PrimFunc):
            made = _exact(program)
            if not made.same_as(program):
                changed = module.clone() if changed is module else changed
                changed.update_func(name, made)
    return changed


def _exact(program: Any) -> Any:
    read, ends = variables_with_loads(program), _ends(program)

    def load(access: Any) -> Any:
        places = _clamped(access.indices, access.source, read)
        return _T.BufferLoad(access.source, places) if places else access

    def store(access: Any) -> Any:
        places = _clamped(access.indices, access.buffer, read)
        values = _Value(access.buffer, ends)
        try:
            value, _ = values.of(values.start(access.value))
        except RecursionError:  # hundreds of arrays in one, which holds no arithmetic
            value = access.value
        if places or not value.same_as(access.value):
            return _T.BufferStore(access.buffer, value, places or access.indices)
        return access

    return tvm_ffi.structural_map(program, ((tvm.ir.TensorLoad, load), (_T.BufferStore, store)))


def _ends(program: Any) -> dict[tuple[str, float], float]:
    """Return the infinities that a program's largest and smallest of many begin with, by the finite end of the type."""
    found: dict[tuple[str, float], float] = {}

    def store(access: Any) -> None:
        kind = str(access.value.ty.dtype) if isinstance(access.value, _T.Max | _T.Min) else ""
        if "float" in kind and any(_reads(side, access.buffer) for side in (access.value.a, access.value.b)):
            sign = -1 if isinstance(access.value, _T.Max) else 1
            found[kind, sign * float(_T.max_value(kind).value)] = sign * math.inf

    tvm_ffi.structural_walk(program, ((_T.BufferStore,), store), order="pre")
    return found


def _reads(value: Any, buffer: Any) -> bool:
    return isinstance(value, tvm.ir.TensorLoad) and value.source.same_as(buffer)


class _Value:
    """What is stored in a buffer; `ends` are the finite ends that stand for infinities, where they stand alone."""

    def __init__(self, buffer: Any, ends: dict[tuple[str, float], float]) -> None:
        self._buffer, self._ends = buffer, ends

    def start(self, value: Any) -> Any:
        kind = str(value.ty.dtype) if isinstance(value, _T.FloatImm) else ""
        return _T.FloatImm(kind, self._ends[kind, value.value]) if kind and (kind, value.value) in self._ends else value

    def of(self, value: Any) -> tuple[Any, bool]:
        kind = type(value)
        given = value.args if kind is tvm.ir.Call else [getattr(value, name) for name in _OPERANDS.get(kind, ())]
        parts = [self.of(self.start(one) if kind is tvm.ir.Call else one) for one in given]  # also the edge of a pool
        operands, loaded = [part for part, _ in parts], kind is tvm.ir.TensorLoad or any(one for _, one in parts)
        if kind in _PAIRS and loaded:
            divided = kind in _DIVISIONS and "int" in str(value.ty.dtype) and parts[1][1]
            return (_quotient(kind, *operands) if divided else self._pair(value, *operands)), True
        if kind is _T.Not and loaded:
            return _inverse(operands[0]), True
        same = all(part.same_as(one) for part, one in zip(operands, given, strict=True))
        return value if same else _made(value, operands), loaded

    def _pair(self, value: Any, a: Any, b: Any) -> Any:
        kind, dtype = type(value), str(a.ty.dtype)
        if dtype == "bool" and kind in {_T.EQ, _T.NE}:  # which LLVM takes for floating-point numbers
            differ = _T.bitwise_xor(a, b)
            return differ if kind is _T.NE else _inverse(differ)
        if kind in _LOGIC:
            return _LOGIC[kind](a, b)
        if "float" in dtype and (made := _of_floats(kind, a, b)) is not None:
            return made
        if kind in _ARITHMETIC and dtype in _WIDER and not self._is_small(value):
            wide = _WIDER[dtype]
            return _T.Cast(dtype, kind(_T.Cast(wide, a), _T.Cast(wide, b)))
        return value if a.same_as(value.a) and b.same_as(value.b) else kind(a, b)

    def _is_small(self, value: Any) -> bool:
        """Whether a sum is one of many, or a product is of 16 bits at most."""
        sides = (value.a, value.b)
        narrow = all(isinstance(one, _T.Cast) and str(one.value.ty.dtype) in _NARROW for one in sides)
        return narrow or any(_reads(one, self._buffer) for one in sides)


def _of_floats(kind: Any, a: Any, b: Any) -> Any:
    if kind in {_T.EQ, _T.NE}:
        equal = _T.bitwise_and(_T.LE(a, b), _T.GE(a, b))
        return equal if kind is _T.EQ else _inverse(equal)
    if kind in {_T.Max, _T.Min} and isinstance(b, _T.FloatImm):
        return kind(b, a)  # the instruction gives its second operand where one is NaN
    if kind is not _T.Sub or isinstance(a, _T.FloatImm):
        return None
    dtype = str(a.ty.dtype)
    if tvm_ffi.structural_equal(a, b):  # fused with a product, it would be what that is rounded by
        low, high = (_T.const(sign * float(_T.max_value(dtype).value), dtype) for sign in (-1, 1))
        return _T.Select(_T.bitwise_and(_T.GE(a, low), _T.LE(a, high)), _T.const(0, dtype), _T.const(math.nan, dtype))
    return _T.Add(a, _T.Mul(b, _T.const(-1, dtype)))  # LLVM makes a difference of it; TVM takes (x + y) - y for x


def _quotient(kind: Any, a: Any, b: Any) -> Any:
    """Return a quotient or remainder of integers without the two divisions that end the process: by 0 it is as by 1."""
    dtype = str(b.ty.dtype)
    zero, one = (_T.const(number, dtype) for number in (0, 1))
    safe = _T.Select(_T.EQ(b, zero), one, b)
    if dtype.startswith("uint"):
        return kind(a, safe)
    last = _T.EQ(b, _T.const(-1, dtype))  # the lowest integer has no opposite
    made = kind(a, _T.Select(last, one, safe))
    if kind in {_T.Mod, _T.FloorMod}:
        return made
    wide = _WIDER.get(dtype, "int32")
    return _T.Select(last, _T.Cast(dtype, _T.Sub(_T.const(0, wide), _T.Cast(wide, a))), made)


def _inverse(truth: Any) -> Any:
    return _T.bitwise_xor(truth, _T.const(True, "bool"))


def _made(value: Any, operands: list[Any]) -> Any:
    if isinstance(value, tvm.ir.Call):
        return tvm.ir.Call(value.op, operands, value.attrs, value.ty_args, None, value.ty)
    return _T.Cast(str(value.ty.dtype), *operands) if isinstance(value, _T.Cast) else type(value)(*operands)


def _clamped(indices: Any, buffer: Any, read: Collection[Any]) -> list[Any]:
    """Return an access's indices with those clamped that are read from memory; none where none is."""
    far = [has_load(at, read) for at in indices]
    if not any(far):
        return []
    sizes = shape_of(buffer)
    return [_between(at, size - 1) if is_far else at for at, size, is_far in zip(indices, sizes, far, strict=True)]


def _between(at: Any, last: int) -> Any:
    low, high = (_T.const(end, str(at.ty.dtype)) for end in (0, last))
    return _T.max(_T.min(at, high), low)
