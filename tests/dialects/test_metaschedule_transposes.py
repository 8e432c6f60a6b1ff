"""Changes of layout by blocks in registers are right for whole and broken blocks, with and without what follows."""

from pathlib import Path

import numpy as np
import pytest
from metaschedule_models import write_network
from onnx import helper

from tunery.delivery.files.loading import load_compiled
from tunery.dialects import get_dialect
from tunery.dialects.metaschedule.variants.program import variants
from tunery.dialects.metaschedule.variants.transposes import NAME, SHUFFLES

pytestmark = pytest.mark.tvm


@pytest.mark.parametrize(
    ("shape", "permutation"),
    [((1, 28, 28, 48), (0, 3, 1, 2)), ((2, 7, 7, 19), (0, 3, 1, 2)), ((37, 61), (1, 0)), ((3, 523, 9), (0, 2, 1))],
)
@pytest.mark.parametrize("fused", [False, True])
def test_a_change_of_layout_is_right(
    shape: tuple[int, ...], permutation: tuple[int, ...], fused: bool, tmp_path: Path
) -> None:
    dialect = get_dialect("metaschedule")
    turned = tuple(shape[axis] for axis in permutation)
    scale = np.random.default_rng(1).standard_normal((turned[-2], 1)).astype(np.float32)
    nodes = [helper.make_node("Transpose", ["x"], ["t"], perm=permutation)]
    if fused:  # a hard swish, whose input is read twice, scaled by rows
        nodes += [helper.make_node("HardSwish", ["t"], ["h"]), helper.make_node("Mul", ["h", "scale"], ["y"])]
    network = write_network(tmp_path, "turned", nodes, {"x": shape}, {"scale": scale} if fused else {})
    target = dialect.resolve_target("native", 2)
    tasks = dialect.extract(network, target)
    assert any(NAME in variants(task).found for task in tasks)
    chosen = {task.workload.key: dialect.open(task, (), None, 1).propose(1)[0] for task in tasks}
    assert None not in dialect.compile(network, target, chosen, tmp_path / "file").coverage.values()
    given = np.random.default_rng(2).standard_normal(shape).astype(np.float32) * 4
    [found] = load_compiled(tmp_path / "file")(given)
    expected = given.transpose(permutation)
    if fused:
        expected = expected * np.clip(expected / 6 + 0.5, 0, 1) * scale
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 if fused else 0)


def test_channels_are_shuffled_by_groups(tmp_path: Path) -> None:
    """Of few groups, of groups of few, and with what follows; an order of three axes is none."""
    dialect, shape = get_dialect("metaschedule"), (1, 5, 7, 144)
    orders = {"few": ((4, 36), (1, 0)), "many": ((48, 3), (1, 0)), "three": ((4, 6, 6), (2, 1, 0))}
    nodes, constants, before = [], {"whole": np.array(shape, np.int64)}, "x"
    for name, (sizes, order) in orders.items():
        constants[name] = np.array([*shape[:3], *sizes], np.int64)
        nodes += [
            helper.make_node("Reshape", [before, name], [f"{name}0"]),
            helper.make_node("Transpose", [f"{name}0"], [f"{name}1"], perm=[0, 1, 2, *(3 + axis for axis in order)]),
            helper.make_node("Reshape", [f"{name}1", "whole"], [f"{name}2"]),
            helper.make_node("Softmax", [f"{name}2"], [f"{name}3"], axis=1),  # so that each is a task of its own
        ]
        before = f"{name}3"
    network = write_network(tmp_path, "shuffled", nodes, {"x": shape}, constants)
    tasks = dialect.extract(network, dialect.resolve_target("native", 2))
    layouts = [task for task in tasks if task.workload.kind == "layout"]
    assert sorted(SHUFFLES in variants(task).found for task in layouts) == [False, True, True]
    chosen = {task.workload.key: dialect.open(task, (), None, 1).propose(1)[0] for task in layouts}
    dialect.compile(network, tasks[0].target, chosen, tmp_path / "file")
    given = np.random.default_rng(2).standard_normal(shape).astype(np.float32) * 9
    [found], expected = load_compiled(tmp_path / "file")(given), given.astype(np.float64)
    for sizes, order in orders.values():
        moved = expected.reshape(*shape[:3], *sizes).transpose(0, 1, 2, *(3 + axis for axis in order)).reshape(shape)
        expected = np.exp(moved) / np.exp(moved).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
