"""Compile random graphs, and compare each with ONNX Runtime without its optimiser, on special values too.

    python tests/helpers/random_graphs.py [--count 2000] [--seed 0] [--out FOLDER]

Every node is tried alone on all input sets, four times: as it is, and with the results of inexact operators changed by
about a rounding. What that changes much is no fault where ours differs; where it changes which value it is, nothing is
compared. Sets: ordinary numbers, special ones, ties, magnitudes. A wrong graph is cut down and written to FOLDER, as
`benchmarks/values.py` reads it; the exit code is 1.
"""

import argparse
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from tunery.delivery.files.loading import load_compiled
from tunery.dialects.metaschedule import MetaScheduleDialect
from tunery.models import prepare


def words(text: str) -> list[str]:
    return text.split()


OPSET, SETS, VARIANTS = 20, 4, 6
MOST, HUGE, LIMIT = 1024, 1e16, 2**31
EPS = {"float16": 2.0**-10, "float32": 2.0**-22, "float64": 2.0**-40}
SPECIAL = [0, -0.0, 1, -1, 0.5, 2, -3, np.inf, -np.inf, np.nan, 1e-39, -1e-42, 88.0, -95.0, 1e10, -1e20, 3e38, 1e-7, 7]
INTEGERS = [0, 1, -1, 2, 3, 7, -7, 127, -128, 2**15, 2**16 + 1, 46341, 2**31 - 1, -(2**31), 2**33 + 5, 2**62, -(2**63)]
FLOATS, WHOLE = ("float32", "float16", "float64"), ("int64", "int32", "int8", "uint8")
KINDS = ("float32",) * 5 + ("float16", "float64", "int64", "int64", "int32", "uint8", "int8", "bool")
SHAPES = [(2, 4, 6, 5), (1, 4, 8, 6), (3, 8), (4, 6, 5), (7,), (1, 4, 1, 5), (3, 17), (), (2, 3, 16)]
UNARY = words("""Abs Neg Relu Ceil Floor Round Sign Identity IsNaN IsInf Sqrt Reciprocal Exp Log Erf Tanh Sigmoid Sin
    Cos Atan Asinh Sinh Cosh Softplus Softsign Mish Gelu Elu Selu Celu LeakyRelu HardSigmoid HardSwish ThresholdedRelu
    Not BitwiseNot Acos Atanh""")
BINARY = words("Add Sub Mul Div Max Min Pow Mod PRelu BitwiseAnd BitwiseXor And Or Xor BitShift")
PLANES = words("""Conv ConvTranspose MaxPool AveragePool GlobalAveragePool GlobalMaxPool BatchNormalization
    InstanceNormalization DepthToSpace SpaceToDepth Resize""")
COMPARE = words("Equal Less Greater LessOrEqual GreaterOrEqual")
REDUCE = words("""ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSumExp ReduceSumSquare
    ReduceLogSum""")
ROUNDED = {"Add", "Sub", "Mul", "Div", "Sqrt"}
CHOSEN = set(words("""Abs Neg Relu Ceil Floor Round Sign Identity Max Min Clip Where Transpose Reshape Flatten Unsqueeze
    Squeeze Expand Tile Slice Split Concat Pad Gather GatherElements GatherND ScatterElements MaxPool DepthToSpace
    SpaceToDepth ReduceMax ReduceMin Trilu Cast ThresholdedRelu IsNaN IsInf Mod"""))  # fmt: skip
JUMPS = {*COMPARE, *words("Ceil Floor Round Sign ArgMax ArgMin QuantizeLinear Cast Mod")}
SUMS = {*REDUCE, *words("""MatMul Gemm Conv ConvTranspose AveragePool GlobalAveragePool CumSum LayerNormalization Einsum
    Pow InstanceNormalization BatchNormalization Softmax LogSoftmax Resize QuantizeLinear""")}  # fmt: skip
