"""Shuffles of channels stay channels last."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper, save

from tunery.dialects import Dialect, get_dialect
from tunery.domain import Network, TensorSpec
from tunery.measure import make_inputs

pytestmark = pytest.mark.tvm

_CHANNELS, _SIDE = 24, 6


@pytest.fixture(scope="module")
def dialect() -> Dialect:
    return get_dialect("metaschedule")


def shuffling_network(directory: Path, *, groups: int = 2, order: tuple[int, ...] = (0, 2, 1, 3, 4)) -> Network:
    """Two units as ShuffleNet has them: split, a convolution of one half, concatenated with the other, shuffled."""
    rng = np.random.default_rng(11)
    half = _CHANNELS // 2
    shapes = {"w": (_CHANNELS, 3, 3, 3), "a": (half, half, 1, 1), "b": (half, half, 1, 1), "z": (8, _CHANNELS, 1, 1)}
    constants = [
        numpy_helper.from_array((rng.standard_normal(shape) / 4).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    sides = [_SIDE, _SIDE]
    grouped = np.array([1, groups, _CHANNELS // groups, *sides])
    for name, values in (("grouped", grouped), ("whole", [1, _CHANNELS, *sides]), ("halves", [half, half])):
        constants.append(numpy_helper.from_array(np.array(values, np.int64), name))
    nodes = [helper.make_node("Conv", ["x", "w"], ["u0"], pads=[1, 1, 1, 1])]
    for unit, weight in enumerate("ab"):
        nodes += [
            helper.make_node("Split", [f"u{unit}", "halves"], [f"l{unit}", f"r{unit}"], axis=1),
            helper.make_node("Conv", [f"r{unit}", weight], [f"c{unit}"]),
            helper.make_node("Relu", [f"c{unit}"], [f"e{unit}"]),
            helper.make_node("Concat", [f"l{unit}", f"e{unit}"], [f"t{unit}"], axis=1),
            helper.make_node("Reshape", [f"t{unit}", "grouped"], [f"g{unit}"]),
            helper.make_node("Transpose", [f"g{unit}"], [f"p{unit}"], perm=order),
            helper.make_node("Reshape", [f"p{unit}", "whole"], [f"u{unit + 1}"]),
        ]
    nodes.append(helper.make_node("Conv", ["u2", "z"], ["y"]))
    shape, result = (1, 3, _SIDE, _SIDE), (1, 8, _SIDE, _SIDE)
    graph = helper.make_graph(
        nodes,
        "shuffling",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, result)],
        constants,
    )
    path = directory / "shuffling.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    specs = (TensorSpec("x", shape, "float32"),), (TensorSpec("y", result, "float32"),)
    return Network("shuffling", str(path), "shuffling", str(path), *specs, 0)


@pytest.mark.parametrize(
    ("options", "stays_last"),
    [({}, True), ({"groups": 3}, True), ({"order": (0, 2, 1, 4, 3)}, False)],
)
def test_a_network_that_shuffles_channels_computes_the_same_without_going_back_and_forth(
    options: dict[str, object], stays_last: bool, dialect: Dialect, tmp_path: Path
) -> None:
    network = shuffling_network(tmp_path, **options)  # type: ignore[arg-type]
    target = dialect.resolve_target("native", 1)
    tasks = dialect.extract(network, target)
    halves = (1, _CHANNELS // 2, _SIDE, _SIDE)
    assert any(spec.shape == halves for task in tasks for spec in task.workload.arguments) != stays_last
    dialect.compile(network, target, {}, tmp_path / "compiled")
    arrays = make_inputs(network.inputs, 3)
    session = onnxruntime.InferenceSession(network.path, providers=["CPUExecutionProvider"])
    [theirs] = session.run(None, {"x": arrays[0]})
    [ours] = dialect.load_network(tmp_path / "compiled")(*arrays)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5 * float(np.abs(theirs).max()))
