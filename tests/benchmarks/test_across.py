"""The study across dialects: each arm runs once, a dialect that is missing costs itself, ratios are by seed."""

from pathlib import Path

import across
import pytest
from rows import Kept


def row(arm: str, seed: int, wall_s: float, after_s: float | None) -> dict[str, object]:
    return {
        "dialect": "kernels", "device_kind": "cpu", "arm": arm, "seed": seed, "wall_s": wall_s, "core_s": wall_s,
        "device_s": wall_s, "after_s": after_s, "dropped": 3, "abandoned": 4, "degree": 1, "load_per_core": [0.1, 0.2],
        "curve": [] if after_s is None else [(1.0, 2.0, 9.0), (wall_s, 2 * wall_s, after_s)],
    }  # fmt: skip


def test_ratios_are_over_the_untrimmed_run_of_the_same_seed() -> None:
    rows = [row("none", 0, 10.0, 2.0), row("all", 0, 5.0, 2.0), row("none", 1, 20.0, 2.0), row("all", 1, 6.0, 1.0)]
    text = across.table([*rows, row("all", 2, 1.0, 1.0), row("filter", 0, 10.0, None)])
    [line] = [line for line in text.splitlines() if " all " in line]
    assert "0.40 (0.30 to 0.50)" in line, "the third seed has nothing to be compared with"
    assert "0.75 (0.50 to 1.00)" in line


def test_what_equal_latency_took_is_read_from_the_curves() -> None:
    slow = [(1.0, 10.0, 8.0), (4.0, 20.0, 3.0), (9.0, 40.0, 1.0)]
    fast = [(2.0, 5.0, 3.0)]
    assert across.to_equal(fast, slow) == (0.5, 0.25)
    assert across.to_equal(slow, fast) == (2.0, 4.0)
    assert across.to_equal(slow, [(3.0, 20.0, 0.5)]) == (3.0, 2.0)
    assert across.to_equal(slow, []) is None


@pytest.mark.jobs
def test_an_interrupted_study_goes_on_and_a_missing_dialect_costs_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = across.Plan(("iree", "fake"), trials=2, seeds=1)
    subjects = {"iree": ("zoo:mlp-mnist",), "fake": ("fake:demo?tasks=2",)}
    first = across.study(plan, Kept(tmp_path / "rows.jsonl", across.__file__), subjects)
    assert sorted(str(row["arm"]) for row in first) == sorted(across.ARMS)
    assert all(row["trials_done"] == 4 and row["after_s"] and row["curve"] for row in first)
    assert "nan" not in across.table(first)
    assert "iree" in capsys.readouterr().out
    again = across.study(plan, Kept(tmp_path / "rows.jsonl", across.__file__), subjects)
    assert again == first
    assert "seed" not in capsys.readouterr().out
