"""What is made for a network's inputs fits what reads them, and meets the cases that its operators treat otherwise."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tunery.domain import InputRange, Network
from tunery.measuring.inputs import SETS, network_inputs, set_numbers
from tunery.models import prepare

I64, F32, BOOL = TensorProto.INT64, TensorProto.FLOAT, TensorProto.BOOL


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Network:
    """A model in which each input is read in a way of its own."""
    constants = {
        "table": np.ones((30, 4), np.float32), "two": np.array(2), "one": np.array(1.0, np.float32),
        "huge": np.array(-1e9, np.float32), "depth": np.array(6), "values": np.array([0, 1], np.float32),
        "zero": np.array(0), "w": np.ones((4, 4, 3, 3), np.float32), "minus": np.array(-np.inf, np.float32),
    }  # fmt: skip
    nodes = [
        helper.make_node("Add", ["ids", "two"], ["shifted"]),
        helper.make_node("Gather", ["table", "shifted"], ["looked"]),
        helper.make_node("OneHot", ["kinds", "depth", "values"], ["hot"]),
        helper.make_node("Cast", ["mask"], ["shown"], to=F32),
        helper.make_node("Sub", ["one", "shown"], ["rest"]),
        helper.make_node("Mul", ["rest", "huge"], ["hidden"]),
        helper.make_node("Equal", ["flags", "zero"], ["off"]),
        helper.make_node("Div", ["free", "by"], ["part"]),
        helper.make_node("Cast", ["floats"], ["whole"], to=I64),
        helper.make_node("Gather", ["table", "whole"], ["floated"]),
        helper.make_node("Where", ["seen", "scores", "minus"], ["masked"]),
        helper.make_node("ArgMax", ["masked"], ["best"], axis=1),
        helper.make_node("Relu", ["image"], ["bent"]),
        helper.make_node("Conv", ["bent", "w"], ["drawn"]),
    ]
    inputs = [helper.make_tensor_value_info(name, I64, [8]) for name in ("ids", "kinds", "mask", "flags", "free", "by")]
    inputs += [helper.make_tensor_value_info(name, F32, [3, 8]) for name in ("floats", "scores")]
    inputs += [helper.make_tensor_value_info("seen", BOOL, [3, 8])]
    inputs += [helper.make_tensor_value_info("image", F32, [1, 4, 5, 5])]
    made = ("looked", "hot", "hidden", "off", "part", "floated", "best", "drawn")
    graph = helper.make_graph(
        nodes, "g", inputs, [onnx.ValueInfoProto(name=name) for name in made],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )  # fmt: skip
    model = onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    )
    folder = tmp_path_factory.mktemp("ranges")
    onnx.save(model, folder / "m.onnx")
    return prepare(str(folder / "m.onnx"), {}, folder)


def test_integers_are_bound_by_what_reads_them(network: Network) -> None:
    assert {name: (one.low, one.high) for name, one in network.ranges.items()} == {
        "ids": (-2, 27), "kinds": (0, 5), "mask": (0, 1), "flags": (0, 1), "free": (None, None), "by": (1, 64),
        "floats": (0, 29), "scores": (None, None), "seen": (None, None), "image": (None, None),
    }  # fmt: skip
    assert {name for name, one in network.ranges.items() if one.special} == {"floats", "scores"}, (
        "a convolution may multiply what it does not use by 0"
    )
    assert {name for name, one in network.ranges.items() if one.nan} == {"floats", "scores"}


def test_the_sets_hold_what_they_are_called_for(network: Network) -> None:
    numbers = set_numbers(network.inputs, network.ranges)
    assert len(numbers) == len(SETS)
    sets = {
        SETS[number]: dict(
            zip((spec.name for spec in network.inputs), network_inputs(network.inputs, network.ranges, 17, number),
                strict=True)
        )
        for number in numbers
    }  # fmt: skip
    for arrays in sets.values():
        for name, (low, high) in {"ids": (-2, 27), "kinds": (0, 5), "mask": (0, 1), "by": (1, 64)}.items():
            assert low <= arrays[name].min() <= arrays[name].max() <= high
        assert np.isfinite(arrays["image"]).all()
    assert set(sets["ends"]["ids"]) == {-2, 27}
    assert sets["random"]["mask"].tolist() == [1] * 6 + [0] * 2
    assert not sets["zeros"]["mask"].any()
    assert not sets["ends"]["seen"][0].any()
    assert sets["ends"]["seen"][1:].all()
    assert sets["ties"]["seen"].all()
    assert not sets["zeros"]["scores"].any()
    assert np.signbit(sets["zeros"]["scores"]).any()
    assert np.isneginf(sets["infinite"]["scores"][0]).all()
    assert np.isnan(sets["NaN"]["scores"]).any()
    assert np.abs(sets["ends"]["free"]).max() == 2**31 - 1


def test_the_model_as_it_was_read_is_kept_beside_the_prepared_one(network: Network) -> None:
    kept = onnx.load(network.original)
    assert [node.op_type for node in kept.graph.node][:4] == ["Add", "Gather", "OneHot", "Cast"]
    assert network.ranges["ids"] == InputRange(-2, 27)
    assert Path(network.original) != Path(network.path)
