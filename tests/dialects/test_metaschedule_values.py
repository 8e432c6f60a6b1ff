"""Operators at the ends of their types, side by side in one model: what ONNX Runtime computes, or what is exact."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from side_by_side import Node, compare, compare_model

from tunery._archive import Archive
from tunery.dialects import Dialect
from tunery.domain import Target

pytestmark = pytest.mark.tvm

INF, NAN = np.inf, np.nan
ENDS = np.array([0.0, -0.0, 1.5, -2, 1e-39, 95, -95, -103, 1e10, -1e20, 3e38, INF, -INF, NAN, 7, -0.5], np.float32)
ROWS = np.array([[-INF] * 3, [INF] * 3, [-INF, 2, -3e38]], np.float32)
NANS = np.array([[NAN] * 4, [NAN, 3, INF, 2], [1, NAN, 5, 5], [-INF, -INF, NAN, -INF]], np.float32)
FAR = np.array([NAN, INF, 3e9, -3e9, 1.5, -1.5, 1e19, 300, -200, 70000, 2.0**31], np.float32)
WHOLE = np.array([94906267, 2**31 + 1, -(2**31 + 3), 3037000499, -2], np.int64)
PLANES = np.full((1, 1, 4, 4), -INF, np.float32)


def test_extremes_and_their_places(dialect: Dialect, target: Target, tmp_path: Path) -> None:
    nodes: list[Node] = [
        (operator, [rows, [np.array([1])]], {"keepdims": keep}, 1)
        for operator in ("ReduceMax", "ReduceMin", "ReduceLogSumExp") for rows in (ROWS, ROWS.astype(np.float64))
        for keep in (0, 1)
    ]  # fmt: skip
    nodes += [
        (operator, [rows], {"axis": axis, "select_last_index": last, "keepdims": last}, 1)
        for operator in ("ArgMax", "ArgMin") for rows in (ROWS, NANS, np.full((3, 2), -128, np.int8))
        for axis in (0, 1) for last in (0, 1) if not (rows is NANS and last)
    ]  # fmt: skip
    nodes += [("MaxPool", [PLANES], {"kernel_shape": [2, 2]}, 1), ("GlobalMaxPool", [PLANES], {}, 1)]
    nodes += [("MaxPool", [NANS[None]], {"kernel_shape": [2], "dilations": [gap]}, 1) for gap in (1,)]
    assert compare(nodes, dialect, target, tmp_path) == 0


def test_elements_at_the_ends_of_their_types(dialect: Dialect, target: Target, tmp_path: Path) -> None:
    low, high = (np.array(bound, np.float32) for bound in (-1, 2))
    nodes: list[Node] = [("Mul", [ENDS, [np.float32(0)]], {}, 1), ("Div", [[np.float32(0)], ENDS], {}, 1)]
    nodes += [(operator, [ENDS, [np.float32(NAN)]], {}, 1) for operator in ("Max", "Min", "Equal")]
    nodes += [(operator, [ENDS], {}, 1) for operator in ("Softplus", "Mish", "Gelu", "Atanh", "Exp", "Tanh", "Sigmoid")]
    nodes += [("Clip", [ENDS, *bounds], {}, 1) for bounds in ([low, high], [low], [None, high], [high, [low]])]
    nodes += [("Clip", [ENDS, [np.float32(NAN)], [high]], {}, 1)]
    matrices = [np.array([[1, 2], [INF, 3]], np.float32), np.eye(2, dtype=np.float32)]
    nodes += [("Gemm", [*matrices, matrices[0]], {"alpha": alpha, "beta": 0.0}, 1) for alpha in (0.0, 0.5)]
    nodes += [
        ("Cast", [far], {"to": to}, 1)
        for far in (FAR, FAR.astype(np.float64), np.clip(FAR, -6e4, 6e4).astype(np.float16))
        for to in (TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64,
                   TensorProto.UINT64, TensorProto.BOOL)
    ]  # fmt: skip
    nodes += [("Pow", [WHOLE, [np.array(exponent)]], {}, 1) for exponent in (2, 3)]
    nodes += [
        ("Pow", [np.array([46341, -46340, 7], np.int32), [exponent]], {}, 1)
        for exponent in (np.array(2, np.int32), np.float32(2))
    ]
    assert compare(nodes, dialect, target, tmp_path) == 0


def test_divisions_that_processors_refuse_end_nothing(dialect: Dialect, target: Target, tmp_path: Path) -> None:
    whole = np.array([-(2**31), 7, -9, 5], np.int32)
    others = np.array([2, 3, 4, -3], np.int32)
    pairs = [(whole, others), (whole.astype(np.int64), others.astype(np.int64))]
    nodes: list[Node] = [(operator, [*pair], {}, 1) for operator in ("Div", "Mod") for pair in pairs]
    assert compare(nodes, dialect, target, tmp_path) == 0
    with Archive(tmp_path / "made.tunery") as archive:
        compiled = dialect.load_network(archive)
    ends = [np.array([-1, 0, -1, 0], spec.dtype) if spec.name.endswith("_1") else np.full(4, np.iinfo(spec.dtype).min)
            for spec in compiled.inputs]  # fmt: skip
    quotients = compiled(*(one.astype(spec.dtype) for one, spec in zip(ends, compiled.inputs, strict=True)))
    assert all((one[::2] == (0 if spec.name > "y2" else np.iinfo(one.dtype).min)).all()
               for one, spec in zip(quotients, compiled.outputs, strict=True))  # fmt: skip


ALGEBRA = """
<ir_version: 9, opset_import: ["": 20]>
algebra (float[1, 24] x, float[1, 24] z, double[24] d, float s, uint8 q, float16[24] h)
    => (float nothing, float cut, float large, float beside, double least, float reciprocal, float celu, float real,
        float16 halved, int64 sizes, double product, float16 bounded) {
    difference = Sub(x, x)
    nothing = Abs(difference)
    whole = Constant <value = float {8388608}> ()
    moved = Add(x, whole)
    cut = Sub(moved, whole)
    sum = Add(x, z)
    left = Sub(sum, z)
    large = Exp(left)
    more = Sub(z, sum)
    beside = Neg(more)
    bound = Constant <value = double[1] {3e38}> ()
    least = Min(bound, d)
    zero = Constant <value = float {0}> ()
    positive = Add(x, zero)
    reciprocal = Reciprocal(positive)
    celu = Celu <alpha = 0.7> (s)
    step = Constant <value = float {0.5}> ()
    point = Constant <value = uint8 {3}> ()
    real = DequantizeLinear(q, step, point)
    half = Sub(h, h)
    halved = Sqrt(half)
    sizes = Shape(x)
    none = Constant <value = double {0}> ()
    product = Mul(d, none)
    low = Constant <value = float {-3}> ()
    bottom = Cast <to = 10> (low)
    bounded = Clip(h, bottom)
}
"""


def test_floats_obey_no_algebra_and_scalars_stay_scalars(dialect: Dialect, target: Target, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(ALGEBRA)
    values = np.resize(ENDS, (1, 24))
    given = {"x": values, "z": values[:, ::-1].copy(), "d": np.resize(ENDS, 24).astype(np.float64), "q": np.uint8(7)}
    given |= {"s": np.float32(-0.3), "h": np.resize([1, INF, NAN, -0.0], 24).astype(np.float16)}
    assert compare_model(model, {name: np.asarray(one) for name, one in given.items()}, dialect, target, tmp_path) == 0


def test_truths_hardmax_scatters_and_scalars_are_native(dialect: Dialect, target: Target, tmp_path: Path) -> None:
    truths = np.array([[True, False], [False, False], [True, True]])
    nodes: list[Node] = [
        (operator, [truths, [np.array([axis])]], {"keepdims": keep}, 1)
        for operator in ("ReduceMax", "ReduceMin") for axis in (0, 1) for keep in (0, 1)
    ]  # fmt: skip
    nodes += [("Hardmax", [rows], {"axis": axis}, 1) for rows in (ROWS, np.eye(4, dtype=np.float32)) for axis in (0, 1)]
    data, places = np.zeros((4, 5, 6), np.float32), np.array([[0, 1], [3, -1], [-4, 2]])
    along, more = np.argsort(np.sin(np.arange(120).reshape(4, 5, 6)), 1), np.ones((4, 3, 6), np.float32)
    nodes += [
        ("ScatterElements", [data, along[:, :3] - shift, more], {"axis": 1, "reduction": reduction}, 1)
        for shift, reduction in ((0, "none"), (5, "add"), (2, "max"))
    ]
    nodes += [("ScatterND", [data, places, more[:3, 0]], {"reduction": one}, 1) for one in ("none", "add", "mul")]
    nodes += [
        ("QuantizeLinear", [np.array(value, np.float32), [np.float32(0.05)], [zero]], {}, 1)
        for value in (NAN, INF, -INF, 1.5) for zero in (np.uint8(3), np.int8(0))
    ]  # fmt: skip
    assert compare(nodes, dialect, target, tmp_path) == 0


def test_signs_of_zeros_and_small_numbers_of_float64(dialect: Dialect, target: Target, tmp_path: Path) -> None:
    text = """
    <ir_version: 9, opset_import: ["": 20]>
    signs (float[16] x, double[6] d) => (float[16] side, double[6] ratio) {
        made = Selu(x)
        side = Reciprocal(made)
        small = Tanh(d)
        ratio = Div(small, d)
    }
    """
    given = {
        "x": np.where(ENDS > 0, ENDS, np.copysign(0, ENDS)),
        "d": np.array([1e-30, -1e-9, 1e-310, 0.019, 0.021, 3]),
    }
    assert compare_model(onnx.parser.parse_model(text), given, dialect, target, tmp_path) == 0


def test_what_a_scatter_writes_outside_stays_within_its_result(
    dialect: Dialect, target: Target, tmp_path: Path
) -> None:
    data = np.zeros((4, 5, 6), np.float32)
    nodes: list[Node] = [
        ("ScatterElements", [data, np.zeros((4, 3, 6), np.int64), np.ones((4, 3, 6), np.float32)], {"axis": 1}, 1),
        ("ScatterND", [data, np.zeros((3, 2), np.int64), np.ones((3, 6), np.float32)], {}, 1),
    ]
    assert compare(nodes, dialect, target, tmp_path) == 0
    with Archive(tmp_path / "made.tunery") as archive:
        compiled = dialect.load_network(archive)
    for far in (6, -7, 10**6, -(2**40), 2**62 + 5, -(2**63)):
        given = [np.full(one.shape, far if one.dtype == "int64" else 1, one.dtype) for one in compiled.inputs]
        assert all((one == 1).any() for one in compiled(*given))
