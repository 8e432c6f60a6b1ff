"""Constants that are only moved or selected, and arithmetic with them, folded with NumPy. `FoldConstant` compiles a
program for every constant expression it meets. Most of these reorder a weight for the layout that `ConvertLayout`
chose, or guard a Clip's bound against NaN: 10 of the 12 s in which MobileNetV2 was lowered. Each Gather counts a
negative index from the end of a known shape: 7 of the 8 s of a vision transformer. Each normalisation that no
convolution takes in has the root of its variance: 2.6 of the 5.6 s of a LeViT. Constants that are quantised and back
took 11 of the 20 s of a BERT. What is computed here is rounded as a program does: each step to the nearest."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunery.dialects.metaschedule._tvm import relax, tvm
from tunery.dialects.metaschedule.importing.rules.common import rewritten


def move_constants(module: Any) -> Any:
    return rewritten(_Folder(module), module)


Array = npt.NDArray[Any]


def _transposed(call: Any, data: Array) -> Array:
    axes = call.attrs.axes
    return np.transpose(data, None if axes is None else [int(axis) for axis in axes])


def _taken(call: Any, data: Array, indices: Array) -> Array | None:
    axis, mode = call.attrs.axis, str(call.attrs.mode)
    place = None if axis is None else int(axis)
    size = data.size if place is None else data.shape[place]
    if mode == "fast" and not ((indices >= 0) & (indices < size)).all():
        return None
    return np.take(data, indices, place, mode="wrap" if mode == "wrap" else "clip") if mode in _TAKEN else None


def _exactly(compute: Callable[..., Array]) -> Callable[..., Array | None]:
    """Return a rule for arithmetic that NumPy rounds as a processor does: of floats of 32 and 64 bits."""

    def computed(_: Any, *data: Array) -> Array | None:
        if data[0].dtype not in _ROUNDED:
            return None
        with np.errstate(all="ignore"):
            return np.asarray(compute(*data))

    return computed


def _larger(a: Array, b: Array) -> Array:
    return np.asarray(np.where(np.greater(a, b), a, b))  # as a program does, also with NaN


def _smaller(a: Array, b: Array) -> Array:
    return np.asarray(np.where(np.less(a, b), a, b))


def _sum(call: Any, a: Array, b: Array) -> Array | None:
    return np.asarray(a + b) if a.dtype.kind == "i" else _exactly(np.add)(call, a, b)


def _cast(call: Any, data: Array) -> Array | None:
    try:
        dtype = np.dtype(str(call.ty.dtype))
    except TypeError:  # one that NumPy does not have
        return None
    if dtype.kind == "i" and data.dtype in _ROUNDED:
        bounds = np.iinfo(dtype)
        return data.astype(dtype) if ((data > bounds.min - 1) & (data < bounds.max + 1)).all() else None
    return data.astype(dtype) if data.dtype.kind == "i" and (dtype.kind == "i" or dtype in _ROUNDED) else None


def _itself(_: Any, data: Array) -> Array:
    return data


_TAKEN = ("fast", "wrap", "clip")
_ROUNDED = (np.float32, np.float64)
_COMPUTED: dict[str, Callable[..., Array | None]] = {
    "permute_dims": _transposed,
    "isnan": lambda _, data: np.asarray(np.isnan(data)),
    "where": lambda _, condition, yes, no: np.asarray(np.where(condition, yes, no)),
    "less": lambda _, a, b: np.asarray(np.less(a, b)),
    "add": _sum,
    "subtract": _exactly(np.subtract),
    "multiply": _exactly(np.multiply),
    "divide": _exactly(np.divide),
    "sqrt": _exactly(np.sqrt),
    "round": _exactly(np.rint),
    "maximum": _exactly(_larger),
    "minimum": _exactly(_smaller),
    "astype": _cast,
    "take": _taken,
    **dict.fromkeys(("reshape", "expand_dims", "squeeze", "flatten"), _itself),
}


@mutator
class _Folder(PyExprMutator):  # type: ignore[misc] # TVM has no types
    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self._computed = {tvm.ir.Op.get(f"relax.{name}"): compute for name, compute in _COMPUTED.items()}
        self._shape_to_tensor = tvm.ir.Op.get("relax.shape_to_tensor")

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        shape = _static(call.ty)
        data = None if shape is None else self._value(call)
        if data is None:
            return call
        return relax.const(np.array(data.reshape(shape), order="C"), str(call.ty.dtype))

    def _value(self, call: Any) -> Array | None:
        """Return what a call computes, None if it is another operator or not all of its arguments are constant."""
        if call.op == self._shape_to_tensor:
            sizes = _sizes(getattr(call.args[0].ty, "values", None))
            return None if sizes is None else np.array(sizes, np.int64)
        compute = self._computed.get(call.op)
        if compute is None:
            return None
        # A weight is copied on becoming an array, so not before all arguments are known to be constant.
        constants = [self._constant(argument) for argument in call.args[: 1 if compute is _itself else None]]
        return None if None in constants else compute(call, *(constant.value.numpy() for constant in constants))

    def _constant(self, argument: Any) -> Any:
        if isinstance(argument, relax.Var):
            argument = self.lookup_binding(argument)
        return argument if isinstance(argument, tvm.ir.GenericConst) else None


def _static(type_: Any) -> list[int] | None:
    return _sizes(getattr(type_, "shape", None))


def _sizes(values: Sequence[Any] | None) -> list[int] | None:
    try:
        return None if values is None else [int(size) for size in values]
    except (TypeError, ValueError):
        return None