ABSOLUTE = {"Sigmoid": 0.3, **dict.fromkeys(("Gelu", "Elu", "Selu", "Celu", "Mish"), 0.5)}
"""Of these ONNX Runtime cancels, which is off by about so many roundings of what they are computed of, or of 1."""
ORDERED, WINDOWS = (
    {"ArgMax", "ArgMin", "ReduceLogSumExp", "MaxPool", "GlobalMaxPool", "ReduceMax", "ReduceMin"},
    {"Conv", "ConvTranspose", "Resize"},
)
Values = list[list[np.ndarray]]
"""By input set and variant."""


def session(model: onnx.ModelProto) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def drawn(rng: np.random.Generator, kind: str, shape: tuple[int, ...], number: int) -> np.ndarray:
    if kind == "bool":
        return np.asarray(rng.random(shape) < (0.5, 0, 1, 0.8)[number])
    if kind not in FLOATS:
        bounds = np.iinfo(kind)
        few = [one for one in INTEGERS if bounds.min <= one <= bounds.max]
        low = max(bounds.min, -9)
        return np.asarray(rng.choice(few, shape) if number == 1 else rng.integers(low, 10, shape)).astype(kind)
    values = rng.standard_normal(shape) * (1, 3, 2, 1)[number]
    if number == 1:
        values = np.where(rng.random(shape) < 0.5, rng.choice(SPECIAL, shape), values)
        if len(shape) > 1 and rng.random() < 0.5:
            values[0] = rng.choice([-np.inf, np.nan, np.inf, 0.0])
    elif number == 2:
        values = np.round(values) / 2
    elif number == 3:
        values = values * 10.0 ** rng.integers(-9, 4, shape)
    with np.errstate(over="ignore"):
        return np.asarray(values).astype(kind)


