"""Convolutions that are tasks of their own: their keys are those of their networks, whatever else a network has."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from metaschedule_models import write_network
from onnx import helper

from tunery.dialects.iree.convolution import convolution_keys, is_convolution, workload_of, write_model
from tunery.domain import operator_key


@st.composite
def keys(draw: st.DrawFn) -> str:
    """Convolutions of images or lines, with what may be behind them."""
    rank, groups = draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 1, 4]))
    image = (1, 4, *draw(st.tuples(*[st.integers(6, 9)] * rank)))
    window = draw(st.tuples(*[st.integers(1, 3)] * rank))
    told = {name: draw(st.tuples(*[st.integers(1, 2)] * rank)) for name in ("strides", "dilations")}
    pads = draw(st.tuples(*[st.integers(0, 1)] * 2 * rank))
    assume(groups > 1 or max(window) > 1 or any(pads))
    weights = (8, 4 // groups, *window)
    ends = [
        (size + pads[i] + pads[rank + i] - told["dilations"][i] * (window[i] - 1) - 1) // told["strides"][i] + 1
        for i, size in enumerate(image[2:])
    ]
    assume(min(ends) > 1)
    bias = draw(st.sampled_from([[], ["add=1x8" + "x1" * rank]]))
    result = "x".join(map(str, (1, 8, *ends)))
    behind = draw(st.sampled_from([
        [], ["relu"], ["clip=0,6"], [f"add={result}"], [f"add={result}", "relu"], ["relu", f"add={result}"],
        ["sigmoid", f"multiply=${len(bias)}"], [f"add={result}", "sigmoid", f"multiply=${len(bias) + 1}"],
    ]))  # fmt: skip
    tensors = {"x": (image, "float32"), "w": (weights, "float32")}
    attributes = {**told, "pads": pads, "groups": groups}
    return operator_key(f"conv{rank}d", tensors, attributes, [*bias, *behind])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(key=keys())
def test_the_network_of_a_key_has_that_key_and_its_arguments(key: str, tmp_path: Path) -> None:
    path = tmp_path / "convolution.onnx"
    write_model(key, path)
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert convolution_keys(path) == {key: 1}
    workload = workload_of(key)
    assert is_convolution(workload.program)
    assert workload.operator == key
    given = [*model.graph.input, *model.graph.output]
    shapes = [tuple(dim.dim_value for dim in one.type.tensor_type.shape.dim) for one in given]
    assert [spec.shape for spec in workload.arguments] == shapes


def network(directory: Path, *nodes: onnx.NodeProto) -> Path:
    """Return a network of an image `x` of 8 channels, with weights and biases, that ends with the value of `nodes`."""
    constants = {
        "w": np.ones((8, 8, 3, 3)), "d": np.ones((8, 1, 3, 3)), "p": np.ones((8, 8, 1, 1)), "b": np.ones(8),
        "low": np.array(0.0), "high": np.array(6.0), "one": np.ones((1, 8, 1, 1)),
    }  # fmt: skip
    used = {name for node in nodes for name in node.input}
    constants = {name: array for name, array in constants.items() if name in used}
    return Path(write_network(directory, "network", nodes, {"x": (1, 8, 6, 6)}, constants).path)


def convolution(given: str, made: str, weights: str = "w", groups: int = 1, pads: int = 1) -> onnx.NodeProto:
    return helper.make_node("Conv", [given, weights, "b"], [made], pads=[pads] * 4, group=groups)


KEY = "conv2d:x=1x8x6x6:float32,w=8x8x3x3,pads=1x1x1x1+add=1x8x1x1"
DEPTHWISE = "conv2d:x=1x8x6x6:float32,w=8x1x3x3,pads=1x1x1x1,groups=8+add=1x8x1x1"


def test_a_sum_of_two_convolutions_is_behind_one_of_them(tmp_path: Path) -> None:
    path = network(
        tmp_path, convolution("x", "a"), convolution("x", "c", "d", 8),
        helper.make_node("Add", ["a", "c"], ["s"]), helper.make_node("Relu", ["s"], ["y"]),
    )  # fmt: skip
    assert convolution_keys(path) == {f"{KEY}+add=1x8x6x6+relu": 1, DEPTHWISE: 1}


def test_equal_ones_are_counted_and_those_of_single_places_are_none(tmp_path: Path) -> None:
    path = network(
        tmp_path, convolution("x", "a"), convolution("a", "c", "p", pads=0), convolution("c", "e"),
        helper.make_node("Clip", ["e", "low", "high"], ["f"]), convolution("f", "y"),
    )  # fmt: skip
    assert convolution_keys(path) == {KEY: 2, f"{KEY}+clip=0,6": 1}


@pytest.mark.parametrize("node", [
    helper.make_node("Add", ["a", "a"], ["y"]), helper.make_node("Add", ["a", "one"], ["y"]),
    helper.make_node("Tanh", ["a"], ["y"]), helper.make_node("Add", ["x", "a"], ["y"]),
])  # fmt: skip
def test_what_is_no_known_step_is_not_behind_it(node: onnx.NodeProto, tmp_path: Path) -> None:
    assert convolution_keys(network(tmp_path, convolution("x", "a"), node)) == {KEY: 1}


def test_what_others_need_is_a_result(tmp_path: Path) -> None:
    path = network(
        tmp_path, convolution("x", "a"), helper.make_node("Relu", ["a"], ["r"]), helper.make_node("Tanh", ["a"], ["t"]),
        helper.make_node("Add", ["r", "t"], ["y"]),
    )  # fmt: skip
    assert convolution_keys(path) == {KEY: 1}
