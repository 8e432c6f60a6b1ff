"""A design space of our own: sums over places compute what the generic space computes."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from metaschedule_models import convolution_network, write_network
from onnx import helper

from tunery.delivery.files.loading import load_compiled
from tunery.devices import open_device
from tunery.dialects import Dialect
from tunery.dialects.metaschedule.loading.preparing import POOLS
from tunery.dialects.metaschedule.search.proposer import SurrogateProposer
from tunery.dialects.metaschedule.variants import place_sums
from tunery.dialects.metaschedule.variants.program import space_of, variants
from tunery.dialects.metaschedule.variants.variant import GENERIC, read_body
from tunery.dialects.metaschedule.variants.vectors import lengths
from tunery.domain import Network, Target, Task
from tunery.measuring.inputs import make_inputs
from tunery.measuring.verification import compare, expect

pytestmark = pytest.mark.tvm


def bare_network(directory: Path, operator: str, shape: tuple[int, int, int, int], **attributes: object) -> Network:
    """One operator between two 1x1 convolutions, so that it is computed channels last; nothing is fused to it."""
    rng = np.random.default_rng(7)
    channels = shape[1]
    arrays = {"w": rng.standard_normal((channels, channels, 1, 1)) / channels**0.5}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["t"]),
        helper.make_node(operator, ["t"], ["u"], **attributes),
        helper.make_node("Conv", ["u", "w"], ["y"]),
    ]
    return write_network(directory, "bare", nodes, {"x": shape}, arrays)


def network_of(case: str, directory: Path) -> Network:
    operator = {"mean": "GlobalAveragePool", "maximum": "GlobalMaxPool"}[case]
    return bare_network(directory, operator, (2, 20, 12, 14))


def task_of(dialect: Dialect, network: Network, target: Target, name: str) -> Task:
    [found] = [task for task in dialect.extract(network, target) if name in variants(task).found]
    return found


@pytest.mark.parametrize("case", ["mean", "maximum"])
def test_what_its_designs_compute_is_what_the_network_computes(
    case: str, dialect: Dialect, target: Target, tmp_path: Path
) -> None:
    name = place_sums.NAME
    network = network_of(case, tmp_path)
    task = task_of(dialect, network, target, name)
    search = SurrogateProposer(task, space_of(task, name), [], None, 0)
    chosen = search.propose(12)
    assert len(chosen) >= 8
    assert {read_body(one.body)[0] for one in chosen} == {name}
    inputs = make_inputs(task.workload.input_specs, 0)
    reference = dialect.load(task, dialect.build(task, dialect.reference(task), tmp_path), open_device("cpu"))
    reference.bind(inputs)
    reference.run()
    expected = expect(task.workload, reference.outputs())
    for candidate in chosen:
        kernel = dialect.load(task, dialect.build(task, candidate, tmp_path), open_device("cpu"))
        kernel.bind(inputs)
        kernel.poison()
        kernel.run()
        assert compare(expected, kernel.outputs()).passed
        assert kernel.traits["expression"] == name
    dialect.compile(network, target, {task.workload.key: chosen[0]}, tmp_path / "compiled")
    arrays = make_inputs(network.inputs, 3)
    session = onnxruntime.InferenceSession(network.path, providers=["CPUExecutionProvider"])
    [theirs] = session.run(None, {spec.name: array for spec, array in zip(network.inputs, arrays, strict=True)})
    [ours] = load_compiled(tmp_path / "compiled")(*arrays)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5 * float(np.abs(theirs).max()))


def test_pools_take_a_window_to_a_vector_of_channels(dialect: Dialect, target: Target, tmp_path: Path) -> None:
    pools = [
        ("MaxPool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
        ("MaxPool", {"kernel_shape": [2, 3], "strides": [2, 2], "dilations": [2, 1]}),
        ("AveragePool", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 0, 1, 2]}),
        ("AveragePool", {"kernel_shape": [6, 6], "pads": [1, 1, 1, 1], "count_include_pad": 1}),
    ]
    rng = np.random.default_rng(7)
    arrays = {"w": rng.standard_normal((20, 20, 1, 1)) / 4}
    nodes = [helper.make_node("Conv", ["x", "w"], ["t"])]
    for n, (kind, attributes) in enumerate(pools):
        nodes.append(helper.make_node(kind, ["t"], [f"t{n}"], **attributes))
        nodes.append(helper.make_node("Conv", [f"t{n}", "w"], [f"y{n}"]))
    network = write_network(tmp_path, "pools", nodes, {"x": (2, 20, 9, 11)}, arrays)
    tasks = [task for task in dialect.extract(network, target) if POOLS in variants(task).found]
    assert len(tasks) == len(pools)
    chosen = {task.workload.key: dialect.suggest(task, 2, "", 0).candidates[-1] for task in tasks}
    assert {read_body(candidate.body)[0] for candidate in chosen.values()} == {POOLS}
    dialect.compile(network, target, chosen, tmp_path / "compiled")
    [x] = make_inputs(network.inputs, 3)
    expected = onnxruntime.InferenceSession(network.path).run(None, {"x": x})
    for ours, theirs in zip(load_compiled(tmp_path / "compiled")(x), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_search_splits_its_proposals_between_these_and_the_generic_designs(
    dialect: Dialect, target: Target, tmp_path: Path
) -> None:
    task = task_of(dialect, network_of("mean", tmp_path), target, place_sums.NAME)
    proposed = dialect.open(task, [], None, 0).propose(16)
    names = [read_body(one.body)[0] for one in proposed]
    assert names.count(GENERIC) == names.count(place_sums.NAME) == 8


def test_an_ordinary_convolution_has_none_of_them_and_leaves_none_out(
    dialect: Dialect, target: Target, tmp_path: Path
) -> None:
    ordinary = max(dialect.extract(convolution_network(tmp_path), target), key=lambda task: task.workload.flop)
    found = variants(ordinary)
    assert place_sums.NAME not in {*found.found, *found.left_out}


@pytest.mark.parametrize(
    ("channels", "lanes", "expected"),
    [(144, 16, [16]), (72, 16, [8]), (72, 8, [8]), (58, 16, [58, 29]), (3, 16, [3, 1]), (1, 8, [1])],
)
def test_channels_are_cut_into_what_takes_the_fewest_instructions(
    channels: int, lanes: int, expected: list[int]
) -> None:
    assert lengths(channels, lanes, 2) == expected
