"""Small real networks for tests on TVM."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tunery.domain import Network, TensorSpec


def write_network(
    directory: Path,
    name: str,
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[int]],
    constants: Mapping[str, np.ndarray],
) -> Network:
    """Write nodes as ONNX and describe the network, whose outputs nobody reads; all is float32 or int64."""
    read = {name for node in nodes for name in node.input}
    outputs = [node.output[0] for node in nodes if node.output[0] not in read]
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, shape) for value, shape in inputs.items()],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, None) for output in outputs],
        [
            numpy_helper.from_array(array if array.dtype == np.int64 else array.astype(np.float32), constant)
            for constant, array in constants.items()
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    model = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    path = directory / f"{name}.onnx"
    onnx.save(model, path)
    made = [tuple(size.dim_value for size in value.type.tensor_type.shape.dim) for value in model.graph.output]
    specs = tuple(TensorSpec(value, tuple(shape), "float32") for value, shape in inputs.items())
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    results = tuple(TensorSpec(output, shape, "float32") for output, shape in zip(outputs, made, strict=True))
    return Network(name, str(path), digest, str(path), specs, results, 0)


def small_network(directory: Path) -> Network:
    """A convolution with its epilogue, pooling, a dense layer, and a gather."""
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
    inputs = {"x": (batch, wide, size, size)} | ({} if constant else {"w0": shape})
    nodes, constants = [], {}
    for i in range(layers):
        constants |= {f"w{i}": rng.standard_normal(shape) / 9, f"b{i}": rng.standard_normal(out)}
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
    constants = {name: array for name, array in constants.items() if name not in inputs}
    return write_network(directory, "convolutions", nodes, inputs, constants)
