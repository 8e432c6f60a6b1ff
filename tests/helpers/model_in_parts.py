"""A model that TVM runs in part, and ONNX Runtime for the rest."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def in_parts(path: Path) -> str:
    """Write a model that ONNX Runtime runs two parts of, between which a value goes whose size depends on the data."""
    made = [
        ("Conv", ["x", "w"], "c"), ("NonZero", ["c"], "places"), ("ReduceSum", ["cast", "axis"], "total"),
        ("MatMul", ["total", "m"], "mixed"), ("ReduceMax", ["mixed"], "scale"), ("Mul", ["cast", "scale"], "scaled"),
        ("ReduceSum", ["scaled", "axis"], "sums"), ("Add", ["sums", "total"], "y"),
    ]  # fmt: skip
    nodes = [helper.make_node(kind, given, [name], **({"keepdims": 0} if "Reduce" in kind else {}))
             for kind, given, name in made]  # fmt: skip
    nodes.insert(2, helper.make_node("Cast", ["places"], ["cast"], to=TensorProto.FLOAT))
    rng = np.random.default_rng(3)
    constants = {
        "w": rng.standard_normal((4, 4, 3, 3)).astype(np.float32), "axis": np.array([1]),
        "m": rng.standard_normal((4, 4)).astype(np.float32) / 100,
    }  # fmt: skip
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "parts", [value("x", TensorProto.FLOAT, [1, 4, 6, 6])], [value("y", TensorProto.FLOAT, [4])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return str(path)
