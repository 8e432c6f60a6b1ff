"""What is made for a network's inputs fits what reads them, and meets the cases that its operators treat otherwise."""

import ast
import contextlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tunery._errors import WorkError
from tunery.blobs import DirectoryBlobs
from tunery.delivery.comparing.compare import ExpectedSet, checked_error
from tunery.delivery.comparing.contestants import OriginalModel
from tunery.domain import InputRange, Network, TensorSpec
from tunery.measuring.inputs import SETS, network_inputs, set_numbers
from tunery.models import prepare
from tunery.models.onnx._ranges import input_ranges

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
        helper.make_node("Max", ["narrow", "narrow"], ["most"]),
        helper.make_node("Mul", ["faded", "huge"], ["faint"]),
        helper.make_node("Sub", ["one", "faded"], ["opaque"]),
        helper.make_node("Relu", ["image"], ["bent"]),
        helper.make_node("Conv", ["bent", "w"], ["drawn"]),
    ]
    inputs = [
        helper.make_tensor_value_info(name, I64, [8])
        for name in ("ids", "kinds", "mask", "flags", "free", "by", "narrow")
    ]
    inputs += [helper.make_tensor_value_info(name, F32, [3, 8]) for name in ("floats", "scores", "faded")]
    inputs += [helper.make_tensor_value_info("seen", BOOL, [3, 8])]
    inputs += [helper.make_tensor_value_info("image", F32, [1, 4, 5, 5])]
    made = ("looked", "hot", "hidden", "off", "part", "floated", "best", "drawn", "most", "faint", "opaque")
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
        "floats": (0, 29), "scores": (None, None), "faded": (0, 1),
        "narrow": (None, None), "seen": (None, None), "image": (None, None),
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
    assert {2**63 - 1, -(2**63)} <= set(sets["ends"]["free"])
    assert np.abs(sets["ends"]["narrow"]).max() == 2**31 - 1, "ONNX Runtime's Max has 32 bits"
    assert [sets[kind]["faded"].sum(1).tolist() for kind in ("random", "zeros", "ends", "ties")] == [
        [6, 6, 6], [0, 0, 0], [0, 8, 8], [8, 8, 8]
    ]  # fmt: skip


CASES = {
    "another sign of zero": ("zeros", "Div(one, x)", "Div(one, Abs(x))"),
    "no denormals": ("ends", "Greater(x, zero)", "Greater(x, least)"),
    "the last of equals": ("ties", "ArgMax(x)", "Last(x)"),
    "halves away from 0": ("ties", "Round(x)", "Floor(Add(x, half))"),
    "a short range": ("large", "Exp(x)", "Exp(Min(x, eighty))"),
    "a finite start": ("infinite", "RowMax(rows)", "Max(RowMax(rows), lowest)"),
    "nothing is NaN": ("NaN", "IsNaN(x)", "IsInf(Sub(x, x))"),
    "the last row is cut off": ("ends", "Gather(table, ids)", "Gather(table, Min(ids, six))"),
    "the first row is cut off": ("ends", "Gather(table, ids)", "Gather(table, Max(ids, one64))"),
    "32 bits of 64": ("ends", "Add(whole, one64)", "Add(Int(whole), one64)"),
    "no overflow": ("ends", "Less(Add(whole, one64), whole)", "Less(whole, whole)"),
    "nothing hidden": ("ties", "ReduceMin(seen)", "Sub(ReduceMin(seen), ReduceMin(seen))"),
    "all hidden": ("zeros", "ReduceMax(seen)", "Max(ReduceMax(seen), ones)"),
    "one row hidden": ("ends", "Sub(ReduceMax(RowMax(seen)), ReduceMin(RowMax(seen)))", "Sub(zero, zero)"),
}
"""Faults: the set that finds it, what is right, what it makes of it."""


