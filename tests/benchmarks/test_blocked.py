"""Channels in blocks against channels last: both compute the same, and rows stay where a search fails."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ablation
import blocked
import numpy as np
import pytest
from blocked import BLOCKED, LAST, Convolution, task_of

from tunery._errors import WorkError
from tunery.dialects import get_dialect


@pytest.mark.tvm
@pytest.mark.parametrize("convolution", [Convolution(4, 16, 32, 3, 2), Convolution(5, 32, 16, 1)])
def test_both_layouts_compute_the_same_convolution(convolution: Convolution, tmp_path: Path) -> None:
    from tunery.dialects.metaschedule._tvm import tvm
    from tunery.dialects.metaschedule.variants.program import tvm_target
    from tunery.dialects.metaschedule.variants.vectors import lanes_of

    dialect, rng = get_dialect("metaschedule"), np.random.default_rng(0)
    target = dialect.resolve_target("native", 1)
    lanes = lanes_of(tvm_target(target))
    size, ins, outs = convolution.padded, convolution.channels_in, convolution.channels_out
    data = rng.standard_normal((size, size, ins)).astype("float32")
    weight = rng.standard_normal((convolution.kernel, convolution.kernel, ins, outs)).astype("float32")
    in_blocks = (
        data.reshape(size, size, ins // lanes, lanes).transpose(2, 0, 1, 3),
        weight.reshape(*weight.shape[:2], ins // lanes, lanes, outs // lanes, lanes).transpose(4, 2, 0, 1, 3, 5),
    )
    results = {}
    for layout, inputs in ((LAST, (data, weight)), (BLOCKED, in_blocks)):
        task = task_of(convolution, layout, target)
        assert [spec.shape for spec in task.workload.arguments[:2]] == [each.shape for each in inputs]
        result = tvm.runtime.tensor(np.zeros(task.workload.arguments[2].shape, "float32"))
        module = tvm.ir.load_json(task.workload.program)
        tvm.compile(module, "llvm")["main"](
            *(tvm.runtime.tensor(np.ascontiguousarray(each)) for each in inputs), result
        )
        results[layout] = result.numpy()
    unblocked = results[BLOCKED].transpose(1, 2, 0, 3).reshape(results[LAST].shape)
    np.testing.assert_allclose(unblocked, results[LAST], rtol=1e-4, atol=1e-4)


def test_layouts_take_turns_and_a_search_that_fails_costs_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[tuple[Any, ...]] = []

    def watch(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        assert environment[ablation.SWITCHED_OFF] == ablation.VARIANTS
        name, layout, seed = command[2], command[3], int(command[4])
        ran.append((name, layout, seed))
        if (name, layout, seed) == ("1x1-96", BLOCKED, 1):
            raise WorkError("it cannot be tuned")
        best_s = (1e-3 if layout == LAST else 1.5e-3) * (1 + seed)
        row = {"convolution": name, "layout": layout, "seed": seed, "best_s": best_s, "wall_s": 1.0, "measured": 4}
        (Path(command[-1]) / "row.json").write_text(json.dumps(row))

    monkeypatch.setattr(blocked, "watch", watch)
    file = tmp_path / "rows.jsonl"
    assert blocked.run(["1x1-96"], 4, 2, file) == 1
    assert [layout for _, layout, _ in ran] == [LAST, BLOCKED, BLOCKED, LAST]
    printed = capsys.readouterr().out
    assert "failed: 1x1-96, blocked, seed 1: it cannot be tuned" in printed
    assert "geometric mean 1.50" in printed
    ran.clear()
    assert blocked.run(["1x1-96"], 4, 2, file) == 1
    assert ran == [("1x1-96", BLOCKED, 1)]
