"""Shuffles of channels stay channels last."""

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

_CHANNELS, _SIDE = 24, 6


def shuffling_network(directory: Path, *, groups: int = 2, order: tuple[int, ...] = (0, 2, 1, 3, 4)) -> Network:
    """Two units as ShuffleNet has them: split, a convolution of one half, concatenated with the other, shuffled."""
    rng = np.random.default_rng(11)
    half = _CHANNELS // 2
    shapes = {"w": (_CHANNELS, 3, 3, 3), "a": (half, half, 1, 1), "b": (half, half, 1, 1), "z": (8, _CHANNELS, 1, 1)}
    constants = {name: rng.standard_normal(shape) / 4 for name, shape in shapes.items()}
    sides = [_SIDE, _SIDE]
    constants |= {
        "grouped": np.array([1, groups, _CHANNELS // groups, *sides]),
        "whole": np.array([1, _CHANNELS, *sides]),
        "halves": np.array([half, half]),
    }
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
    return write_network(directory, "shuffling", nodes, {"x": (1, 3, *sides)}, constants)


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
    [ours] = load_compiled(tmp_path / "compiled")(*arrays)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5 * float(np.abs(theirs).max()))


@pytest.mark.parametrize("rank", [5, 3])
@pytest.mark.parametrize("operator", ["Conv", "ConvTranspose"])
def test_a_convolution_of_other_axes_after_one_of_planes_has_data_and_weights_in_one_layout(
    operator: str, rank: int, dialect: Dialect, tmp_path: Path
) -> None:
    rng = np.random.default_rng(rank)
    side, channels = (5, 1) if rank == 5 else (1, 6)
    filters = [channels, 2] if operator == "ConvTranspose" else [2, channels]
    constants = {
        "w": rng.standard_normal((6, 4, 1, 1)),
        "v": rng.standard_normal((*filters, *[3, 2, 2][: rank - 2])),
        "at": np.array([1 if rank == 5 else 2]),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["planes"]),
        helper.make_node("Unsqueeze" if rank == 5 else "Squeeze", ["planes", "at"], ["others"]),
        helper.make_node(operator, ["others", "v"], ["y"]),
    ]
    network = write_network(tmp_path, "axes", nodes, {"x": (1, 4, side, 7)}, constants)
    dialect.compile(network, dialect.resolve_target("native", 1), {}, tmp_path / "compiled")
    arrays = make_inputs(network.inputs, 3)
    session = onnxruntime.InferenceSession(network.path, providers=["CPUExecutionProvider"])
    [theirs] = session.run(None, {"x": arrays[0]})
    [ours] = load_compiled(tmp_path / "compiled")(*arrays)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5 * float(np.abs(theirs).max()))
