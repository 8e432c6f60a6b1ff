"""Proposals against stock's: both sides are treated alike, and nothing that failed is left out in silence."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import proposals
import pytest
import rows
from proposals import Course, compare, ratio_text, run, summary, tunery
from pydantic import TypeAdapter

from tunery._errors import WorkError
from tunery.costmodels import BoostedModel, Dataset, load_cost_model, registry
from tunery.costmodels.warm import Warm
from tunery.dialects import Told, get_dialect
from tunery.domain import Candidate, Outcome, Target, Task, Workload

TASK = Task(Workload("w", "n", "conv2d", "", (), 0, 1.0), Target("metaschedule", {}, 1))


@pytest.mark.tvm
def test_our_search_learns_on_the_model_that_jobs_start_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNERY_MODELS", str(tmp_path))
    dialect = get_dialect("metaschedule")
    task = dialect.calibration_tasks(dialect.resolve_target("native", 1))["compute"]
    lessons: list[int] = []

    def learn(self: Warm, rows: Sequence[Any], base: str | None) -> str | None:
        dataset, start = Dataset(), load_cost_model(base or "")
        for row in rows:
            dataset.add(*row)
        assert isinstance(start, BoostedModel)
        BoostedModel.fit(dataset, start)  # refuses rows of another width, where a job would go on with what it has
        lessons.append(len(rows))
        return original(self, rows, base)

    def measure(course: Course, candidates: Sequence[Candidate]) -> list[Told]:
        told = [Told(one, Outcome.OK, 1e-3 / (len(course.best_s) + i + 1)) for i, one in enumerate(candidates)]
        course.best_s += [one.latency_s or math.inf for one in told]
        return told

    original = Warm.learn
    monkeypatch.setattr(Warm, "learn", learn)
    course = tunery(SimpleNamespace(task=task, dialect=dialect, measure=measure), 64, 0)  # type: ignore[arg-type]
    assert len(course.best_s) == course.proposed == 64
    assert lessons == [48, 16]


@pytest.mark.parametrize("bits", [256, 512])
def test_no_network_is_one_that_the_shipped_model_has_learned_from(bits: int) -> None:
    shipped = registry.shipped(*registry.SHIPPED, bits)
    assert shipped is not None
    assert not set(proposals.NETWORKS) & set(shipped[0].data["networks"])


class FakeBench:
    """Notes when it was renewed."""

    def __init__(self, task: Task, directory: Path) -> None:
        self.renewed = 0

    def renew(self) -> None:
        self.renewed += 1

    def retime(self, courses: Sequence[Course]) -> list[float | None]:
        assert self.renewed == 3, "anew for each side, and for the winners"
        return [course.best_s[-1] for course in courses]


@pytest.mark.parametrize(("seed", "order"), [(0, ["tunery", "stock"]), (1, ["stock", "tunery"])])
def test_the_sides_take_turns_in_going_first_each_with_its_own_measurer(
    seed: int, order: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def search(name: str, best_s: float, bench: FakeBench) -> Course:
        asked.append(name)
        assert bench.renewed == len(asked)
        return Course(1.0, 2, [best_s])

    path = tmp_path / "task.json"
    path.write_bytes(TypeAdapter(Task).dump_json(TASK))
    monkeypatch.setenv("TVM_NUM_THREADS", "1")
    monkeypatch.setattr(proposals, "Bench", FakeBench)
    searches = {
        "tunery": lambda bench, *_: search("tunery", 1.0, bench),
        "stock": lambda bench, *_: search("stock", 2.0, bench),
    }
    monkeypatch.setattr(proposals, "SEARCHES", searches)
    row = compare(path, 4, seed)
    assert asked == order
    assert (row["tunery"]["retimed_s"], row["stock"]["retimed_s"]) == (1.0, 2.0)


def row_of(task: str, seed: int, ours: float | None = 1e-3, theirs: float | None = 2e-3, cpu_s: float = 1.0) -> Any:
    def side(best_s: float | None, cpu_s: float, retimed: bool) -> dict[str, Any]:
        return {"cpu_s": cpu_s, "proposed": 4, "best_s": [math.inf, best_s or math.inf],
                "retimed_s": best_s if retimed else None}  # fmt: skip

    both = bool(ours and theirs)
    return {"task": task, "name": task, "seed": seed, "trials": 2, "tunery": side(ours, cpu_s, both),
            "stock": side(theirs, 8.0, both)}  # fmt: skip


def test_the_bounds_are_judged() -> None:
    rows = [row_of(f"t{task}", seed) for task in range(20) for seed in range(3)]
    text = summary(rows, 2, 20, 3)
    assert "met     at least 20 tasks x 3 seeds: 20 of 20 x 3" in text
    assert "met     >= 5 x less CPU" in text
    assert "met     winners no slower" in text
    assert "MISSED" not in text
    assert "after 2 trials             0.500 (0.500 to 0.500) in 60 of 60 searches\n" in text
    worse = [*rows[1:], row_of("t0", 0, None)]
    text = summary(worse, 2, 20, 3)
    assert "MISSED  something valid wherever stock found it" in text
    assert "in 59 of 60 searches, 1 that tunery has not" in text
    text = summary([row_of(row["task"], row["seed"], 3e-3, cpu_s=2.0) for row in rows[1:]], 2, 20, 3)
    assert "MISSED  at least 20 tasks x 3 seeds: 19 of 20 x 3" in text
    assert "MISSED  >= 5 x less CPU" in text
    assert "MISSED  winners no slower" in text


def test_a_ratio_says_who_has_nothing() -> None:
    assert ratio_text("x", [(None, None), (None, 1.0), (1.0, None)]).endswith(
        "- in 0 of 3 searches, 1 that neither has, 1 that tunery has not, 1 that stock has not"
    )


def test_a_search_that_fails_is_named_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[tuple[str, int]] = []

    def watch(command: Sequence[str], log: Path, limit_s: float) -> None:
        assert 60 < limit_s < math.inf
        task, seed = Path(command[4]).stem, int(command[5])
        ran.append((task, seed))
        if (task, seed) == ("b", 1):
            raise WorkError("`python proposals.py` did not end within 310 s: ")
        (Path(command[7]) / "row.json").write_text(json.dumps(row_of(task, seed)))

    monkeypatch.setattr(proposals, "watch", watch)
    tasks, output = [tmp_path / "a.json", tmp_path / "b.json"], tmp_path / "out" / "rows.jsonl"
    assert run(tasks, 2, 2, output, tmp_path) == 1
    printed = capsys.readouterr().out
    assert "b seed 1 failed: `python proposals.py` did not end within 310 s" in printed
    assert "3 of 2 tasks x 2 seeds, failed: b seed 1" in printed
    assert "MISSED  at least 20 tasks x 3 seeds: 1 of 2 x 2" in printed
    ran.clear()
    run(tasks, 2, 2, output, tmp_path)
    assert ran == [("b", 1)]
    assert run(tasks[:1], 2, 2, output, tmp_path) == 0
    ran.clear()
    monkeypatch.setattr(rows, "made_by", lambda script: {"code": "another", "device": "d"})
    run(tasks[:1], 2, 2, output, tmp_path)
    assert ran == [("a", 0), ("a", 1)], "other code has made what is there"
    assert "3 rows of " in capsys.readouterr().out
