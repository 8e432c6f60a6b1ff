"""exp, erf, tanh and sigmoid as arithmetic that vectorises: TVM calls the C library, or cancels small numbers.

A GELU of 262,144 elements took 1.2 ms on two threads, more than either of the dense layers beside it reads its weights
in. Importing this module registers the rules with TVM, for float32 on CPUs; other types stay as they were.

All are minimax approximations fitted for this module (Lawson's iteration in float64, coefficients then rounded to
float32 one by one). Their error is at most 2 units in the last place over all arguments, where the result is no normal
number 2 units of the smallest. NaN stays NaN.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tunery.dialects.metaschedule._tvm import tvm

_LOG2E = 1.4426950408889634
# ln 2 in two parts: the first has few bits, so that its products with whole numbers are exact.
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
_LARGEST, _SMALLEST = 89.0, -104.0  # from where on exp rounds to infinity, and to 0
# exp(r) = 1 + r + r^2 q(r) for |r| <= ln(2) / 2
_EXP = (0.4999999403953552, 0.1666652113199234, 0.04166838899254799, 0.008368716575205326, 0.0013814606936648488)
# erf(x) = x + x p(x^2) up to a limit, then 1 - 1 / q(x)^8 up to another, from where it rounds to 1
_ERF_LIMIT, _ERF_ONE, _SQUARINGS = 1.3, 4.0, 3
_ERF_NEAR = (
    0.12837916612625122, -0.3761262595653534, 0.11283620446920395, -0.02685789205133915, 0.005204388406127691,
    -0.0008293866412714124, 0.00010172803740715608, -7.1563003984920215e-06,
)  # fmt: skip
_ERF_FAR = (
    1.0334928035736084, 0.012386304326355457, 0.29633358120918274, -0.15432430803775787, 0.09186386317014694,
    -0.022787204012274742, 0.003215758129954338,
)  # fmt: skip
# tanh(x) = x + x^3 p(x^2) up to a limit, then 1 - 2 / (exp(2x) + 1)
_TANH_LIMIT, _TANH_ONE = 0.55, 10.0
_TANH = (
    -0.33333316445350647, 0.13332544267177582, -0.0538475476205349, 0.02105071395635605, -0.0062428489327430725,
)  # fmt: skip
_SMALL, _SERIES = 0.02, (-1 / 3, 2 / 15, -17 / 315, 62 / 2835)
_MANTISSA_BITS, _BIAS = 23, 127


def exponential(x: Any) -> Any:
    """Return exp of a float32 expression."""
    lanes = _lanes(x)
    # A constant comes first: the instruction gives its second operand where one is NaN.
    bounded = tvm.tirx.Min(_float(_LARGEST, lanes), tvm.tirx.Max(_float(_SMALLEST, lanes), x))
    return _let("bounded", bounded, _exponential)


def _exponential(x: Any) -> Any:
    """Return exp of what is not too large or small."""
    types, lanes = tvm.tirx, _lanes(x)

    def scaled(power: Any) -> Any:
        rest = x - power * _float(_LN2_HIGH, lanes) - power * _float(_LN2_LOW, lanes)

        def near_one(r: Any) -> Any:
            return _horner(_EXP, r, lanes) * (r * r) + r + _float(1.0, lanes)

        # In two steps: 2^128 is no float32, and what is below 2^-126 is rounded once.
        whole = types.Cast(_type("int32", lanes), power)
        half = whole >> _whole(1, lanes)
        return _let("rest", rest, near_one) * _power_of_two(half, lanes) * _power_of_two(whole - half, lanes)

    return _let("power", types.floor(x * _float(_LOG2E, lanes) + _float(0.5, lanes)), scaled)


def _power_of_two(exponent: Any, lanes: int) -> Any:
    bits = (exponent + _whole(_BIAS, lanes)) << _whole(_MANTISSA_BITS, lanes)
    return tvm.tirx.reinterpret(_type("float32", lanes), bits)


def error_function(x: Any) -> Any:
    lanes = _lanes(x)

    def near(size: Any) -> Any:
        return _let("square", size * size, lambda square: size * _horner(_ERF_NEAR, square, lanes) + size)

    def far(size: Any) -> Any:
        return _raised(_horner(_ERF_FAR, size, lanes), _SQUARINGS)

    def _raised(base: Any, squarings: int) -> Any:
        if squarings:
            return _let("base", base, lambda value: _raised(value * value, squarings - 1))
        return _float(1.0, lanes) - _float(1.0, lanes) / base

    return _odd(x, near, far, _ERF_LIMIT, _ERF_ONE)


def hyperbolic_tangent(x: Any) -> Any:
    lanes = _lanes(x)

    def near(size: Any) -> Any:
        return _let("square", size * size, lambda square: size * (square * _horner(_TANH, square, lanes)) + size)

    def far(size: Any) -> Any:
        return _float(1.0, lanes) - _float(2.0, lanes) / (_exponential(size + size) + _float(1.0, lanes))

    return _odd(x, near, far, _TANH_LIMIT, _TANH_ONE)


def _small_tangent(x: Any, otherwise: Any) -> Any:
    """Return tanh of a float64 by its series where it is small; TVM's quotient cancels there."""
    lanes = _lanes(x)

    def number(value: float) -> Any:
        return _spread(tvm.tirx.FloatImm("float64", value), lanes)

    square, total = x * x, number(_SERIES[-1])
    for coefficient in reversed(_SERIES[:-1]):
        total = total * square + number(coefficient)
    return tvm.tirx.Select(tvm.tirx.abs(x) < number(_SMALL), x * (number(1.0) + square * total), otherwise)


