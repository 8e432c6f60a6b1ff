"""Convolutions along one axis have the layouts and schedules of those along two."""

from operator import attrgetter
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from metaschedule_models import write_network
from onnx import helper

from tunery.delivery.files.loading import load_compiled
from tunery.dialects import Dialect
from tunery.domain import Network
from tunery.measuring.inputs import make_inputs

pytestmark = pytest.mark.tvm
_INPUTS, _OUTPUTS = attrgetter("input_specs"), attrgetter("output_specs")


@pytest.mark.parametrize(
    ("weights", "bias", "attributes"),
    [
        ((5, 4, 3), True, {"pads": (2, 0), "strides": (2,)}),
        ((5, 4, 3), False, {"dilations": (3,)}),
        ((8, 2, 5), True, {"group": 2, "pads": (2, 2)}),
        ((4, 1, 3), True, {"group": 4, "pads": (1, 1)}),
        ((6, 4, 1), True, {}),
        ((5, 4, 4), True, {"auto_pad": "SAME_LOWER", "strides": (3,)}),
        ((5, 4, 4), True, {"auto_pad": "VALID", "strides": (3,)}),
    ],
)
def test_a_convolution_along_one_axis_gives_what_onnx_runtime_does(
    weights: tuple[int, int, int], bias: bool, attributes: dict[str, object], dialect: Dialect, tmp_path: Path
) -> None:
    rng = np.random.default_rng(5)
    arrays = {
        "w": rng.standard_normal(weights),
        "b": rng.standard_normal(weights[:1]),
        "v": np.ones((3, weights[0], 1)),
    }
    if not bias:
        del arrays["b"]
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"][: 2 + bias], ["c"], **attributes),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Conv", ["r", "v"], ["y"]),
    ]
    channels = weights[1] * int(str(attributes.get("group", 1)))
    assert_same(dialect, write_network(tmp_path, "line", nodes, {"x": (2, channels, 17)}, arrays), tmp_path)


def assert_same(dialect: Dialect, network: Network, directory: Path) -> None:
    dialect.compile(network, dialect.resolve_target("native", 1), {}, directory / "compiled")
    inputs = make_inputs(network.inputs, 3)
    [theirs] = onnxruntime.InferenceSession(network.path, providers=["CPUExecutionProvider"]).run(
        None, {"x": inputs[0]}
    )
    [ours] = load_compiled(directory / "compiled")(*inputs)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5 * float(np.abs(theirs).max()))


@pytest.mark.parametrize(
    "attributes",
    [
        {"strides": (2,), "pads": (1, 1), "output_padding": (1,)},
        {"strides": (4,), "pads": (2, 0)},
        {"auto_pad": "SAME_UPPER", "strides": (2,)},
        {"group": 2},
        {"dilations": (2,)},
    ],
)
def test_a_transposed_convolution_along_one_axis_gives_what_onnx_runtime_does(
    attributes: dict[str, object], dialect: Dialect, tmp_path: Path
) -> None:
    rng = np.random.default_rng(5)
    made = 3 * int(str(attributes.get("group", 1)))
    arrays = {"w": rng.standard_normal((4, 3, 5)), "b": rng.standard_normal(made)}
    nodes = [
        helper.make_node("ConvTranspose", ["x", "w", "b"], ["c"], **attributes),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    network = write_network(tmp_path, "line", nodes, {"x": (2, 4, 9)}, arrays)
    if "strides" in attributes and "auto_pad" not in attributes:
        tasks = dialect.extract(network, dialect.resolve_target("native", 1))
        assert any(task.workload.kind == "conv2d" for task in tasks), "channels last, by phases"
    assert_same(dialect, network, tmp_path)


def test_what_follows_one_is_fused_with_it(dialect: Dialect, tmp_path: Path) -> None:
    """Also a residual and a scale, and activations of several operators."""
    rng = np.random.default_rng(5)
    shapes = {"w": (16, 16, 3), "v": (16, 16, 1), "scale": (1, 16, 1), "last": (38,), "one": (), "half": ()}
    arrays = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Mul", ["c", "scale"], ["m"]),
        helper.make_node("Add", ["m", "last"], ["n"]),
        helper.make_node("Erf", ["n"], ["e"]),
        helper.make_node("Add", ["e", "one"], ["f"]),
        helper.make_node("Mul", ["n", "f"], ["g"]),
        helper.make_node("Mul", ["g", "half"], ["h"]),
        helper.make_node("Conv", ["h", "v"], ["d"]),
        helper.make_node("Add", ["d", "h"], ["r"]),
        helper.make_node("Relu", ["r"], ["y"]),
    ]
    network = write_network(tmp_path, "line", nodes, {"x": (1, 16, 40)}, arrays)
    tasks = dialect.extract(network, dialect.resolve_target("native", 1))
    kinds = [task.workload.kind for task in tasks]
    assert kinds.count("conv2d") == 2
    assert "elementwise" not in kinds
    assert_same(dialect, network, tmp_path)


