"""Operators of single elements."""

import functools
import math
from collections.abc import Callable
from typing import Any

import onnx

from tunery.dialects.metaschedule._tvm import relax, tvm
from tunery.dialects.metaschedule.importing.rules.common import Convert, const_like, dtype_of, emit, emitter, shape_of


def chain(operator: Callable[[Any, Any], Any]) -> Convert:
    """Return a rule that takes many inputs two by two: a stack of them would have a dimension more and no layout."""

    def rule(builder: Any, inputs: list[Any], _: dict[str, Any]) -> Any:
        return functools.reduce(lambda left, right: emit(builder, operator(left, right)), inputs)

    return rule


def extreme(bound: Callable[[Any, Any], Any], before: Callable[[Any, Any], Any]) -> Convert:
    """Return the rule of Max or Min: `bound` with a constant, else what comes `before` the other, or NaN."""

    def two(builder: Any, left: Any, right: Any) -> Any:
        run = emitter(builder)
        if isinstance(left, tvm.ir.GenericConst):
            left, right = right, left
        if "float" not in dtype_of(left) or (isinstance(right, tvm.ir.GenericConst) and right.value.numpy().size == 1):
            return run(bound(left, right))
        unordered = run(relax.op.where(run(before(right, left)), right, run(relax.op.add(left, right))))
        equal = run(relax.op.where(run(relax.op.equal(left, right)), left, unordered))
        return run(relax.op.where(run(before(left, right)), left, equal))

    return lambda builder, inputs, _: functools.reduce(functools.partial(two, builder), inputs)


def equal(builder: Any, inputs: list[Any], _: dict[str, Any]) -> Any:
    """Compare truth values, which LLVM's comparison refuses; None for others."""
    if dtype_of(inputs[0]) != "bool":
        return None
    return relax.op.logical_not(emit(builder, relax.op.logical_xor(*inputs)))


def sign(builder: Any, inputs: list[Any], _: dict[str, Any]) -> Any:
    """Return the sign of a floating-point number, NaN of NaN; None for others, and for half precision."""
    (x,) = inputs
    if dtype_of(x) not in {"float32", "float64"}:
        return None
    negative = emit(builder, relax.op.less(x, const_like(0, x)))
    rest = emit(builder, relax.op.where(negative, const_like(-1, x), x))
    return relax.op.where(emit(builder, relax.op.greater(x, const_like(0, x))), const_like(1, x), rest)


def mean_of_many(builder: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    """Divide the sum of the inputs by their number."""
    total = chain(relax.op.add)(builder, inputs, attributes)
    return total if len(inputs) == 1 else relax.op.divide(total, const_like(len(inputs), inputs[0]))


def is_inf(builder: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    """Compare with the infinities: the compiler's own test is lost where it may assume that there are none."""
    (x,) = inputs
    signs = [sign for name, sign in (("detect_positive", 1), ("detect_negative", -1)) if int(attributes.get(name, 1))]
    found = [emit(builder, relax.op.equal(x, const_like(sign * math.inf, x))) for sign in signs]
    if not found:
        return relax.op.zeros(shape_of(x, "IsInf"), "bool")
    return functools.reduce(lambda left, right: emit(builder, relax.op.logical_or(left, right)), found)


def thresholded(builder: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    """Return what is above a threshold, else zero: as a product, TVM's form makes a NaN of an infinity below it."""
    (x,) = inputs
    above = emit(builder, relax.op.greater(x, const_like(float(attributes.get("alpha", 1.0)), x)))
    return relax.op.where(above, x, const_like(0, x))


_MULTIPLIED = range(3, 9)
"""Exponents; LLVM knows squares."""
_NARROW = frozenset({"float16", "bfloat16"})
_BITS = {"float16": ("uint16", 0x7FFF, 0x7C00), "float32": ("uint32", 0x7FFFFFFF, 0x7F800000)}
_BITS["bfloat16"] = ("uint16", 0x7FFF, 0x7F80)
_BITS["float64"] = ("uint64", (1 << 63) - 1, 0x7FF << 52)


def is_nan(builder: Any, inputs: list[Any], _: dict[str, Any]) -> Any:
    """Look at the bits: the compiler may assume of floating-point numbers that none is NaN."""
    (x,) = inputs
    unsigned, without_sign, infinity = _BITS[dtype_of(x)]

    def found(value: Any) -> Any:
        def test(*at: Any) -> Any:
            bits = tvm.tirx.reinterpret(unsigned, value(*at))
            limit = tvm.tirx.const(infinity, unsigned)
            return tvm.tirx.bitwise_and(bits, tvm.tirx.const(without_sign, unsigned)) > limit

        return tvm.te.compute(value.shape, test, "is_nan")

    return builder.call_te(found, x, primfunc_name_hint="is_nan")


def bit_cast(builder: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    """Read the same bits as another type of the same width."""
    (x,) = inputs
    wanted = onnx.helper.tensor_dtype_to_np_dtype(int(attributes["to"])).name

    def cast(value: Any) -> Any:
        return tvm.te.compute(value.shape, lambda *at: tvm.tirx.reinterpret(wanted, value(*at)), "bit_cast")

    return x if wanted == dtype_of(x) else builder.call_te(cast, x, primfunc_name_hint="bit_cast")


def _factors(exponent: Any) -> int:
    """Return a constant exponent that is a whole number and worth multiplications, else 0."""
    if not isinstance(exponent, tvm.ir.GenericConst) or exponent.value.numpy().size != 1:
        return 0
    value = float(exponent.value.numpy().item())
    squared = value == 2 and "int" in dtype_of(exponent)
    return int(value) if value in _MULTIPLIED or squared else 0


def power(builder: Any, inputs: list[Any], _: dict[str, Any]) -> Any:
    """Raise to a power of another type, to a small whole one, or integers; None for others of one floating-point type.

    A call for each element, as LLVM makes of a third power, took 60 % of a GPT-2's time.
    """
    x, y = inputs
    kind = dtype_of(x)
    if "float" in kind and dtype_of(y) == kind:
        count = _factors(y) if y.ty.ndim <= x.ty.ndim else 0
        if not count:
            return None
        wide = "float32" if kind in _NARROW else kind  # each of its roundings would add up
        base = x if wide == kind else emit(builder, relax.op.astype(x, wide))
        product = chain(relax.op.multiply)(builder, [base] * count, {})
        return product if wide == kind else relax.op.astype(product, kind)
    if "int" in kind and y.ty.ndim <= x.ty.ndim and (count := _factors(y)):  # float64 has too few bits for it
        return chain(relax.op.multiply)(builder, [x] * count, {})
    wide = kind if "float" in kind else "float64"
    base, exponent = (emit(builder, relax.op.astype(one, wide)) for one in (x, y))
    return relax.op.astype(emit(builder, relax.op.power(base, exponent)), kind)
