"""Nodes side by side in one model, compiled at once and compared with ONNX Runtime."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from tunery.delivery.files.loading import load_compiled
from tunery.dialects import Dialect
from tunery.domain import Target
from tunery.models import prepare

Node = tuple[str, list[Any], dict[str, Any], int]
"""Operator, inputs (None: left out; a list of one: constant), attributes, number of outputs."""
_FUSED = frozenset({"Attention", "RotaryEmbedding"})  # of two domains


def model_of(nodes: list[Node]) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return a model of these nodes side by side, and its inputs."""
    made, given, constants = [], dict[str, np.ndarray](), dict[str, np.ndarray]()
    for number, (operator, inputs, attributes, outputs) in enumerate(nodes):
        names = [f"x{number}_{at}" if one is not None else "" for at, one in enumerate(inputs)]
        for name, one in zip(names, inputs, strict=True):
            if isinstance(one, list):
                [constants[name]] = one
            elif name:
                given[name] = one
        standard = operator == "SimplifiedLayerNormalization" or onnx.defs.has(operator)
        domain = "" if standard and operator not in _FUSED else "com.microsoft"
        results = [f"y{number}_{at}" for at in range(outputs)]
        made.append(helper.make_node(operator, names, results, f"n{number}", domain=domain, **attributes))
    value, kind = helper.make_tensor_value_info, helper.np_dtype_to_tensor_dtype
    graph = helper.make_graph(
        made,
        "side_by_side",
        [value(name, kind(one.dtype), one.shape) for name, one in given.items()],
        [onnx.ValueInfoProto(name=name) for node in made for name in node.output],
        [numpy_helper.from_array(one, name) for name, one in constants.items()],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), given


def compare(nodes: list[Node], dialect: Dialect, target: Target, tmp_path: Path) -> int:
    """Compare the nodes' results, and return how many nodes run in ONNX Runtime."""
    return compare_model(*model_of(nodes), dialect, target, tmp_path)


def compare_model(
    model: onnx.ModelProto, given: dict[str, np.ndarray], dialect: Dialect, target: Target, tmp_path: Path
) -> int:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    wanted = dict(zip([one.name for one in session.get_outputs()], session.run(None, given), strict=True))
    for output in model.graph.output:
        one = wanted[output.name]
        output.CopyFrom(
            helper.make_tensor_value_info(output.name, helper.np_dtype_to_tensor_dtype(one.dtype), one.shape)
        )
    onnx.save(model, tmp_path / "model.onnx")
    network = prepare(str(tmp_path / "model.onnx"), {}, tmp_path)
    compiled = dialect.compile(network, target, {}, tmp_path / "made.tunery")
    found = load_compiled(tmp_path / "made.tunery")(*(given[spec.name] for spec in network.inputs))
    for spec, one in zip(network.outputs, found, strict=True):
        assert (one.dtype, one.shape) == (wanted[spec.name].dtype, wanted[spec.name].shape), spec.name
        np.testing.assert_allclose(one, wanted[spec.name], rtol=1e-4, atol=1e-4, err_msg=spec.name)
    return len(compiled.elsewhere)
