"""Loops' outputs have the shapes that can be told, whatever the exporter wrote down of their bodies."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from tunery._errors import ModelError
from tunery.models import prepare

SHAPE = (2, 4)
CONSTANTS = {
    "count": np.array(3),
    "row": np.ones((1, 4), np.float32),
    "axes": np.array([0]),
}
KEEPS = [helper.make_node("Add", ["a", "row"], ["b"])]
GROWS = [helper.make_node("Concat", ["a", "row"], ["b"], axis=0)]
DEEPENS = [helper.make_node("Unsqueeze", ["a", "axes"], ["b"])]
TURNS = [helper.make_node("Transpose", ["a"], ["b"])]


def prepared(
    folder: Path, body: Sequence[NodeProto], collected: Sequence[str] = (), after: Sequence[NodeProto] = ()
) -> Mapping[str, tuple[int, ...]]:
    """Prepare a loop that carries `a` to `b` and collects values of its steps; return the outputs' shapes."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), *body],
        "body",
        [value("i", TensorProto.INT64, []), value("go", TensorProto.BOOL, []), value("a", TensorProto.FLOAT, None)],
        [value("on", TensorProto.BOOL, []), *(value(name, TensorProto.FLOAT, None) for name in ["b", *collected])],
    )
    made = ["last", *(f"all_{name}" for name in collected)]
    loop = helper.make_node("Loop", ["count", "", "x"], made, body=graph)
    names = [name for node in after for name in node.output] or made
    whole = helper.make_graph(
        [loop, *after], "loop", [value("x", TensorProto.FLOAT, SHAPE)],
        [value(name, TensorProto.FLOAT, None) for name in names],
        [numpy_helper.from_array(array, name) for name, array in CONSTANTS.items()],
    )  # fmt: skip
    path = folder / "loop.onnx"
    onnx.save(helper.make_model(whole, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return {spec.name: spec.shape for spec in prepare(str(path), {}, folder).outputs}


def test_what_each_step_leaves_as_it_was_has_one_shape(tmp_path: Path) -> None:
    assert prepared(tmp_path, KEEPS) == {"last": SHAPE}


def test_what_comes_after_a_loop_has_a_shape(tmp_path: Path) -> None:
    after = [helper.make_node("Transpose", ["last"], ["y"])]
    assert prepared(tmp_path, KEEPS, after=after) == {"y": SHAPE[::-1]}


def test_what_grows_has_a_dimension_that_is_open(tmp_path: Path) -> None:
    assert prepared(tmp_path, GROWS) == {"last": (-1, 4)}


def test_dimensions_that_change_places_are_open(tmp_path: Path) -> None:
    assert prepared(tmp_path, TURNS) == {"last": (-1, -1)}


def test_what_steps_collect_has_a_dimension_for_them(tmp_path: Path) -> None:
    assert prepared(tmp_path, KEEPS, ["a"]) == {"last": SHAPE, "all_a": (-1, *SHAPE)}


def test_a_rank_that_depends_on_the_steps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="number of dimensions of output 'last' depends on the data"):
        prepared(tmp_path, DEEPENS)


def test_a_loop_after_a_loop_has_a_shape(tmp_path: Path) -> None:
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Identity", ["go2"], ["on2"]), helper.make_node("Relu", ["c"], ["d"])],
        "again",
        [value("i2", TensorProto.INT64, []), value("go2", TensorProto.BOOL, []), value("c", TensorProto.FLOAT, None)],
        [value("on2", TensorProto.BOOL, []), value("d", TensorProto.FLOAT, None)],
    )
    again = helper.make_node("Loop", ["count", "", "t"], ["y"], body=body)
    after = [helper.make_node("Transpose", ["last"], ["t"]), again]
    assert prepared(tmp_path, KEEPS, after=after)["y"] == SHAPE[::-1]
