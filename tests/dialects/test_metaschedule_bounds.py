"""Indices out of range, which ONNX Runtime refuses: kernels stay within what they index."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from tunery.delivery.files.loading import load_compiled
from tunery.devices import open_device
from tunery.dialects import Dialect
from tunery.domain import Candidate, Network, Target, Task
from tunery.models import prepare

pytestmark = pytest.mark.tvm
ROWS, COLUMNS = 5, 64
FAR = [2**62, -(2**62), ROWS * COLUMNS, 10**9, -(10**9), -COLUMNS - 1]
LOOKUPS: dict[str, tuple[str, tuple[int, ...], dict[str, int]]] = {
    "rows": ("Gather", (6,), {}),
    "columns": ("Gather", (2, 3), {"axis": 1}),
    "points": ("GatherND", (3, 2), {}),
    "elements": ("GatherElements", (ROWS, 6), {"axis": 1}),
}
WRITES: dict[str, tuple[str, tuple[int, ...], tuple[int, ...]]] = {
    "points": ("ScatterND", (3, 2), (3,)),
    "elements": ("ScatterElements", (6, COLUMNS), (6, COLUMNS)),
}


def _network(
    folder: Path, nodes: list[onnx.NodeProto], inputs: dict[str, np.ndarray], constants: dict[str, Any]
) -> Network:
    kinds = {"f": TensorProto.FLOAT, "i": TensorProto.INT64}
    graph = helper.make_graph(
        nodes, "places",
        [helper.make_tensor_value_info(name, kinds[one.dtype.kind], one.shape) for name, one in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(one, name) for name, one in constants.items()],
    )  # fmt: skip
    path = folder / "places.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return prepare(str(path), {}, folder)


def _data() -> np.ndarray:
    return np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS) + 1


def _far(shape: tuple[int, ...]) -> np.ndarray:
    return np.resize(np.array(FAR), shape)


@pytest.mark.parametrize("case", LOOKUPS)
def test_a_look_up_reads_nothing_else(case: str, dialect: Dialect, target: Target, tmp_path: Path) -> None:
    operator, shape, attributes = LOOKUPS[case]
    node = helper.make_node(operator, ["x", "at"], ["y"], **attributes)
    near = np.resize(np.array([0, -1, 4, -5, 2]), shape)
    none = np.zeros(shape, np.int64)
    nodes = [helper.make_node("Add", ["far", "near"], ["at"]), node]  # an index that is an input itself is refused
    network = _network(tmp_path, nodes, {"x": _data(), "far": none, "near": near}, {})
    dialect.compile(network, target, {}, tmp_path / "made")
    compiled = load_compiled(tmp_path / "made")
    session = onnxruntime.InferenceSession(network.path, providers=["CPUExecutionProvider"])
    [wanted] = session.run(None, {"x": _data(), "far": none, "near": near})
    np.testing.assert_array_equal(compiled(_data(), none, near)[0], wanted)
    assert np.isin(compiled(_data(), _far(shape), none)[0], _data()).all()


@pytest.mark.parametrize("case", WRITES)
def test_what_is_put_in_places_goes_nowhere_else(case: str, dialect: Dialect, target: Target, tmp_path: Path) -> None:
    operator, shape, of_updates = WRITES[case]
    node = helper.make_node(operator, ["x", "at", "new"], ["y"])
    new = np.full(of_updates, -1.0, np.float32)
    network = _network(tmp_path, [node], {"x": _data(), "new": new}, {"at": _far(shape)})
    made = dialect.compile(network, target, {}, tmp_path / "made")
    assert not made.elsewhere
    [found] = load_compiled(tmp_path / "made")(_data(), new)
    assert np.isin(found, [*_data().flat, -1.0]).all()


def _candidates(dialect: Dialect, task: Task) -> Iterator[Candidate]:
    yield dialect.baseline(task)
    yield from dialect.open(task, (), None, 0).propose(3)


def test_so_it_is_with_every_candidate_of_a_task(dialect: Dialect, target: Target, tmp_path: Path) -> None:
    node = helper.make_node("Gather", ["x", "at"], ["y"])
    far = _far((6,))
    tasks = dialect.extract(_network(tmp_path, [node], {"x": _data(), "at": far}, {}), target)
    [task] = [task for task in tasks if task.workload.output_specs[0].dtype == "float32"]
    for candidate in _candidates(dialect, task):
        kernel = dialect.load(task, dialect.build(task, candidate, tmp_path), open_device("cpu"))
        kernel.bind([_data() if spec.dtype == "float32" else far for spec in task.workload.input_specs])
        kernel.run()
        assert np.isin(kernel.outputs()[0], _data()).all()


@pytest.mark.parametrize("shape", [(1, 1), (1,), (2, 3)])
def test_every_candidate_looks_up_in_the_whole_of_a_table(
    shape: tuple[int, ...], dialect: Dialect, target: Target, tmp_path: Path
) -> None:
    table = np.random.default_rng(1).standard_normal((100, 64)).astype(np.float32)
    places = np.resize(np.array([99, 7, 50]), shape)
    network = _network(tmp_path, [helper.make_node("Gather", ["x", "at"], ["y"])], {"at": places}, {"x": table})
    tasks = dialect.extract(network, target)
    [task] = [task for task in tasks if task.workload.output_specs[0].dtype == "float32"]
    for candidate in _candidates(dialect, task):
        kernel = dialect.load(task, dialect.build(task, candidate, tmp_path), open_device("cpu"))
        kernel.bind([table if spec.dtype == "float32" else places for spec in task.workload.input_specs])
        kernel.run()
        np.testing.assert_array_equal(kernel.outputs()[0], table[places])
