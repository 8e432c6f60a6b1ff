"""Rows to rows, all steps of a row at once: softmax and normalisations compute what the generic program computes."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from metaschedule_models import write_network
from onnx import helper

from tunery.delivery.files.loading import load_compiled
from tunery.devices import open_device
from tunery.dialects import Dialect
from tunery.dialects.metaschedule.search.proposer import SurrogateProposer
from tunery.dialects.metaschedule.search.suggestions import leader
from tunery.dialects.metaschedule.variants.program import space_of, variants
from tunery.dialects.metaschedule.variants.rows import NAME
from tunery.domain import Network, Target, Task
from tunery.measuring.inputs import make_inputs
from tunery.measuring.verification import compare, expect

pytestmark = pytest.mark.tvm

SHAPES = {
    "whole vectors": (2, 3, 64),
    "four sums": (2, 5, 144),
    "a rest": (3, 7, 197),
    "short": (2, 4, 11),
    "half vectors": (1, 6, 8),
    "long": (1, 3, 512),
    "long with a rest": (1, 3, 515),
    "one row": (1, 40),
}


def softmax_network(directory: Path, shape: tuple[int, ...], *, axis: int = -1) -> Network:
    arrays = {"s": np.array(1.7), "m": np.random.default_rng(3).standard_normal(shape[-1:])}
    nodes = [
        helper.make_node("Mul", ["x", "s"], ["a"]),
        helper.make_node("Add", ["a", "m"], ["b"]),
        helper.make_node("Softmax", ["b"], ["y"], axis=axis),
    ]
    return write_network(directory, "softmax", nodes, {"x": shape}, arrays)


def norm_network(directory: Path, shape: tuple[int, ...]) -> Network:
    rng = np.random.default_rng(5)
    arrays = {"g": rng.standard_normal(shape[-1]), "h": rng.standard_normal(shape[-1])}
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("LayerNormalization", ["r", "g", "h"], ["y"], axis=-1, epsilon=1e-5),
    ]
    return write_network(directory, "norm", nodes, {"x": shape}, arrays)


def network_of(case: str, directory: Path, shape: tuple[int, ...]) -> Network:
    """Other programs of rows, some with a step after or before that is fused to them."""
    rng = np.random.default_rng(7)
    arrays = {"g": 1 + rng.random(shape[-1]), "h": rng.standard_normal(shape[-1]), "two": np.array(2.0)}
    operators = {
        "log-softmax": [helper.make_node("LogSoftmax", ["x"], ["y"], axis=-1)],
        "norm and sum": [
            helper.make_node("LayerNormalization", ["x", "g", "h"], ["t"], axis=-1),
            helper.make_node("Add", ["t", "x"], ["y"]),
        ],
        "root mean square": [
            helper.make_node("Pow", ["x", "two"], ["p"]),
            helper.make_node("ReduceMean", ["p"], ["m"], axes=[-1], keepdims=1),
            helper.make_node("Sqrt", ["m"], ["r"]),
            helper.make_node("Div", ["x", "r"], ["t"]),
            helper.make_node("Mul", ["t", "g"], ["y"]),
        ],
    }
    return write_network(directory, "rows", operators[case], {"x": shape}, arrays)


def task_of(dialect: Dialect, network: Network, target: Target, kind: str) -> Task:
    [found] = [task for task in dialect.extract(network, target) if task.workload.kind == kind]
    return found


@pytest.mark.parametrize("kind", ["softmax", "norm"])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_candidate_computes_the_same(
    kind: str, shape: str, dialect: Dialect, target: Target, tmp_path: Path
) -> None:
    make = {"softmax": softmax_network, "norm": norm_network}[kind]
    task = task_of(dialect, make(tmp_path, SHAPES[shape]), target, kind)
    assert NAME in variants(task).found, variants(task).left_out
    computes_the_same(dialect, task, tmp_path)


@pytest.mark.parametrize("case", ["log-softmax", "norm and sum", "root mean square"])
@pytest.mark.parametrize("width", [64, 197])
def test_other_programs_of_rows_compute_the_same(
    case: str, width: int, dialect: Dialect, target: Target, tmp_path: Path
) -> None:
    tasks = dialect.extract(network_of(case, tmp_path, (4, 6, width)), target)
    found = [task for task in tasks if NAME in variants(task).found]
    assert found
    for task in found:
        computes_the_same(dialect, task, tmp_path)


def computes_the_same(dialect: Dialect, task: Task, tmp_path: Path) -> None:
    inputs = make_inputs(task.workload.input_specs, 0)
    inputs[0][...] = np.linspace(-40, 40, inputs[0].size).reshape(inputs[0].shape)  # the largest is not where it began
    reference = dialect.load(task, dialect.build(task, dialect.reference(task), tmp_path), open_device("cpu"))
    reference.bind(inputs)
    reference.run()
    expected = expect(task.workload, reference.outputs())
    found = SurrogateProposer(task, space_of(task, NAME), [], None, 0).propose(3)
    assert found
    for candidate in found:
        kernel = dialect.load(task, dialect.build(task, candidate, tmp_path), open_device("cpu"))
        kernel.bind(inputs)
        kernel.poison()
        kernel.run()
        assert compare(expected, kernel.outputs()).passed
        assert kernel.traits["expression"] == NAME


def test_a_network_with_it_computes_the_same(dialect: Dialect, target: Target, tmp_path: Path) -> None:
    network = softmax_network(tmp_path, SHAPES["a rest"])
    task = task_of(dialect, network, target, "softmax")
    [candidate] = SurrogateProposer(task, space_of(task, NAME), [], None, 0).propose(1)
    dialect.compile(network, target, {task.workload.key: candidate}, tmp_path / "net")
    [x] = make_inputs(network.inputs, 3)
    [ours] = load_compiled(tmp_path / "net")(x)
    [theirs] = onnxruntime.InferenceSession(network.path).run(None, {"x": x})
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)


def test_it_is_looked_at_first(dialect: Dialect, target: Target, tmp_path: Path) -> None:
    task = task_of(dialect, softmax_network(tmp_path, SHAPES["a rest"]), target, "softmax")
    assert leader(task) == NAME


def test_what_takes_no_rows_to_rows_has_none(dialect: Dialect, target: Target, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    arrays = {"w": rng.standard_normal((24, 40)), "axes": np.array([-1], np.int64)}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["t"]), helper.make_node("ReduceSum", ["t", "axes"], ["y"])]
    network = write_network(tmp_path, "others", nodes, {"x": (16, 24)}, arrays)
    tasks = dialect.extract(network, target)
    others = [*tasks, task_of(dialect, softmax_network(tmp_path, (4, 16, 24), axis=1), target, "softmax")]
    assert len(others) >= 3
    assert not [task.workload.name for task in others if NAME in variants(task).found]
