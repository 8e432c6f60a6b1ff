"""The ablation: what its arms replace is there, and an arm that fails costs that arm alone."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import ablation
import pytest
import rows
from ablation import ALL_ON, ARMS, Arm, missing, run, table

from tunery._errors import WorkError


@pytest.mark.tvm
def test_everything_that_an_arm_replaces_is_there() -> None:
    assert missing(list(ARMS)) == []


@pytest.mark.tvm
@pytest.mark.parametrize(
    ("arm", "left"), [("Winograd", {"tiles", "place-sums"}), ("tiles in registers", {"winograd4"})]
)
def test_a_variant_can_be_off(arm: str, left: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from tunery.dialects.metaschedule.variants import variant as variants

    before = set(variants._ALTERNATIVES)
    monkeypatch.setattr(variants, "_ALTERNATIVES", variants._ALTERNATIVES)  # to have it back
    patch = ARMS[arm].patch
    assert patch
    patch()
    after = set(variants._ALTERNATIVES)
    assert left < after < before
    assert {name for name in before if name.startswith(arm.lower().split()[0])} == before - after


def test_what_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    constants = (("tunery.domain", "Budget", None), ("tunery.domain", "GONE", None), ("tunery.no_room", "X", None))
    monkeypatch.setitem(ARMS, "odd", Arm(constants=constants, touches=(("tunery.domain", "Budget.gone"),)))
    assert missing(["odd"]) == ["tunery.domain.Budget.gone", "tunery.domain.GONE", "tunery.no_room.X"]


Times = Callable[[str, str, int], float | None]


def scripted(monkeypatch: pytest.MonkeyPatch, best_s: Times) -> list[tuple[str, str, int]]:
    """Stand in for the children: their best latencies by task, arm and seed, which may raise; return who was run."""
    ran = []

    def watch(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        options = dict(zip(command[5::2], command[6::2], strict=True))
        task, arm, seed = command[2], command[3], int(command[4])
        ran.append((task, arm, seed))
        row = {"task": task, "arm": arm, "seed": seed, "trials": int(options["--trials"]), "measured": 4, "wall_s": 2.0}
        row |= {"best_s": best_s(task, arm, seed), "core_s": 3.0, "device_s": 1.0}
        (Path(options["--work"]) / "row.json").write_text(json.dumps(row))

    monkeypatch.setattr(ablation, "watch", watch)
    return ran


def test_an_arm_that_fails_is_named_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def best_s(task: str, arm: str, seed: int) -> float | None:
        if arm == "draft":
            raise WorkError("`python ablation.py` failed: Traceback\nEngineError: no worker")
        return None if arm == "filter" else 1e-3

    ran = scripted(monkeypatch, best_s)
    arms, file = [ALL_ON, "draft", "filter", "abandonment"], tmp_path / "out" / "rows.jsonl"
    assert run(arms, ["dense"], 4, 1, file) == 1
    printed = capsys.readouterr().out
    assert "dense, draft off, seed 0: EngineError: no worker" in printed
    assert "dense, filter off, seed 0: none of 4 trials gave a valid kernel" in printed
    assert "abandonment off: 1.00 x the latency" in printed
    assert len(ran) == 4
    ran.clear()
    run(arms, ["dense"], 4, 1, file)
    assert [arm for _, arm, _ in ran] == ["draft", "filter"]


def test_rows_of_other_code_are_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def again(code: str) -> int:
        monkeypatch.setattr(rows, "made_by", lambda script: {"code": code, "device": "d"})
        ran.clear()
        run(["draft"], ["dense"], 4, 1, tmp_path / "rows.jsonl")
        return len(ran)

    ran = scripted(monkeypatch, lambda *_: 1e-3)
    assert [again("c1"), again("c1"), again("c2")] == [2, 0, 2]
    assert capsys.readouterr().out.count("2 rows of ") == 1


def test_without_a_failure_it_ends_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, lambda *_: 1e-3)
    assert run([ALL_ON, "draft"], ["dense"], 4, 1, tmp_path / "rows.jsonl") == 0


def test_what_ends_winograd_too_is_compared_with_winograd_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times = {ALL_ON: 1e-3, "Winograd": 2e-3, "channels last": 3e-3}
    ran = scripted(monkeypatch, lambda task, arm, seed: times[arm] * (1 + seed / 100))
    run(["channels last"], ["conv3x3", "depthwise"], 4, 2, tmp_path / "rows.jsonl")
    assert {(task, arm) for task, arm, _ in ran} == {
        ("conv3x3", ALL_ON), ("conv3x3", "Winograd"), ("conv3x3", "channels last"),
        ("depthwise", ALL_ON), ("depthwise", "channels last"),
    }  # fmt: skip
    assert next(arm for task, arm, seed in ran if (task, seed) == ("conv3x3", 1)) == "Winograd", "its turn to be first"
    text = capsys.readouterr().out
    [convolution, depthwise] = [line for line in text.splitlines() if "  channels last  " in line]
    assert "Winograd" in convolution
    assert "1.50 to 1.50" in convolution
    assert "nothing" in depthwise
    assert "3.00 to 3.00" in depthwise
    assert "channels last off: 2.12 x the latency over 2 tasks (2.12 to 2.12)" in text


def table_of(*draft_s: float) -> str:
    """Return the table of these latencies without the draft, for a task and seed each; with all on each is 1 ms."""
    common = {"wall_s": 1.0, "core_s": 1.0, "device_s": 1.0}
    tasks = ("conv3x3", "dense", "softmax")
    found = []
    for number, best_s in enumerate(draft_s):
        pair = {**common, "task": tasks[number % 3], "seed": number // 3}
        found += [{**pair, "arm": ALL_ON, "best_s": 1e-3}, {**pair, "arm": "draft", "best_s": best_s}]
    return table(found)


@pytest.mark.parametrize(
    ("off", "says"),
    [
        ((1.1e-3,) * 6, "slower in 6 of 6 pairs, p = 0.031: told apart"),
        ((0.9e-3,) * 6, "slower in 0 of 6 pairs, p = 0.031: told apart"),
        ((1.1e-3,) * 5, "slower in 5 of 5 pairs, p = 0.062: not told apart"),
        ((*(1.1e-3,) * 5, 1e-3), "slower in 5 of 5 pairs, p = 0.062: not told apart"),
        ((*(1.1e-3,) * 5, 0.9e-3), "slower in 5 of 6 pairs, p = 0.22: not told apart"),
        ((*(1.1e-3,) * 8, 0.9e-3), "slower in 8 of 9 pairs, p = 0.039: told apart"),
        ((1e-3,), "slower in 0 of 0 pairs, p = 1: not told apart"),
    ],
)
def test_an_arm_is_told_apart_where_luck_would_not_do_it(off: tuple[float, ...], says: str) -> None:
    assert table_of(*off).splitlines()[-1].endswith(says)


def test_a_task_alone_gets_its_ratios_and_no_verdict() -> None:
    text = table_of(*(1.1e-3,) * 6)
    [row] = [line for line in text.splitlines() if line.startswith("dense") and " draft " in line]
    assert "1.10 to 1.10" in row
    assert "yes" not in row
    assert "told apart" not in text.splitlines()[0]
