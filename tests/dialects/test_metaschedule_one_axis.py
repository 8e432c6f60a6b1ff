"""Convolutions along one axis have the layouts and schedules of those along two."""

from operator import attrgetter
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from metaschedule_models import write_network
from onnx import helper

from tunery.dialects import Dialect
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
    network = write_network(tmp_path, "line", nodes, {"x": (2, channels, 17)}, arrays)
    target = dialect.resolve_target("native", 1)
    dialect.compile(network, target, {}, tmp_path / "compiled")
    inputs = make_inputs(network.inputs, 3)
    [theirs] = onnxruntime.InferenceSession(network.path, providers=["CPUExecutionProvider"]).run(
        None, {"x": inputs[0]}
    )
    [ours] = dialect.load_network(tmp_path / "compiled")(*inputs)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5 * float(np.abs(theirs).max()))


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