@dataclass
class Graph:
    rng: np.random.Generator
    values: dict[str, Values] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    grown: set[str] = field(default_factory=set)
    """Halves that may be finite in single: ONNX Runtime rounds them before what only moves elements."""

    def source(self, kind: str, shape: tuple[int, ...], *, constant: bool) -> str:
        name = f"{'c' if constant else 'x'}{len(self.values) + len(self.constants)}"
        sets = [drawn(self.rng, kind, shape, 0 if constant else number) for number in range(SETS)]
        if constant:
            sets = [sets[0]] * SETS
            self.constants[name] = sets[0]
        else:
            self.inputs.append(name)
        self.values[name] = [[one] * VARIANTS for one in sets]
        return name

    def add(self, operator: str, reads: list[Any], outputs: int = 1, **attributes: Any) -> str:
        """Add a node unless ONNX Runtime refuses it, or is not exact there itself; return its first output, or ""."""
        arrays = [one for one in reads if isinstance(one, np.ndarray)]
        constants = {f"k{len(self.constants) + at}": one for at, one in enumerate(arrays)}
        unnamed = iter(constants)
        names = [next(unnamed) if isinstance(one, np.ndarray) else one for one in reads]
        made = [f"v{len(self.nodes)}_{at}" for at in range(outputs)]
        node = helper.make_node(operator, names, made, **attributes)
        given = [self.values.get(name) or [[constants[name]] * VARIANTS] * SETS for name in names if name]
        if operator in {"Div", "Mod"} and any(map(traps, *given)):
            return ""
        read = {name: self.values[name][0][0] for name in names if name in self.values}
        try:
            alone = session(model([node], read, [onnx.ValueInfoProto(name=one) for one in made], constants))
            found = [[alone.run(None, self._fed(operator, read, number, variant)) for variant in range(VARIANTS)]
                     for number in range(SETS)]  # fmt: skip
        except Exception:  # noqa: BLE001 - it is no valid node
            return ""
        if not {str(one.dtype) for one in found[0][0]} <= {*KINDS} or any(
            not 0 < one.size <= MOST for one in found[0][0]
        ):
            return ""
        if not all(fair(operator, [one[number][0] for one in given]) for number in range(SETS)):
            return ""
        grown = any(name in self.grown for name in names) or (
            np.asarray(found[0][0][0]).dtype == np.float16 and any(map(overflows, found, zip(*given, strict=True)))
        )
        if operator in CHOSEN and grown:
            return ""
        if operator in JUMPS and any(loose(one) for one in given) and self.rng.random() < 0.9:
            return ""
        self.nodes.append(node)
        self.constants |= constants
        self.grown |= {*made} if grown else set()
        for at, name in enumerate(made):
            self.values[name] = [
                [
                    self._noise(operator, given, number, variant, found[number][variant][at])
                    for variant in range(VARIANTS)
                ]
                for number in range(SETS)
            ]
        return made[0]

    def _fed(self, operator: str, read: dict[str, Any], number: int, variant: int) -> dict[str, np.ndarray]:
        """Return a node's inputs; those of a sum are changed, for it may cancel."""
        fed = {name: self.values[name][number][variant] for name in read}
        factor = 16 if "Normalization" in operator or operator == "Resize" else 1  # means of equal numbers, and places
        return {name: self._changed(one, variant, factor) for name, one in fed.items()} if operator in SUMS else fed

    def _noise(self, operator: str, given: list[Values], number: int, variant: int, value: np.ndarray) -> np.ndarray:
        value = np.asarray(value)
        if operator in CHOSEN and not (operator in {"Cast", "Clip"} and value.dtype == np.float16):
            return value
        changed = self._changed(value, variant)
        if operator in ABSOLUTE and variant and value.dtype.kind == "f":
            size = ABSOLUTE[operator] * np.maximum(1, np.abs(given[0][number][variant])) * EPS[value.dtype.name]
            return changed + (size * self.rng.choice([-1.0, 1.0], value.shape)).astype(value.dtype)
        if operator in {"Add", "Sub"} and variant and value.dtype.kind == "f" and any(map(loose, given)):  # of products
            size = np.maximum(*(np.abs(one[number][variant]) for one in given)) * EPS[value.dtype.name]
            return np.asarray(changed + size * self.rng.choice([-0.5, 0.5], value.shape)).astype(value.dtype)
        if operator in ROUNDED and value.dtype.kind == "f" and value.dtype != np.float64:
            operands = [np.asarray(one[number][variant], np.float64) for one in given]
            how = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Sqrt": np.sqrt}[operator]
            with np.errstate(all="ignore"):
                exact = how(*operands) if len(operands) == how.nin else np.full(value.shape, np.nan)
            return np.where(exact == value, value, changed)
        return changed

    def _changed(self, value: np.ndarray, variant: int, factor: float = 1) -> np.ndarray:
        if not variant or value.dtype.kind != "f":
            return value
        with np.errstate(all="ignore"):  # all larger, all smaller, then anyhow
            sign = {1: 1.0, 2: -1.0}.get(variant, self.rng.choice([-1.0, 1.0], value.shape))
            noise = 1 + factor * EPS[value.dtype.name] * sign
            return np.asarray(value * noise).astype(value.dtype)

    def pick(self, kinds: str = "f", rank: int | None = None) -> str:
        names = [name for name, one in self.values.items()
                 if one[0][0].dtype.kind in kinds and rank in (None, one[0][0].ndim)]  # fmt: skip
        return str(self.rng.choice(names[-8:] if self.rng.random() < 0.5 else names)) if names else ""

    def like(self, name: str) -> Any:
        """Return another value that fits to one, or a constant that is broadcast."""
        one = self.values[name][0][0]
        same = [other for other, value in self.values.items() if value[0][0].dtype == one.dtype
                and value[0][0].shape in (one.shape, one.shape[-1:], ())]  # fmt: skip
        if self.rng.random() < 0.6:
            return str(self.rng.choice(same))
        shape = tuple(
            size if self.rng.random() < 0.5 else 1 for size in one.shape[self.rng.integers(0, one.ndim + 1) :]
        )
        return drawn(self.rng, one.dtype.name, shape, int(self.rng.choice([0, 1, 2])))

    def model(self, outputs: list[str]) -> onnx.ModelProto:
        inputs = {name: self.values[name][0][0] for name in self.inputs}
        return model(self.nodes, inputs, [_info(name, self.values[name][0][0]) for name in outputs], self.constants)


