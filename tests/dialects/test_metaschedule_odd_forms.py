"""Odd forms of operators, as random attributes have found them, are computed as ONNX Runtime does."""

from pathlib import Path

import numpy as np
import pytest
from side_by_side import Node, compare

from tunery.dialects import Dialect
from tunery.domain import Target

pytestmark = pytest.mark.tvm
RNG = np.random.default_rng(0)
PLANES = RNG.standard_normal((1, 4, 5, 2)).astype(np.float32)
BLOCK = RNG.standard_normal((4, 5, 6)).astype(np.float32)
WEIGHTS = [RNG.standard_normal((4, 3, 3, 2)).astype(np.float32)]
INDICES = np.array([[0, -1], [2, 5]])
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
    ("Equal", [INDICES > 0, INDICES < 2], {}, 1),
    ("CumSum", [BLOCK, [np.array(1)]], {"exclusive": 1, "reverse": 1}, 1),
    ("Dropout", [BLOCK], {}, 2),
    ("ReduceMax", [INDICES > 0, [np.array([1])]], {"keepdims": 0}, 1),
]
ELSEWHERE: list[Node] = [
    ("ScatterElements", [BLOCK, [np.array([[[0, 3], [2, -1]]])], BLOCK[:1, :2, :2]], {"axis": 0}, 1),
    ("LpPool", [PLANES], {"kernel_shape": [3, 2], "strides": [3, 2], "ceil_mode": 1, "p": 3}, 1),
    ("ReduceMean", [RNG.integers(-9, 9, (2, 3)).astype(np.int32), [np.array([-1])]], {"keepdims": 0}, 1),
]
EDGES = np.resize(np.array([0.5, np.nan, -2, np.inf, 0, 7, -np.inf, -0.25], np.float32), 37)
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
