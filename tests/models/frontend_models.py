"""Tiny ONNX models for the tests of this room."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

Dims = Sequence[int | str | None]


def conv_net(dims: Dims = ("N", 3, "H", "W")) -> onnx.ModelProto:
    """Return a convolution, a reshape whose target is computed at run time, and a product."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((4, 3, 3, 3)).astype("float32"),
        "b": rng.standard_normal(4).astype("float32"),
        "last": np.array([-1], "int64"),
        "zero": np.array([0], "int64"),
        "one": np.array([1], "int64"),
        "unused": np.ones(7, "float32"),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["conv"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["conv"], ["relu"]),
        helper.make_node("Shape", ["relu"], ["shape"]),
        helper.make_node("Slice", ["shape", "zero", "one"], ["rows"]),
        helper.make_node("Concat", ["rows", "last"], ["target"], axis=0),
        helper.make_node("Reshape", ["relu", "target"], ["flat"]),
        helper.make_node("Identity", ["flat"], ["y"]),
    ]
    return model(nodes, {"x": dims}, {"y": ("N", "F")}, weights)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, Dims],
    outputs: dict[str, Dims],
    weights: dict[str, np.ndarray] | None = None,
    opset: int = 18,
) -> onnx.ModelProto:
    """Return a model of float inputs and outputs."""
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, list(dims)) for name, dims in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, list(dims)) for name, dims in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in (weights or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def save(proto: onnx.ModelProto, path: Path) -> str:
    """Write the model and return its path as users write it."""
    path.write_bytes(proto.SerializeToString())
    return str(path)


def run(path: str, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)