def loose(value: Values) -> bool:
    """Whether rounding changes a value."""
    return any(not np.array_equal(one[0], other, equal_nan=True) for one in value for other in one[1:])


def traps(dividends: list[np.ndarray], divisors: list[np.ndarray]) -> bool:
    """Whether ONNX Runtime ends the process, in any variant: by the least integer of 32 or 64 bits divided by -1."""
    return any(
        one.dtype in (np.int32, np.int64) and ((two == -1) & (one == np.iinfo(one.dtype).min)).any()
        for one, two in zip(dividends, divisors, strict=True)
    )


def negative_zeros(value: np.ndarray) -> bool:
    return bool((np.signbit(value) & (value == 0)).any())


def overflows(results: list[Any], operands: tuple[list[np.ndarray], ...]) -> bool:
    """Whether a node makes infinities of finite numbers in a set."""
    finite = all(np.isfinite(one[0]).all() for one in operands if one[0].dtype.kind == "f")
    return finite and not np.isfinite(results[0][0]).all()


def reach(value: np.ndarray) -> float:
    return float(np.abs(value.astype(np.float64)).max(initial=0))


def fair(operator: str, operands: list[np.ndarray]) -> bool:
    """Whether ONNX Runtime computes what does not hang on places, rounds no more than others, and is exact."""
    floats = [one for one in operands if one.dtype.kind == "f"]
    largest = max((np.abs(one[np.isfinite(one)].astype(np.float64)).max(initial=0) for one in floats), default=0)
    finite, numbers = (all(test(one).all() for one in floats) for test in (np.isfinite, lambda one: ~np.isnan(one)))
    half, double = (any(one.dtype == kind for one in floats) for kind in (np.float16, np.float64))
    first, last, whole = operands[0], operands[-1], operands[0].dtype.kind in "iu"
    size = np.abs(first.astype(np.float64)) if whole else np.zeros(1)
    with np.errstate(all="ignore"):
        unfair = (
            operator in SUMS and largest > (100 if half else HUGE),
            operator in ORDERED and not numbers,
            "Softmax" in operator and double and not (numbers and all((one < np.inf).all() for one in floats)),
            "MaxPool" in operator and any(np.isneginf(one).any() for one in floats),
            operator == "Where" and any(map(negative_zeros, floats)),  # which it makes 0
            operator == "QuantizeLinear" and half and not finite,
            operator == "PRelu" and not (np.isfinite(last).all() and last.ndim <= first.ndim),
            operator in WINDOWS and not finite,
            operator in {"Max", "Min"} and any(map(negative_zeros, floats)),
            operator == "InstanceNormalization" and not first.std(tuple(range(2, first.ndim))).min() > 1e-3 * largest,
            operator == "BitShift" and (last >= 8 * last.dtype.itemsize).any(),
            operator == "Pow" and whole and not (size**last < LIMIT).all(),
            operator in REDUCE and max(size.sum(), np.square(size).sum(), np.maximum(size, 1).prod()) > LIMIT,
            operator in {"Max", "Min", "Clip", "Sign"} and whole and max(map(reach, operands)) > LIMIT,
            operator in {"Div", "Mod"} and whole and (last == 0).any(),
        )  # fmt: skip
    return not any(unfair)


def model(
    nodes: list[onnx.NodeProto], inputs: dict[str, np.ndarray], outputs: list[Any], constants: dict[str, np.ndarray]
) -> onnx.ModelProto:
    declared = [_info(name, one) for name, one in inputs.items()]
    weights = [numpy_helper.from_array(one, name) for name, one in constants.items()]
    graph = helper.make_graph(nodes, "random", declared, outputs, weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
    return onnx.shape_inference.infer_shapes(made, data_prop=True)


def _info(name: str, value: np.ndarray) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)


def element(g: Graph) -> None:
    operator = str(g.rng.choice(UNARY))
    x = g.pick(
        "b" if operator == "Not" else "iu" if operator == "BitwiseNot" else "f" if g.rng.random() < 0.8 else "fiu"
    )
    g.add(operator, [x])


