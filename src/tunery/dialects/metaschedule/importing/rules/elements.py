"""Operators of single elements."""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
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
        if "float" not in dtype_of(left):
            return run(bound(left, right))
        if isinstance(right, tvm.ir.GenericConst) and right.value.numpy().size == 1 and right.ty.ndim <= left.ty.ndim:
            right = const_like(
                right.value.numpy().reshape(()), left
            )  # a number in the program, which comes first there
            return run(relax.op.add(left, right) if np.isnan(right.value.numpy()).any() else bound(left, right))
        unordered = run(relax.op.where(run(before(right, left)), right, run(relax.op.add(left, right))))
        equal = run(relax.op.where(run(relax.op.equal(left, right)), left, unordered))
        return run(relax.op.where(run(before(left, right)), left, equal))

    return lambda builder, inputs, _: functools.reduce(functools.partial(two, builder), inputs)


def clip(builder: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    """Keep NaN, and take a bound that is NaN for none; one that is not given is the end of the type."""
    x, *bounds = (*inputs, None, None)[:3]
    kind = dtype_of(x)
    floats = "float" in kind
    for given, name, sign in zip(bounds, ("min", "max"), (-1, 1), strict=True):
        keep, before = (relax.op.maximum, relax.op.less) if sign < 0 else (relax.op.minimum, relax.op.greater)
        bound = given
        if bound is None and name in attributes:
            bound = const_like(attributes[name], x)
        elif bound is None and floats:
            bound = const_like(sign * float(tvm.tirx.max_value(kind).value), x)
        if bound is None:
            continue
        if not isinstance(bound, tvm.ir.GenericConst):
            x = emit(builder, relax.op.where(emit(builder, before(x, bound)), bound, x))
        elif not (floats and np.isnan(bound.value.numpy()).any()):
            x = emit(builder, keep(x, const_like(bound.value.numpy().reshape(()), x)))
    return x


def sign(builder: Any, inputs: list[Any], _: dict[str, Any]) -> Any:
    """Return the sign of a floating-point number, NaN of NaN; None for others, and for half precision."""
    (x,) = inputs
    if dtype_of(x) not in {"float32", "float64"}:
        return None
    negative = emit(builder, relax.op.less(x, const_like(0, x)))
    rest = emit(builder, relax.op.where(negative, const_like(-1, x), x))
    rest = emit(builder, relax.op.add(rest, const_like(0, x)))  # the sign of -0 is 0
    return relax.op.where(emit(builder, relax.op.greater(x, const_like(0, x))), const_like(1, x), rest)


def mean_of_many(builder: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
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


def celu(builder: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    """Keep the shape of a scalar, which TVM's form does not."""
    (x,), run = inputs, emitter(builder)
    zero, alpha = const_like(0, x), const_like(float(attributes.get("alpha", 1.0)), x)
    power = run(relax.op.exp(run(relax.op.divide(x, alpha))))
    below = run(relax.op.multiply(run(relax.op.subtract(power, const_like(1, x))), alpha))
    return relax.op.add(run(relax.op.maximum(x, zero)), run(relax.op.minimum(below, zero)))


def selu(builder: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    """Choose between two forms: as a sum of both, TVM's keeps the sign of -0, which ONNX Runtime does not."""
    (x,), run = inputs, emitter(builder)
    alpha, gamma = (
        const_like(float(attributes.get(name, usual)), x)
        for name, usual in (("alpha", 1.67326319217681884765625), ("gamma", 1.05070102214813232421875))
    )
    below = run(relax.op.subtract(run(relax.op.multiply(run(relax.op.exp(x)), alpha)), alpha))
    above = run(relax.op.greater(x, const_like(0, x)))
    return relax.op.multiply(run(relax.op.where(above, x, below)), gamma)


# log(1 + e) = 2 s (1 + z p(z)) for s = e / (2 + e), z = s^2 and 0 <= e <= 1: minimax, to half a unit in the last place
_LOG = (0.3333320915699005, 0.2001071572303772, 0.1400158852338791, 0.14002929627895355)
_MOST_MISH = 20.0  # from where on the factor is 1


def softplus(builder: Any, inputs: list[Any], _: dict[str, Any]) -> Any:
    """Keep what is small beside 1; None for other types, of which TVM's logarithm is accurate enough."""
    (x,) = inputs
    if dtype_of(x) != "float32":
        return None
    run = emitter(builder)
    power = run(relax.op.exp(run(relax.op.negative(run(relax.op.abs(x))))))
    share = run(relax.op.divide(power, run(relax.op.add(power, const_like(2, x)))))
    square = run(relax.op.multiply(share, share))
    series = const_like(_LOG[-1], x)
    for coefficient in (*reversed(_LOG[:-1]), 1.0):
        series = run(relax.op.add(run(relax.op.multiply(series, square)), const_like(coefficient, x)))
    double = run(relax.op.add(share, share))
    return relax.op.add(run(relax.op.maximum(x, const_like(0, x))), run(relax.op.multiply(double, series)))


def mish(builder: Any, inputs: list[Any], _: dict[str, Any]) -> Any:
    """Write the hyperbolic tangent of a logarithm without either: n / (n + 2) for n = e^x (e^x + 2)."""
    (x,) = inputs
    if dtype_of(x) not in {"float32", "float64"}:
        return None
    run, two = emitter(builder), const_like(2, x)
    power = run(relax.op.exp(run(relax.op.minimum(x, const_like(_MOST_MISH, x)))))
    part = run(relax.op.multiply(power, run(relax.op.add(power, two))))
    return relax.op.multiply(x, run(relax.op.divide(part, run(relax.op.add(part, two)))))


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
    (x,) = inputs
    wanted = onnx.helper.tensor_dtype_to_np_dtype(int(attributes["to"])).name

    def cast(value: Any) -> Any:
        return tvm.te.compute(value.shape, lambda *at: tvm.tirx.reinterpret(wanted, value(*at)), "bit_cast")

    return x if wanted == dtype_of(x) else builder.call_te(cast, x, primfunc_name_hint="bit_cast")


def cast(builder: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    """Cut floats to integers as x86 does: what does not fit is the lowest integer, of 32 bits for narrower types. None
    for other casts. Large unsigned integers of 64 bits lie above the middle, those of 32 bits fit 64."""
    x, like = (*inputs, None)[:2]
    if not isinstance(x, relax.Var | relax.Call) or "float" not in dtype_of(x := emit(builder, x)):
        return None
    to = dtype_of(like) if like is not None else onnx.helper.tensor_dtype_to_np_dtype(int(attributes["to"])).name
    sizes = {"int8": 32, "uint8": 32, "int16": 32, "uint16": 32, "int32": 32, "uint32": 64, "int64": 64, "uint64": 64}
    if to not in sizes:
        return None
    bits = sizes[to]
    end = 2.0 ** (bits - 1)

    def fitted(value: Any) -> Any:
        low, high = (tvm.tirx.const(one, str(value.ty.dtype)) for one in (-end, end))
        fits = tvm.tirx.all(value >= low, value < high)
        return tvm.tirx.Select(fits, value.astype(f"int{bits}"), tvm.tirx.min_value(f"int{bits}"))

    def element(value: Any) -> Any:
        value = value if str(value.ty.dtype) in {"float32", "float64"} else value.astype("float32")
        if to != "uint64":
            return fitted(value).astype(to)
        middle = tvm.tirx.const(end, str(value.ty.dtype))
        upper = tvm.tirx.bitwise_xor(fitted(value - middle), tvm.tirx.min_value("int64"))
        return tvm.tirx.Select(value >= middle, upper, fitted(value)).astype(to)

    def cut(value: Any) -> Any:
        return tvm.te.compute(value.shape, lambda *at: element(value(*at)), "cast")

    return builder.call_te(cut, x, primfunc_name_hint="cast")


def _factors(exponent: Any, *, whole: bool) -> int:
    """Return a constant exponent that is a whole number and worth multiplications (of `whole` numbers), else 0."""
    if not isinstance(exponent, tvm.ir.GenericConst) or exponent.value.numpy().size != 1:
        return 0
    value = float(exponent.value.numpy().item())
    return int(value) if value in _MULTIPLIED or (value == 2 and whole) else 0


def power(builder: Any, inputs: list[Any], _: dict[str, Any]) -> Any:
    """Raise to a power of another type, to a small whole one, or integers; None for others of one floating-point type.
    A call for each element, as LLVM makes of a third power, took 60 % of a GPT-2's time."""
    x, y = inputs
    kind = dtype_of(x)
    if "float" in kind and dtype_of(y) == kind:
        count = _factors(y, whole=False) if y.ty.ndim <= x.ty.ndim else 0
        if not count:
            return None
        wide = "float32" if kind in _NARROW else kind  # each of its roundings would add up
        base = x if wide == kind else emit(builder, relax.op.astype(x, wide))
        product = chain(relax.op.multiply)(builder, [base] * count, {})
        return product if wide == kind else relax.op.astype(product, kind)
    if (
        "int" in kind and y.ty.ndim <= x.ty.ndim and (count := _factors(y, whole=True))
    ):  # float64 has too few bits for it
        return chain(relax.op.multiply)(builder, [x] * count, {})
    wide = kind if "float" in kind else "float64"
    base, exponent = (emit(builder, relax.op.astype(one, wide)) for one in (x, y))
    return relax.op.astype(emit(builder, relax.op.power(base, exponent)), kind)
