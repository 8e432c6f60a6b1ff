"""Odd forms of operators, as random attributes have found them, are computed as ONNX Runtime does."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from side_by_side import Node, compare, model_of

from tunery.dialects import Dialect
from tunery.domain import Target

pytestmark = pytest.mark.tvm
RNG = np.random.default_rng(0)
PLANES = RNG.standard_normal((1, 4, 5, 2)).astype(np.float32)
BLOCK = RNG.standard_normal((4, 5, 6)).astype(np.float32)
WEIGHTS = [RNG.standard_normal((4, 3, 3, 2)).astype(np.float32)]
TAPS = [RNG.standard_normal((6, 4, 3, 3)).astype(np.float32)]
INDICES = np.array([[0, -1], [2, 5]])
GRID = np.array([-2, -1, 1, 2], np.float32).reshape(1, 1, 2, 2)  # halfway between places outside
VALUES = [np.array([-1, 7], np.float32)]
NATIVE: list[Node] = [("OneHot", [INDICES, [np.array(4)], VALUES], {"axis": axis}, 1) for axis in (0, 1, -1)]
NATIVE.append(("ThresholdedRelu", [np.array([-np.inf, -1, 0.3, 2, np.inf], np.float32)], {"alpha": 0.5}, 1))
for sizes, attributes in (
    ([1, 2, 2, 1], {"mode": "linear"}), ([1, 1, 1.3, 1.7], {"mode": "nearest", "nearest_mode": "ceil"}),
    ([0.5, 0.6], {"mode": "linear", "axes": [2, 3], "antialias": 1}),
    ([1, 1, 1.3, 2], {"mode": "cubic", "exclude_outside": 1, "coordinate_transformation_mode": "align_corners"}),
):  # fmt: skip
    NATIVE.append(("Resize", [PLANES, None, [np.array(sizes, np.float32)]], attributes, 1))
for operator in ("AveragePool", "MaxPool"):
    strides = {"kernel_shape": [3, 2], "strides": [2, 1], "dilations": [2, 1]}
    NATIVE += [(operator, [PLANES], {**strides, "auto_pad": side}, 1) for side in ("SAME_LOWER", "SAME_UPPER")]
NATIVE += [
    ("MaxPool", [PLANES], {"kernel_shape": [2, 2], "strides": [3, 3], "pads": [0, 0, 1, 1], "ceil_mode": 1}, 1),
    ("ConvTranspose", [PLANES, WEIGHTS], {"strides": [2, 3], "output_shape": [9, 5]}, 1),
    ("ConvTranspose", [PLANES, WEIGHTS], {"strides": [2, 1], "auto_pad": "SAME_LOWER"}, 1),
    ("ConvTranspose", [PLANES, WEIGHTS], {"strides": [2, 2], "auto_pad": "SAME_LOWER", "output_padding": [1, 1]}, 1),
    ("MaxPool", [PLANES], {"kernel_shape": [3, 2], "strides": [3, 1], "auto_pad": "SAME_LOWER", "ceil_mode": 1}, 1),
    ("Conv", [PLANES, TAPS], {"dilations": [5, 2], "pads": [5, 2, 5, 2]}, 1),
    ("Conv", [PLANES, TAPS, [TAPS[0][:, 0, 0, 0]]], {"dilations": [4, 3], "pads": [4, 3, 5, 4], "strides": [2, 1]}, 1),
    ("Conv", [PLANES, TAPS], {"dilations": [1, 3], "pads": [2, 6, 1, 0]}, 1),
    ("Conv", [PLANES, [TAPS[0][:, :2]]], {"dilations": [2, 1], "pads": [0, 4, 0, 2], "group": 2}, 1),
    ("Equal", [INDICES > 0, INDICES < 2], {}, 1),
    ("ReduceMax", [INDICES > 0, [np.array([1])]], {"keepdims": 0}, 1),
    ("Hardmax", [BLOCK], {"axis": 1}, 1),
    ("CumSum", [BLOCK, [np.array(1)]], {"exclusive": 1, "reverse": 1}, 1),
    ("Dropout", [BLOCK], {}, 2),
    ("Concat", [BLOCK, [BLOCK[:, :0]]], {"axis": 1}, 1),
    ("Unsqueeze", [BLOCK, [np.array(-2)]], {}, 1),
    ("Concat", [[BLOCK[:, :, :0]], BLOCK, BLOCK], {"axis": -1}, 1),
]
EDGES = np.resize(np.array([0.5, np.nan, -2, np.inf, 0, 7, -np.inf, -0.25], np.float32), 37)
ELSEWHERE: list[Node] = [
    ("TopK", [EDGES, [np.array([5])]], {}, 2),
    ("ReduceL2", [-BLOCK], {"noop_with_empty_axes": 1}, 1),
    ("Pad", [PLANES, [np.array([0, 0, -1, 0, 0, 0, 2, 0])]], {"mode": "wrap"}, 1),
    ("ScatterElements", [BLOCK, [np.array([[[0, 3], [2, -1]]])], BLOCK[:1, :2, :2]], {"axis": 0}, 1),
    ("LpPool", [PLANES], {"kernel_shape": [3, 2], "strides": [3, 2], "ceil_mode": 1, "p": 3}, 1),
    ("AveragePool", [PLANES[:, :, :4]], {"kernel_shape": [3, 2], "strides": [3, 2], "dilations": [2, 1]}, 1),
    ("GridSample", [PLANES, GRID], {"mode": "nearest", "padding_mode": "reflection"}, 1),
    ("ReduceMean", [RNG.integers(-9, 9, (2, 3)).astype(np.int32), [np.array([-1])]], {"keepdims": 0}, 1),
]
OTHERS = EDGES[::-1].copy()
BOUNDS = [np.float32(0)], [np.float32(6)]
UNARY = [
    "Relu", "Elu", "Selu", "LeakyRelu", "Sign", "HardSigmoid", "HardSwish", "Sigmoid", "Tanh", "Softplus", "Softsign",
    "Celu", "Erf", "Exp", "Sqrt", "Abs", "Floor", "Round", "Reciprocal", "Neg", "Mish", "Softmax",
]  # fmt: skip
NANS: list[Node] = [(operator, [EDGES], {}, 1) for operator in UNARY]
for kind in (np.float32, np.float64, np.float16):
    edges, others, (low, high) = EDGES.astype(kind), OTHERS.astype(kind), ([one.astype(kind)] for [one] in BOUNDS)
    NANS += [
        (operator, [edges, *more], {}, 1) for operator in ("Max", "Min") for more in ([others], [low], [others, high])
    ]
    NANS += [("Relu", [edges], {}, 1), ("Sign", [edges], {}, 1), ("Clip", [edges, low, high], {}, 1)]


def test_nan_and_infinities_go_through_elements_as_in_onnx_runtime(
    dialect: Dialect, target: Target, tmp_path: Path
) -> None:
    assert not compare(NANS, dialect, target, tmp_path)


def test_what_the_compiler_gets_wrong_runs_in_onnx_runtime(dialect: Dialect, target: Target, tmp_path: Path) -> None:
    assert compare(ELSEWHERE, dialect, target, tmp_path) == len(ELSEWHERE)


def test_values_have_their_type_and_infinities_stay(dialect: Dialect, target: Target, tmp_path: Path) -> None:
    assert not compare(NATIVE, dialect, target, tmp_path)


def drawn(rng: np.random.Generator) -> Node:
    """Draw an operator with attributes that seldom come together."""

    def one(*choices: Any) -> Any:
        return choices[rng.integers(len(choices))]

    x = rng.standard_normal((1, one(2, 4), one(4, 5, 7), 6)).astype(np.float32)
    operator = one("MaxPool", "AveragePool", "LpPool", "ConvTranspose", "Resize", "Pad", "Slice", "CumSum", "ReduceMax")
    kernel, strides = [one(1, 2, 3), 2], [one(1, 2, 3), one(1, 2)]
    side: dict[str, Any] = one({"auto_pad": "SAME_LOWER"}, {"auto_pad": "SAME_UPPER"}, {"pads": [0, 1, one(0, 1), 0]})
    if operator in {"MaxPool", "AveragePool", "LpPool"}:
        more = {"dilations": [one(1, 2), 1], "ceil_mode": one(0, 1)}
        return operator, [x], {"kernel_shape": kernel, "strides": strides, **side, **more}, 1
    if operator == "ConvTranspose":
        sizes = one(side, {"output_shape": [x.shape[2] * strides[0] + one(-1, 0), 6 * strides[1]]})
        weights = [rng.standard_normal((x.shape[1], 3, *kernel)).astype(np.float32)]
        return operator, [x, weights], {"strides": strides, "output_padding": [one(0, strides[0] - 1), 0], **sizes}, 1
    if operator == "Resize":
        scales = np.array([one(0.5, 0.7, 1.3, 2), one(0.4, 1, 1.7)], np.float32)
        moved = one("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric")
        ways = one({"mode": "nearest", "nearest_mode": one("ceil", "floor")}, {"mode": "linear"}, {"mode": "cubic"})
        more = {"antialias": one(0, 1)} if ways["mode"] != "nearest" else {}
        return (
            operator,
            [x, None, [scales]],
            {"axes": [2, 3], "coordinate_transformation_mode": moved, **ways, **more},
            1,
        )
    if operator == "Pad":
        pads = np.array([0, 0, one(-1, 0, 2), one(0, 1), 0, one(0, 1), one(0, 2), one(-2, 1)])
        return operator, [x, [pads]], {"mode": one("constant", "reflect", "edge", "wrap")}, 1
    if operator == "Slice":
        ends = np.array([one(-100, 1, 3, 1000), one(-1, 2)])
        return (
            operator,
            [x, [np.array([one(-1, 0, 3), -100])], [ends], [np.array([2, -1])], [np.array([one(-2, 1), 1])]],
            {},
            1,
        )
    if operator == "CumSum":
        return operator, [x, [np.array(one(0, 1, -1))]], {"exclusive": one(0, 1), "reverse": one(0, 1)}, 1
    return operator, [x > 0 if one(0, 1) else x, [np.array([one(1, -1)])]], {"keepdims": one(0, 1)}, 1


def runs(node: Node) -> bool:
    model, given = model_of([node])
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        return all(one.size for one in session.run(None, given))
    except Exception:  # noqa: BLE001 - of many kinds
        return False


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_attributes_drawn_at_random(seed: int, dialect: Dialect, target: Target, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    compare([node for node in (drawn(rng) for _ in range(60)) if runs(node)], dialect, target, tmp_path)