def pair(g: Graph) -> None:
    operator = str(g.rng.choice([*BINARY, *BINARY[:7], *COMPARE]))
    kinds = "b" if operator in {"And", "Or", "Xor"} else "iu" if "Bit" in operator or g.rng.random() < 0.3 else "f"
    if x := g.pick(kinds):
        both = [x, x if g.rng.random() < 0.1 else g.like(x)]
        more = (
            {"direction": "LEFT"}
            if operator == "BitShift"
            else {"fmod": 1}
            if operator == "Mod" and kinds == "f"
            else {}
        )
        made = g.add(operator, both if g.rng.random() < 0.7 else both[::-1], **more)
        if operator in COMPARE and made and (y := g.pick("fiu")):
            made = g.add("Not", [made]) if g.rng.random() < 0.3 else made
            g.add("Where", [made, y, g.like(y)] if g.rng.random() < 0.5 else [made, g.like(y), y])


def masked(g: Graph) -> None:
    if (x := g.pick("f")) and (mask := g.pick("b")):
        low = np.array(g.rng.choice([-np.inf, np.finfo(g.values[x][0][0].dtype).min]), g.values[x][0][0].dtype)
        hidden = g.add("Where", [mask, x, low])
        if hidden and g.values[hidden][0][0].ndim:
            g.add(
                str(g.rng.choice(["Softmax", "LogSoftmax", "ReduceLogSumExp", "ReduceMax", "ArgMax", "Exp"])), [hidden]
            )


def bounded(g: Graph) -> None:
    if x := g.pick("fi"):
        kind = g.values[x][0][0].dtype
        ends = [np.array(one, kind) for one in sorted(g.rng.choice([-2, -1, 0, 0, 1, 6], 2))]
        g.add("Clip", [x, *ends] if g.rng.random() < 0.7 else [x, ends[0]])


def cast(g: Graph) -> None:
    if x := g.pick("fiub"):
        g.add("Cast", [x], to=helper.np_dtype_to_tensor_dtype(np.dtype(str(g.rng.choice([*FLOATS, *WHOLE, "bool"])))))


def reduced(g: Graph) -> None:
    if (x := g.pick("f" if g.rng.random() < 0.8 else "fi")) and (rank := g.values[x][0][0].ndim):
        keep = int(g.rng.integers(0, 2))
        if g.rng.random() < 0.3:
            g.add(str(g.rng.choice(["ArgMax", "ArgMin"])), [x], axis=int(g.rng.integers(-rank, rank)), keepdims=keep)
        else:
            axes = g.rng.permutation(rank)[: g.rng.integers(1, rank + 1)].astype(np.int64)
            g.add(str(g.rng.choice(REDUCE)), [x, axes], keepdims=keep)


def along(g: Graph) -> None:
    if (x := g.pick("f")) and (rank := g.values[x][0][0].ndim):
        axis, operator = (
            int(g.rng.integers(-rank, rank)),
            str(g.rng.choice(["Softmax", "LogSoftmax", "CumSum", "LayerNormalization"])),
        )
        if operator == "CumSum":
            g.add(operator, [x, np.array(axis)], exclusive=int(g.rng.integers(0, 2)), reverse=int(g.rng.integers(0, 2)))
        elif operator == "LayerNormalization":
            value = g.values[x][0][0]
            g.add(operator, [x, *(drawn(g.rng, value.dtype.name, value.shape[axis:], 0) for _ in "ab")], axis=axis)
        else:
            g.add(operator, [x], axis=axis)


