"""Transposed convolutions are computed channels last, phase by phase."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from metaschedule_models import write_network
from onnx import helper

from tunery._errors import DialectError
from tunery.delivery.files.loading import load_compiled
from tunery.dialects import Dialect
from tunery.dialects.metaschedule.importing import lowering
from tunery.dialects.metaschedule.variants.program import variants
from tunery.domain import Network
from tunery.measuring.inputs import make_inputs

pytestmark = pytest.mark.tvm

_GIVEN, _MADE, _SIDES = 6, 4, (5, 7)


def upsampling_network(
    directory: Path, *, constant: bool = True, between: bool = True, **attributes: object
) -> Network:
    """A transposed convolution with a bias, between two convolutions or alone."""
    rng = np.random.default_rng(7)
    groups, (height, width) = int(str(attributes.get("group", 1))), attributes["kernel_shape"]  # type: ignore[misc]
    shapes = {
        "v": (_GIVEN, 3, 3, 3),
        "w": (_GIVEN, _MADE // groups, height, width),
        "b": (_MADE,),
        "u": (5, _MADE, 1, 1),
    }
    arrays = {name: rng.standard_normal(shape) / 3 for name, shape in shapes.items()}
    inputs = {"x": (2, 3 if between else _GIVEN, *_SIDES)} | ({} if constant else {"w": shapes["w"]})
    nodes = [helper.make_node("ConvTranspose", ["a" if between else "x", "w", "b"], ["t"], **attributes)]
    nodes.append(helper.make_node("Relu", ["t"], ["r" if between else "y"]))
    if between:
        nodes.insert(0, helper.make_node("Conv", ["x", "v"], ["a"], pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Conv", ["r", "u"], ["y"]))
    constants = {name: array for name, array in arrays.items() if name not in inputs}
    return write_network(directory, "upsampling", nodes, inputs, constants)


def assert_same(dialect: Dialect, network: Network, directory: Path) -> None:
    target = dialect.resolve_target("native", 1)
    dialect.compile(network, target, {}, directory / "compiled")
    arrays = make_inputs(network.inputs, 3)
    session = onnxruntime.InferenceSession(network.path, providers=["CPUExecutionProvider"])
    [theirs] = session.run(None, {spec.name: array for spec, array in zip(network.inputs, arrays, strict=True)})
    [ours] = load_compiled(directory / "compiled")(*arrays)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5 * float(np.abs(theirs).max()))


@pytest.mark.parametrize(
    "attributes",
    [
        {"kernel_shape": (2, 2), "strides": (2, 2)},
        {"kernel_shape": (4, 4), "strides": (2, 2), "pads": (1, 1, 1, 1)},
        {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1), "output_padding": (1, 1)},
        {"kernel_shape": (5, 2), "strides": (2, 3), "pads": (2, 0, 1, 1), "output_padding": (1, 2)},
        {"kernel_shape": (1, 1), "strides": (2, 2), "output_padding": (1, 1)},
        {"kernel_shape": (4, 4), "between": False},
    ],
)
def test_a_transposed_convolution_is_one_convolution_of_all_phases(
    attributes: dict[str, object], dialect: Dialect, tmp_path: Path
) -> None:
    network = upsampling_network(tmp_path, **attributes)  # type: ignore[arg-type]
    tasks = dialect.extract(network, dialect.resolve_target("native", 1))
    strides = attributes.get("strides", (1, 1))
    phases = _MADE * int(np.prod(strides))  # type: ignore[call-overload]
    assert any(
        task.workload.kind == "conv2d" and phases in {spec.shape[-1] for spec in task.workload.output_specs}
        for task in tasks
    )
    assert_same(dialect, network, tmp_path)


@pytest.mark.parametrize("attributes", [{"group": 2}, {"dilations": (2, 2)}, {"constant": False}])
def test_what_has_no_phases_is_computed_channels_first(
    attributes: dict[str, object], dialect: Dialect, tmp_path: Path
) -> None:
    network = upsampling_network(tmp_path, kernel_shape=(3, 3), strides=(2, 2), **attributes)  # type: ignore[arg-type]
    assert_same(dialect, network, tmp_path)


@pytest.mark.parametrize(
    "rule", ["move_constants", "restore_clips", "keep_rows", "interleave_phases", "sink_layouts", "scale_and_shift"]
)
def test_a_rule_for_networks_that_fails_costs_itself_only(
    rule: str, dialect: Dialect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(module: object) -> None:
        raise RuntimeError("it cannot be written")

    broken.__name__ = rule
    monkeypatch.setattr(lowering, rule, broken)
    monkeypatch.setattr(lowering, "_kept", {})
    network = upsampling_network(tmp_path, kernel_shape=(3, 3), strides=(2, 2))
    tasks = dialect.extract(network, dialect.resolve_target("native", 1))
    assert all(variants(task).left_out[rule] == "RuntimeError: it cannot be written" for task in tasks)
    convolutions = [task.workload.arguments[0].shape for task in tasks if task.workload.kind == "conv2d"]
    assert any(shape[1:3] == _SIDES for shape in convolutions), "still channels last"
    assert_same(dialect, network, tmp_path)
    caplog.clear()  # it is said, as it has to be


def test_what_is_no_program_and_no_segment_is_named_before_anything_is_tuned(
    dialect: Dialect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lowering, "_NEED_NONE", set())
    network = upsampling_network(tmp_path, kernel_shape=(2, 2), strides=(2, 2))
    with pytest.raises(DialectError, match="upsampling"):
        dialect.extract(network, dialect.resolve_target("native", 1))
