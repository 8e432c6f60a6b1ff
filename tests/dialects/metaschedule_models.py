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


def convolution_network(
    directory: Path,
    *,
    channels: tuple[int, int] = (32, 32),
    kernel: int = 3,
    stride: int = 1,
    groups: int = 1,
    padding: int = 1,
    batch: int = 1,
    size: int = 8,
    layers: int = 1,
    activation: str = "relu",
    residual: bool = False,
    constant: bool = True,
) -> Network:
    """Write a chain of convolutions with bias and activation as ONNX; `constant` weights, or a second input."""
    rng = np.random.default_rng(5)
    wide, out = channels
    shape = (out, wide // groups, kernel, kernel)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, wide, size, size])]
    specs = [TensorSpec("x", (batch, wide, size, size), "float32")]
    if not constant:
        inputs.append(helper.make_tensor_value_info("w0", TensorProto.FLOAT, list(shape)))
        specs.append(TensorSpec("w0", shape, "float32"))
    nodes, weights = [], []
    for i in range(layers):
        for name, array in ((f"w{i}", rng.standard_normal(shape) / 9), (f"b{i}", rng.standard_normal(out))):
            if constant or name[0] != "w":
                weights.append(numpy_helper.from_array(array.astype(np.float32), name))
        last, value = f"y{i}", f"y{i - 1}" if i else "x"
        attributes = {"pads": [padding] * 4, "strides": [stride] * 2, "group": groups}
        nodes.append(helper.make_node("Conv", [value, f"w{i}", f"b{i}"], [f"c{i}"], **attributes))
        total = f"c{i}"
        if residual:
            nodes.append(helper.make_node("Add", [total, value], [f"a{i}"]))
            total = f"a{i}"
        if activation == "relu":
            nodes.append(helper.make_node("Relu", [total], [last]))
        else:
            nodes.append(helper.make_node("Sigmoid", [total], [f"s{i}"]))
            nodes.append(helper.make_node("Mul", [total, f"s{i}"], [last]))
        size = (size + 2 * padding - kernel) // stride + 1
    result = (batch, out, size, size)
    outputs = [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, list(result))]
    model = helper.make_model(
        helper.make_graph(nodes, "convolutions", inputs, outputs, weights),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=9,
    )
    path = directory / "convolutions.onnx"
    onnx.save(model, path)
    spec = TensorSpec(nodes[-1].output[0], result, "float32")
    return Network("convolutions", str(path), "convolutions", str(path), tuple(specs), (spec,), 0)
