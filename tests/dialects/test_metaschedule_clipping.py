"""Clips in a channels-last network: no transposes around them, and ONNX's meaning, on the real compiler."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from tunery.delivery.files.loading import load_compiled
from tunery.dialects import get_dialect
from tunery.domain import Network, Task, TensorSpec

pytestmark = pytest.mark.tvm
_SHAPE = (1, 8, 6, 6)


def _convolution(name: str, source: str, target: str) -> tuple[onnx.NodeProto, onnx.TensorProto]:
    weight = np.random.default_rng(len(name)).standard_normal((8, 8, 1, 1)).astype(np.float32)
    return helper.make_node("Conv", [source, name], [target]), numpy_helper.from_array(weight, name)


def _network(directory: Path, clip: onnx.NodeProto, bounds: dict[str, float], opset: int) -> Network:
    """Write convolution, `clip` from `a` to `b`, convolution."""
    first, first_weight = _convolution("w", "image", "a")
    second, second_weight = _convolution("ww", "b", "out")
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [first, clip, second],
        "clips",
        [value("image", TensorProto.FLOAT, _SHAPE)],
        [value("out", TensorProto.FLOAT, _SHAPE)],
        [first_weight, second_weight, *(numpy_helper.from_array(np.float32(v), n) for n, v in bounds.items())],
    )
    path = directory / "clips.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), path)
    spec = TensorSpec("image", _SHAPE, "float32")
    return Network("clips", str(path), f"clips{opset}", str(path), (spec,), (spec,), 0)


CLIPS = {
    "bounds as inputs": (helper.make_node("Clip", ["a", "low", "high"], ["b"]), {"low": 0.0, "high": 0.5}, 17),
    "bounds as attributes": (helper.make_node("Clip", ["a"], ["b"], min=-0.25, max=0.5), {}, 10),
    "only an upper bound": (helper.make_node("Clip", ["a", "", "high"], ["b"]), {"high": 0.25}, 17),
    "a bound that is no number": (
        helper.make_node("Clip", ["a", "low", "high"], ["b"]),
        {"low": np.nan, "high": 0.5},
        17,
    ),
    "hard sigmoid": (helper.make_node("HardSigmoid", ["a"], ["b"], alpha=0.2, beta=0.5), {}, 17),
}


def _kinds(tasks: list[Task]) -> list[str]:
    return [task.workload.kind for task in tasks if "transpose" not in task.workload.name]


@pytest.mark.parametrize("case", CLIPS)
def test_a_clip_is_fused_into_its_convolution_and_keeps_its_meaning(case: str, tmp_path: Path) -> None:
    network = _network(tmp_path, *CLIPS[case])
    dialect = get_dialect("metaschedule")
    target = dialect.resolve_target("native", 1)
    tasks = dialect.extract(network, target)
    assert _kinds(tasks) == ["conv2d", "conv2d"]
    dialect.compile(network, target, {}, tmp_path / "clips.tunery")
    image = np.random.default_rng(0).standard_normal(_SHAPE).astype(np.float32)
    session = onnxruntime.InferenceSession(network.path, providers=["CPUExecutionProvider"])
    expected = session.run(None, {"image": image})[0]
    got = load_compiled(tmp_path / "clips.tunery")(image)[0]
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_a_squeeze_from_the_end_keeps_channels_last(tmp_path: Path) -> None:
    node, weight = _convolution("w", "image", "a")
    axes = numpy_helper.from_array(np.array([-4], np.int64), "axes")
    squeezed = helper.make_node("Squeeze", ["a", "axes"], ["out"])
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node, squeezed],
        "squeeze",
        [value("image", TensorProto.FLOAT, _SHAPE)],
        [value("out", TensorProto.FLOAT, _SHAPE[1:])],
        [weight, axes],
    )
    path = tmp_path / "squeeze.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    specs = [(TensorSpec(name, shape, "float32"),) for name, shape in (("image", _SHAPE), ("out", _SHAPE[1:]))]
    network = Network("squeeze", str(path), "squeeze", str(path), *specs, 0)
    dialect = get_dialect("metaschedule")
    tasks = dialect.extract(network, dialect.resolve_target("native", 1))
    assert next(task for task in tasks if task.workload.kind == "conv2d").workload.arguments[0].shape == (1, 6, 6, 8)
