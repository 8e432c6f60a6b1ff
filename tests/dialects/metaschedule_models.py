"""A small real network for tests on TVM: a convolution with its epilogue, pooling, a dense layer, and a gather."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tunery.domain import Network, TensorSpec


def small_network(directory: Path) -> Network:
    """Write the network as ONNX and describe it."""
    rng = np.random.default_rng(3)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array((rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["image", "w", "b"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("MatMul", ["f", "d"], ["m"]),
        helper.make_node("Gather", ["table", "ids"], ["e"]),
        helper.make_node("Add", ["m", "e"], ["out"]),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [
            helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 16, 12, 12]),
            helper.make_tensor_value_info("ids", TensorProto.INT64, [1]),
        ],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, [1, 48])],
        [weight("w", 32, 16, 3, 3), weight("b", 32), weight("d", 32, 48), weight("table", 10, 48)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    path = directory / "small.onnx"
    onnx.save(model, path)
    inputs = (TensorSpec("image", (1, 16, 12, 12), "float32"), TensorSpec("ids", (1,), "int64"))
    return Network("small", str(path), "small", str(path), inputs, (TensorSpec("out", (1, 48), "float32"),), 0)
