"""Changes of layout by blocks in registers are right for whole and broken blocks, with and without what follows."""

from pathlib import Path

import numpy as np
import pytest
from metaschedule_models import write_network
from onnx import helper

from tunery.dialects import get_dialect
from tunery.dialects.metaschedule.loading.network import TvmNetwork
from tunery.dialects.metaschedule.variants.program import variants
from tunery.dialects.metaschedule.variants.transposes import NAME

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
    [found] = TvmNetwork(tmp_path / "file")(given)
    expected = given.transpose(permutation)
    if fused:
        expected = expected * np.clip(expected / 6 + 0.5, 0, 1) * scale
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 if fused else 0)