def moved(g: Graph) -> None:
    x, rng = g.pick("fiub"), g.rng
    shape = g.values[x][0][0].shape
    if not shape:
        g.add("Unsqueeze", [x, np.array([0])])
        return
    rank, axis = len(shape), int(rng.integers(0, len(shape)))
    size, slices = shape[axis], [(0, 2, 1), (-2, 100, 1), (1, -1, 1), (-1, -100, -1), (-1, -100, -2), (0, 100, 2)]
    start, end, step = slices[rng.integers(0, len(slices))]
    some, like = [(), (3,), (2, 2)][rng.integers(0, 3)], g.like(x)
    places = np.broadcast_to(rng.permutation(size).reshape([-1 if at == axis else 1 for at in range(rank)]), shape)
    forms: list[tuple[str, list[Any], dict[str, Any]]] = [
        ("Transpose", [], {"perm": [int(one) for one in rng.permutation(rank)]}),
        ("Reshape", [np.array([0, -1])], {}), ("Flatten", [], {}), ("Expand", [np.array([2, *[1] * rank])], {}),
        ("Tile", [rng.integers(1, 3, rank)], {}),
        ("Slice", [np.array([one]) for one in (start, end, axis, step)], {}),
        ("Split", [np.array([1, size - 1])], {"axis": axis}), ("Concat", [like, x], {"axis": axis}),
        ("Pad", [rng.integers(0, 3, 2 * rank)], {"mode": str(rng.choice(["constant", "reflect", "edge"]))}),
        ("Gather", [np.asarray(rng.integers(-size, size, some))], {"axis": axis}),
        ("GatherElements", [rng.integers(-size, size, shape)], {"axis": axis}),
        ("ScatterElements", [np.ascontiguousarray(places), x], {"axis": axis}),
        ("Trilu", [], {"upper": int(rng.integers(0, 2))}),
    ]  # fmt: skip
    operator, more, attributes = forms[rng.integers(0, len(forms))]
    g.add(operator, [x, *more], 2 if operator == "Split" else 1, **attributes)


def sizes(g: Graph) -> None:
    """Add shapes that are computed of others, and folded."""
    x = g.pick("fiu")
    if g.values[x][0][0].ndim and (shape := g.add("Shape", [x])):
        if wanted := g.add("Concat", [np.array([-1]), g.add("Gather", [shape, np.array([-1])])], axis=0):
            g.add("Reshape", [x, wanted])
        two = numpy_helper.from_array(np.array([2], g.values[x][0][0].dtype))
        if (filled := g.add("ConstantOfShape", [shape], value=two)) and (same := g.add("Equal", [x, filled])):
            g.add("Where", [same, filled, x])


def product(g: Graph) -> None:
    if not (x := g.pick("f")) or not (rank := g.values[x][0][0].ndim):
        return
    value = g.values[x][0][0]
    kind, columns = value.dtype.name, value.shape[-1]
    if g.rng.random() < 0.6 or rank != 2:
        g.add("MatMul", [x, drawn(g.rng, kind, (columns, 4), 0)])
    else:
        g.add(
            "Gemm",
            [x, drawn(g.rng, kind, (5, columns), 0), drawn(g.rng, kind, (5,), 0)],
            transB=1,
            alpha=float(g.rng.choice([0, 0.5, 1])),
            beta=float(g.rng.choice([0, 2])),
        )