def computed(texts: Sequence[str]) -> bytes:
    """Return a model of the given terms side by side."""
    nodes = list[onnx.NodeProto]()
    more: dict[str, tuple[str, dict[str, int | list[int]]]] = {
        "Last": ("ArgMax", {"select_last_index": 1}), "Int": ("Cast", {"to": TensorProto.INT32}),
        "RowMax": ("ReduceMax", {"axes": [1]}), "ReduceMax": ("ReduceMax", {"keepdims": 0}),
        "ReduceMin": ("ReduceMin", {"keepdims": 0}),
    }  # fmt: skip

    def name_of(term: ast.expr) -> str:
        if isinstance(term, ast.Name):
            return term.id
        assert isinstance(term, ast.Call)
        assert isinstance(term.func, ast.Name)
        kind, attributes = more.get(term.func.id, (term.func.id, {}))
        inputs = [name_of(one) for one in term.args]
        if kind == "Cast":
            inputs = [cast_to(inputs, attributes)]
            attributes = {"to": I64}
        nodes.append(helper.make_node(kind, inputs, [f"v{len(nodes)}"], **attributes))
        return str(nodes[-1].output[0])

    def cast_to(inputs: Sequence[str], attributes: dict[str, int | list[int]]) -> str:
        nodes.append(helper.make_node("Cast", inputs, [f"v{len(nodes)}"], **attributes))
        return str(nodes[-1].output[0])

    for number, text in enumerate(texts):
        term = ast.parse(text, mode="eval").body
        nodes.append(helper.make_node("Identity", [name_of(term)], [f"y{number}"]))
    constants = {
        "one": np.float32(1), "zero": np.float32(0), "least": np.float32(1.2e-38), "half": np.float32(0.5),
        "eighty": np.float32(80), "lowest": np.float32(-3e38), "ones": np.float32(1), "six": np.array(6),
        "one64": np.array(1), "table": np.arange(8, dtype=np.float32) + 1,
    }  # fmt: skip
    given = [("x", F32, [6, 8]), ("rows", F32, [4, 8]), ("ids", I64, [3]), ("whole", I64, [5]), ("seen", F32, [3, 8])]
    used = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(*one) for one in given],
        [onnx.ValueInfoProto(name=f"y{number}") for number in range(len(texts))],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items() if name in used],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()


def test_a_fault_of_each_kind_is_found_by_the_set_that_is_made_for_it(tmp_path: Path) -> None:
    blobs = DirectoryBlobs(tmp_path / "blobs")
    free, whole = InputRange(special=True, nan=True), InputRange(wide=True)
    ranges = {"x": free, "rows": InputRange(special=True), "ids": InputRange(0, 7), "whole": whole,
              "seen": InputRange(0, 1)}  # fmt: skip
    shapes = {"x": (6, 8), "rows": (4, 8), "ids": (3,), "whole": (5,), "seen": (3, 8)}
    specs = [TensorSpec(name, shape, "int64" if len(shape) == 1 else "float32") for name, shape in shapes.items()]
    right, faulty = (blobs.put(computed([case[side] for case in CASES.values()])) for side in (1, 2))
    expected = OriginalModel(right, 1, specs, ranges, seed=17, blobs=blobs).expected(len(SETS))
    assert [why for *_, why in expected] == [""] * len(SETS)
    ours = OriginalModel(faulty, 1, specs, ranges, seed=17, blobs=blobs)
    found = {name: set[str]() for name in CASES}
    for number, outputs, rounding, _ in expected:
        for at, (name, one) in enumerate(zip(CASES, ours.outputs(number), strict=True)):
            with contextlib.suppress(WorkError):
                checked_error(name, [one], ExpectedSet(number, outputs[at : at + 1], rounding[at : at + 1]))
                continue
            found[name].add(SETS[number])
    assert {name: kind for name, (kind, *_) in CASES.items() if kind not in found[name]} == {}


def test_the_model_as_it_was_read_is_kept_beside_the_prepared_one(network: Network) -> None:
    kept = onnx.load(network.original)
    assert [node.op_type for node in kept.graph.node][:4] == ["Add", "Gather", "OneHot", "Cast"]
    assert network.ranges["ids"] == InputRange(-2, 27, wide=True)
    assert Path(network.original) != Path(network.path)


def test_an_input_of_indices_is_one_that_tables_read_whole() -> None:
    tables = {"small": np.ones((5, 4), np.float32), "large": np.ones((9, 4), np.float32), "one": np.array([1])}
    nodes = [
        helper.make_node("Unsqueeze", ["whole", "one"], ["column"]),
        helper.make_node("Cast", ["column"], ["narrow"], to=TensorProto.INT32),
        helper.make_node("Gather", ["large", "narrow"], ["a"]),
        helper.make_node("Gather", ["small", "whole"], ["b"]),
        helper.make_node("Add", ["shifted", "one"], ["later"]),
        helper.make_node("Gather", ["small", "later"], ["c"]),
        helper.make_node("Compress", ["part", "chosen"], ["some"]),
        helper.make_node("Gather", ["small", "some"], ["d"]),
    ]
    inputs = [helper.make_tensor_value_info(name, I64, [3]) for name in ("whole", "shifted", "part")]
    inputs.append(helper.make_tensor_value_info("chosen", BOOL, [3]))
    initializers = [numpy_helper.from_array(value, name) for name, value in tables.items()]
    graph = helper.make_graph(nodes, "g", inputs, [onnx.ValueInfoProto(name=name) for name in "abcd"], initializers)
    found = input_ranges(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    assert {name: one.rows for name, one in found.items() if one.rows} == {"whole": 5}