def test_a_constant_of_more_dimensions_is_broadcast_as_it_was(dialect: Dialect, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    arrays = {"w": rng.standard_normal((16, 8, 3)), "more": rng.standard_normal((3, 1, 16, 1))}
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Mul", ["c", "more"], ["y"])]
    assert_same(dialect, write_network(tmp_path, "line", nodes, {"x": (2, 8, 40)}, arrays), tmp_path)


def test_one_for_each_channel_is_depthwise(dialect: Dialect, tmp_path: Path) -> None:
    arrays = {"w": np.ones((16, 1, 3)), "v": np.ones((16, 16, 1))}
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"], group=16), helper.make_node("Conv", ["c", "v"], ["y"])]
    network = write_network(tmp_path, "line", nodes, {"x": (1, 16, 40)}, arrays)
    tasks = dialect.extract(network, dialect.resolve_target("native", 1))
    assert {"depthwise", "conv2d"} <= {task.workload.kind for task in tasks}


def test_between_two_of_them_the_channels_stay_last(dialect: Dialect, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    arrays = {name: rng.standard_normal(shape) for name, shape in {"w": (16, 8, 3), "v": (8, 16, 3)}.items()}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Conv", ["r", "v"], ["y"]),
    ]
    network = write_network(tmp_path, "line", nodes, {"x": (1, 8, 40)}, arrays)
    tasks = dialect.extract(network, dialect.resolve_target("native", 1))
    convolutions = [task.workload for task in tasks if task.workload.kind == "conv2d"]
    made, read = ({spec.shape for one in convolutions for spec in specs(one)} for specs in (_OUTPUTS, _INPUTS))
    assert (1, 1, 38, 16) in made & read


def test_a_group_normalisation_is_between_convolutions_without_rearranging_anything(
    dialect: Dialect, tmp_path: Path
) -> None:
    rng = np.random.default_rng(5)
    arrays = {"w": rng.standard_normal((8, 4, 3)), "v": rng.standard_normal((3, 8, 1)), "one": np.ones(2)}
    arrays |= {"zero": np.zeros(2), "grouped": np.array([0, 2, -1]), "whole": np.array([2, 8, 15])}
    arrays |= {"scale": rng.standard_normal((8, 1)), "shift": rng.standard_normal((8, 1))}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Reshape", ["c", "grouped"], ["g"]),
        helper.make_node("InstanceNormalization", ["g", "one", "zero"], ["i"]),
        helper.make_node("Reshape", ["i", "whole"], ["n"]),
        helper.make_node("Mul", ["n", "scale"], ["m"]),
        helper.make_node("Add", ["m", "shift"], ["a"]),
        helper.make_node("Conv", ["a", "v"], ["y"]),
    ]
    network = write_network(tmp_path, "line", nodes, {"x": (2, 4, 17)}, arrays)
    tasks = dialect.extract(network, dialect.resolve_target("native", 1))
    made = 2 * 8 * 15
    moved = [task for task in tasks if task.workload.kind == "layout" and _OUTPUTS(task.workload)[0].shape[0] == 2]
    assert all(np.prod(spec.shape) < made for task in moved for spec in _OUTPUTS(task.workload))
    assert_same(dialect, network, tmp_path)
