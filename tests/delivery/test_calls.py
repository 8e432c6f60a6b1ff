"""Calls of a compiled network: outputs are the caller's own, arrays are not copied, bad values are said."""

import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tunery
from tunery._errors import UsageError, WorkError
from tunery.dialects import CompiledNetwork, NetworkCompiler, get_dialect
from tunery.models import prepare

SHAPE = [128, 257]


def model(path: Path) -> str:
    """Write a network that gives a sum, the same in another shape, its input, and a constant."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("Add", ["x", "c"], ["sum"]),
            helper.make_node("Reshape", ["sum", "shape"], ["flat"]),
            helper.make_node("Identity", ["x"], ["same"]),
            helper.make_node("Identity", ["c"], ["constant"]),
        ],
        "outputs",
        [value("x", TensorProto.FLOAT, SHAPE)],
        [value(name, TensorProto.FLOAT, SHAPE) for name in ("sum", "same", "constant")]
        + [value("flat", TensorProto.FLOAT, [128 * 257])],
        [
            numpy_helper.from_array(np.full(SHAPE, 3, np.float32), "c"),
            numpy_helper.from_array(np.array([-1], np.int64), "shape"),
        ],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return str(path)


def compiled(dialect_name: str, source: str, place: Path) -> CompiledNetwork:
    dialect = get_dialect(dialect_name)
    file = place / f"{dialect_name}.tunery"
    NetworkCompiler.of(dialect).compile(prepare(source, {}, place), dialect.resolve_target("native", 1), {}, file)
    return tunery.load_compiled(file)


@pytest.fixture(
    scope="module", name="network", params=["onnxruntime", pytest.param("metaschedule", marks=pytest.mark.tvm)]
)
def _network(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CompiledNetwork:
    place = tmp_path_factory.mktemp("outputs")
    return compiled(request.param, model(place / "outputs.onnx"), place)


def aligned(value: float) -> np.ndarray:
    """Return an array at an address at which compiled code may read it."""
    size = 4 * SHAPE[0] * SHAPE[1]
    whole = np.empty(size + 64, np.uint8)
    start = -whole.ctypes.data % 64
    array = whole[start : start + size].view(np.float32).reshape(SHAPE)
    array[...] = value
    return array


def expected(value: float) -> dict[str, np.ndarray]:
    same = np.full(SHAPE, value, np.float32)
    return {"sum": same + 3, "same": same, "constant": np.full(SHAPE, 3, np.float32), "flat": (same + 3).reshape(-1)}


def test_outputs_are_the_callers_own(network: CompiledNetwork) -> None:
    held = []
    for value in range(6):
        found = network(aligned(value))
        held.append((value, found))
        for spec, output in zip(network.outputs, found, strict=True):
            np.testing.assert_array_equal(output, expected(value)[spec.name])
    for value, found in held:
        for spec, output in zip(network.outputs, found, strict=True):
            np.testing.assert_array_equal(output, expected(value)[spec.name])
    for output in held[-1][1]:
        if output.flags.writeable:
            output[...] = -1
    for spec, output in zip(network.outputs, network(aligned(7)), strict=True):
        np.testing.assert_array_equal(output, expected(7)[spec.name])


def test_a_notebook_shows_what_it_takes_and_gives(network: CompiledNetwork) -> None:
    shown = network._repr_html_()
    assert shown.count("<tr>") == 1 + len(network.outputs)
    for spec in (*network.inputs, *network.outputs):
        assert f">{spec.name}<" in shown


def test_inputs_may_lie_anywhere(network: CompiledNetwork) -> None:
    whole = np.zeros([2 * SHAPE[0], SHAPE[1]], np.float32)
    whole[::2] = np.arange(SHAPE[1])
    read_only = aligned(4)
    read_only.flags.writeable = False
    for given in (whole[::2], np.asfortranarray(whole[::2]), aligned(1)[:, ::-1], read_only):
        for _ in range(4):
            outputs = dict(zip((spec.name for spec in network.outputs), network(given), strict=True))
            np.testing.assert_array_equal(outputs["sum"], given + 3)
            np.testing.assert_array_equal(outputs["same"], given)


def test_inputs_that_are_given_by_name_are_refused_with_their_order(network: CompiledNetwork) -> None:
    name = network.inputs[0].name
    for call in (lambda: network({name: aligned(1)}), lambda: network(**{name: aligned(1)})):
        with pytest.raises(UsageError, match=name):
            call()


def test_outputs_are_written_to_the_callers_arrays(network: CompiledNetwork) -> None:
    places = [np.zeros(spec.shape, spec.dtype) for spec in network.outputs]
    places[0] = np.zeros([2 * dim for dim in SHAPE], np.float32)[::2, ::2]  # strided
    for value in range(4):
        network(aligned(value), out=places)
        for spec, place in zip(network.outputs, places, strict=True):
            np.testing.assert_array_equal(place, expected(value)[spec.name])
    places[0].flags.writeable = False
    for wrong in (places, places[:-1], [places[1].astype(np.float64), *places[1:]], [None] * len(places)):
        with pytest.raises(UsageError):
            network(aligned(1), out=wrong)


def test_outputs_of_many_threads_are_their_own(network: CompiledNetwork) -> None:
    wrong: list[int] = []

    def work(value: int) -> None:
        for _ in range(20):
            found = network(aligned(value))
            if not all(
                np.array_equal(one, expected(value)[spec.name])
                for spec, one in zip(network.outputs, found, strict=True)
            ):
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def gather(path: Path) -> str:
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "at"], ["row"])],
        "gather",
        [helper.make_tensor_value_info("at", TensorProto.INT64, [1])],
        [helper.make_tensor_value_info("row", TensorProto.FLOAT, [1, 4])],
        [numpy_helper.from_array(np.ones((3, 4), np.float32), "table")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return str(path)


def test_values_that_a_network_cannot_take_are_said_in_one_sentence(tmp_path: Path) -> None:
    network = compiled("onnxruntime", gather(tmp_path / "gather.onnx"), tmp_path)
    with pytest.raises(WorkError) as caught:
        network(np.array([99]))
    assert "\n" not in str(caught.value)
    for wrong in ([], [np.array([1.0])], [np.array([1, 2])], [[1]], [np.array([1]), np.array([1])]):
        with pytest.raises(UsageError):
            network(*wrong)
    assert network(np.array([1]))[0].shape == (1, 4)