def _odd(x: Any, near: Callable[[Any], Any], far: Callable[[Any], Any], limit: float, end: float) -> Any:
    """Return an odd function: `near` of the size below a limit, else `far`, which changes no more beyond the `end`."""
    types, lanes = tvm.tirx, _lanes(x)
    bits, single = _type("uint32", lanes), _type("float32", lanes)
    sign = _spread(types.const(1 << 31, "uint32"), lanes)

    def signed(given: Any) -> Any:
        def chosen(size: Any) -> Any:
            return types.Select(size > _float(limit, lanes), far(size), near(size))

        made = _let("size", types.Min(_float(end, lanes), types.abs(given)), chosen)
        whole = types.bitwise_or(types.reinterpret(bits, made), types.bitwise_and(types.reinterpret(bits, given), sign))
        return types.reinterpret(single, whole)

    return _let("x", x, signed)


def sigmoid(x: Any) -> Any:
    """Return the sigmoid of a float32 expression, by the exponential of what is not positive, which is never large."""
    lanes = _lanes(x)
    one = _float(1.0, lanes)

    def of(given: Any) -> Any:
        def share(power: Any) -> Any:
            part = tvm.tirx.Select(given < _float(0.0, lanes), power, one)
            return part - part * (power / (power + one))  # more accurate than the quotient

        return _let("power", exponential(-tvm.tirx.abs(given)), share)

    return _let("x", x, of)


def _horner(coefficients: Sequence[float], x: Any, lanes: int) -> Any:
    total: Any = _float(coefficients[-1], lanes)
    for coefficient in reversed(coefficients[:-1]):
        total = total * x + _float(coefficient, lanes)
    return total


def _let(name: str, value: Any, body: Callable[[Any], Any]) -> Any:
    variable = tvm.tirx.Var(name, value.ty)
    return tvm.tirx.Let(variable, value, body(variable))


def _lanes(x: Any) -> int:
    _, _, lanes = str(x.ty.dtype).partition("x")
    return int(lanes or 1)


def _type(name: str, lanes: int) -> str:
    return name if lanes == 1 else f"{name}x{lanes}"


def _float(value: float, lanes: int) -> Any:
    return _spread(tvm.tirx.FloatImm("float32", value), lanes)


def _whole(value: int, lanes: int) -> Any:
    return _spread(tvm.tirx.IntImm("int32", value), lanes)


def _spread(scalar: Any, lanes: int) -> Any:
    return scalar if lanes == 1 else tvm.tirx.Broadcast(scalar, lanes)


def _rule(name: str, vectorised: Callable[[Any], Any]) -> Callable[[Any], Any]:
    operator = tvm.ir.Op.get(f"tirx.{name}")
    before = next(filter(None, map(operator.get_attr, _LOWERINGS)))

    def lowered(call: Any) -> Any:
        x = call.args[0]
        kind = str(x.ty.dtype).partition("x")[0]
        if kind == "float64" and name == "tanh":
            return _small_tangent(x, before(call))
        return vectorised(x) if kind == "float32" else before(call)

    return lowered


def _inverse_tangent(call: Any) -> Any:
    """Return the C library's: as the difference of two logarithms it has no small numbers."""
    kind = str(call.ty.dtype)
    return tvm.tirx.call_pure_extern(kind, "atanhf" if kind == "float32" else "atanh", call.args[0])


_LOWERINGS = ("llvm.FLowerIntrinsic", "llvm.FLegalize", "default.FLowerIntrinsic", "default.FLegalize")
_LEVEL = 99  # above that of TVM's own rules
FUNCTIONS: Mapping[str, Callable[[Any], Any]] = {
    "exp": exponential,
    "erf": error_function,
    "tanh": hyperbolic_tangent,
    "sigmoid": sigmoid,
}
for _name, _vectorised in FUNCTIONS.items():
    tvm.tirx.register_intrin_lowering(f"tirx.{_name}", target="llvm", f=_rule(_name, _vectorised), level=_LEVEL)
tvm.tirx.register_intrin_lowering("tirx.atanh", target="llvm", f=_inverse_tangent, level=_LEVEL)