def window(g: Graph) -> None:
    if not (x := g.pick("f", 4)):
        return
    value, rng = g.values[x][0][0], g.rng
    count, kind = value.shape[1], value.dtype.name
    operator = str(rng.choice(PLANES))
    kernel = [[1, 1], [3, 3], [2, 3], [1, 3]][rng.integers(0, 4)]
    common: dict[str, Any] = {"kernel_shape": kernel, "strides": [[1, 1], [2, 2], [1, 2]][rng.integers(0, 3)]}
    pads: list[dict[str, Any]] = [{}, {"auto_pad": "SAME_UPPER"}, {"auto_pad": "SAME_LOWER"}]
    pads += [{"pads": [*first, kernel[0] // 2, kernel[1] // 2]} for first in ([0, 0], [kernel[0] // 2, kernel[1] // 2])]
    common |= pads[rng.integers(0, len(pads))]
    group, four = int(rng.choice([1, count])), [drawn(rng, kind, (count,), 0) for _ in range(4)]
    if operator == "Conv":
        g.add(
            operator,
            [x, drawn(rng, kind, (2 * group, count // group, *kernel), 0)],
            group=group,
            dilations=[int(rng.choice([1, 2])), 1],
            **common,
        )
    elif operator == "ConvTranspose":
        g.add(operator, [x, drawn(rng, kind, (count, 2, *kernel), 0)], group=group, **common)
    elif operator == "BatchNormalization":
        g.add(operator, [x, *four[:3], np.abs(four[3]) + four[3].dtype.type(0.5)])
    elif operator == "InstanceNormalization":
        g.add(operator, [x, *four[:2]])
    elif operator == "Resize":
        mode = str(rng.choice(["nearest", "linear", "cubic"]))
        g.add(
            operator,
            [x, np.float32([]), np.float32([1, 1, rng.choice([0.5, 1.5, 2]), 2])],
            mode=mode,
            coordinate_transformation_mode=str(rng.choice(["half_pixel", "asymmetric", "align_corners"])),
        )
    elif "Pool" in operator:
        g.add(operator, [x], **({} if "Global" in operator else common | {"ceil_mode": int(rng.integers(0, 2))}))
    else:
        g.add(operator, [x], blocksize=2)


def quantised(g: Graph) -> None:
    if x := g.pick("f"):
        scale = np.array(g.rng.choice([0.05, 1, 0.3]), g.values[x][0][0].dtype)
        zero = np.array(g.rng.choice([0, 3]), str(g.rng.choice(["int8", "uint8"])))
        if whole := g.add("QuantizeLinear", [x, scale, zero]):
            g.add("DequantizeLinear", [whole, scale, zero])


RULES: tuple[Callable[[Graph], None], ...] = (
    element, element, element, element, pair, pair, pair, pair, pair, masked, bounded, cast, cast, reduced, reduced,
    reduced, along, moved, moved, moved, moved, sizes, product, window, window, window, quantised,
)  # fmt: skip


def random_graph(seed: int) -> Graph:
    g = Graph(np.random.default_rng(seed))
    for number in range(g.rng.integers(3, 7)):
        kind = "float32" if not number else str(g.rng.choice(KINDS))
        g.source(kind, SHAPES[g.rng.integers(0, len(SHAPES))], constant=number > 1 and bool(g.rng.random() < 0.3))
    wanted = g.rng.integers(10, 41)
    for _ in range(200):
        if len(g.nodes) < wanted:
            with np.errstate(all="ignore"):
                g.rng.choice(np.array(RULES, object))(g)
    return g


def outputs_of(g: Graph) -> list[str]:
    """Return what nobody reads, and a few others, which are then not fused with what reads them."""
    read = {name for node in g.nodes for name in node.input}
    return [name for node in g.nodes for name in node.output if name not in read or g.rng.random() < 0.2]


DIALECT = MetaScheduleDialect()
TARGET = DIALECT.resolve_target("native", 1)


def faults(g: Graph, model: onnx.ModelProto, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the outputs that are wrong as compiled, and how."""
    path = folder / "model.onnx"
    onnx.save(model, path)
    network = prepare(str(path), {}, folder)
    DIALECT.compile(network, TARGET, {}, folder / "file.tunery")
    compiled, right, told = load_compiled(folder / "file.tunery", 1), session(model), set[str]()
    for number in range(SETS):
        feed = {one.name: g.values[one.name][number][0] for one in model.graph.input}
        wanted = dict(zip((one.name for one in model.graph.output), right.run(None, feed), strict=True))
        for spec, ours in zip(network.outputs, compiled(*(feed[one.name] for one in network.inputs)), strict=True):
            why = difference(np.asarray(ours), wanted[spec.name], g.values[spec.name][number])
            if why and spec.name not in told:
                told.add(spec.name)
                yield spec.name, f"set {number}: {why}"


def difference(ours: np.ndarray, right: np.ndarray, variants: list[np.ndarray]) -> str:
    if (ours.shape, ours.dtype) != (right.shape, right.dtype):
        return f"{ours.dtype}{list(ours.shape)} instead of {right.dtype}{list(right.shape)}"
    if right.dtype.kind != "f":
        decided = np.all([one == right for one in variants], axis=0)
        wrong = decided & (ours != right)
    else:
        with np.errstate(all="ignore"):
            a, b, *others = (one.astype(np.float64) for one in (ours, right, *variants))
            decided = np.all(
                [
                    (np.isnan(one) == np.isnan(b)) & ((one == b) | np.isfinite(one) & np.isfinite(b) | np.isnan(b))
                    for one in others
                ],
                axis=0,
            )
            spread = np.max([np.abs(one - b) for one in others], axis=0)
            eps = EPS[right.dtype.name]
            usual = np.median(np.abs(b[np.isfinite(b)])) if np.isfinite(b).any() else 0
            room = (
                16 * spread
                + 16 * eps * np.abs(b)
                + 4 * eps * usual
                + max(1e-40, 4 * float(np.finfo(right.dtype).smallest_subnormal))
            )
            wrong = decided & ~((a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= room))
    if not wrong.any():
        return ""
    at = tuple(np.argwhere(wrong)[0])
    return f"{np.count_nonzero(wrong)} of {wrong.size}, as {ours[at]!r} instead of {right[at]!r}"


def cut(g: Graph, output: str, folder: Path) -> tuple[onnx.ModelProto, list[str]]:
    """Return the smallest graph found in which an output is wrong: values become inputs as far as it stays so."""

    def made(ends: set[str]) -> tuple[onnx.ModelProto, list[onnx.NodeProto]]:
        wanted, nodes = {output}, []
        for node in reversed(g.nodes):
            if wanted & {*node.output} - ends:
                nodes.append(node)
                wanted |= {*node.input}
        made_here = {name for node in nodes for name in node.output}
        inputs = {name: g.values[name][0][0] for name in g.values if name in wanted - made_here - g.constants.keys()}
        constants = {name: one for name, one in g.constants.items() if name in wanted}
        return model(nodes[::-1], inputs, [_info(output, g.values[output][0][0])], constants), nodes

    ends: set[str] = set()
    for name in [name for node in reversed(g.nodes) for name in node.output if name != output]:
        alone, nodes = made(ends | {name})
        if len(nodes) < len(made(ends)[1]) and name in {one.name for one in alone.graph.input}:
            try:
                if any(True for _ in faults(g, alone, folder)):
                    ends.add(name)
            except Exception:  # noqa: BLE001 - another fault
                continue
    smallest, nodes = made(ends)
    return smallest, [f"{node.op_type}({', '.join(node.input)})" for node in nodes[::-1]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out/graphs"))
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    given.out.mkdir(parents=True, exist_ok=True)
    counts, operators, began = Counter[str](), Counter[str](), time.monotonic()
    for seed in range(given.seed, given.seed + given.count):
        g = random_graph(seed)
        outputs = outputs_of(g)
        operators.update({node.op_type for node in g.nodes})
        with tempfile.TemporaryDirectory() as scratch:
            try:
                wrong = dict(faults(g, g.model(outputs), Path(scratch)))
            except Exception as error:  # noqa: BLE001 - that is what is looked for
                wrong = {"": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
            counts["wrong" if wrong else "right"] += 1
            if sum(counts.values()) % 50 == 0:
                print(f"{dict(counts)}, {time.monotonic() - began:.0f} s", flush=True)
            for output, why in wrong.items():
                smallest, said = cut(g, output, Path(scratch)) if output else (g.model(outputs), [])
                print(f"{seed} {output} {why}\n    {'; '.join(said)}", flush=True)
                name = given.out / f"graph_{seed}_{output}"
                onnx.save(smallest, f"{name}.onnx")
                np.savez(f"{name}.npz", **{f"{number}/{one.name}": g.values[one.name][number][0]
                                           for one in smallest.graph.input for number in range(SETS)})  # fmt: skip
    print(f"{dict(counts)} of seeds from {given.seed}, {len(operators)} operators, {time.monotonic() - began:.0f} s")
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
