"""Proposals against stock's: both sides are treated alike, and nothing that failed is left out in silence."""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import proposals
import pytest
import rows
from proposals import Bench, Course, compare, ratio_text, run, summary, tunery
from pydantic import TypeAdapter

from tunery._errors import WorkError
from tunery.costmodels import BoostedModel, Dataset, load_cost_model, registry
from tunery.costmodels.boosted import OnlineTrainer
from tunery.costmodels.columns import STORES, TASK_COLUMNS
from tunery.dialects import Observation, get_dialect
from tunery.domain import Candidate, Outcome, Target, Task, Workload

TASK = Task(Workload("w", "n", "conv2d", "", (), 0, 1.0), Target("metaschedule", {}, 1))


@pytest.mark.tvm
def test_our_search_learns_on_the_model_that_jobs_start_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNERY_MODELS", str(tmp_path))
    dialect = get_dialect("metaschedule")
    task = dialect.calibration_tasks(dialect.resolve_target("native", 1))["compute"]
    lessons: list[int] = []

    def learn(self: OnlineTrainer, rows: Sequence[Any], base: str | None) -> str | None:
        dataset, start = Dataset(STORES.with_columns(TASK_COLUMNS)), load_cost_model(base or "")
        for row in rows:
            dataset.add(*row)
        assert isinstance(start, BoostedModel)
        BoostedModel.fit(dataset, start)  # refuses rows of another layout, where a job would go on with what it has
        lessons.append(len(rows))
        return original(self, rows, base)

    def measure(course: Course, candidates: Sequence[Candidate]) -> list[Observation]:
        told = [Observation(one, Outcome.OK, 1e-3 / (len(course.best_s) + i + 1)) for i, one in enumerate(candidates)]
        course.best_s += [one.latency_s or math.inf for one in told]
        return told

    original = OnlineTrainer.learn
    monkeypatch.setattr(OnlineTrainer, "learn", learn)
    bench = SimpleNamespace(task=task, dialect=dialect, measure=measure, anew=nullcontext)
    course = tunery(bench, 64, 0)  # type: ignore[arg-type]
    assert len(course.best_s) == course.proposed == 64
    assert lessons == [48, 16]


@pytest.mark.parametrize("bits", [256, 512])
def test_no_network_is_one_that_the_shipped_model_has_learned_from(bits: int) -> None:
    shipped = registry.shipped("metaschedule", "x86", bits)
    assert shipped is not None
    assert not set(proposals.NETWORKS) & set(shipped[0].data["networks"])


class FakeBench:
    """Notes when it was renewed."""

    def __init__(self, task: Task, directory: Path) -> None:
        self.renewed = 0

    def renew(self) -> None:
        self.renewed += 1

    def retime(self, courses: Sequence[Course]) -> list[float | None]:
        assert self.renewed == 4, "anew for each side, and for the winners"
        return [course.best_s[-1] for course in courses]


@pytest.mark.parametrize(
    ("seed", "order"),
    [(0, ["tunery", "bare", "stock"]), (1, ["bare", "stock", "tunery"]), (2, ["stock", "tunery", "bare"])],
)
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
        name: lambda bench, *_, name=name, best_s=best_s: search(name, best_s, bench)
        for best_s, name in enumerate(proposals.SIDES, start=1)
    }
    monkeypatch.setattr(proposals, "SEARCHES", searches)
    row = compare(path, 4, seed)
    assert asked == order
    assert [row[side]["retimed_s"] for side in proposals.SIDES] == [1.0, 2.0, 3.0]


@pytest.mark.tvm
def test_a_search_in_stocks_own_space_has_the_generic_program_only() -> None:
    from tunery.dialects.metaschedule.variants import variant as variants

    dialect, known = get_dialect("metaschedule"), variants._ALTERNATIVES
    bench = Bench.__new__(Bench)
    bench.dialect = dialect
    bench.task = dialect.calibration_tasks(dialect.resolve_target("native", 1))["compute"]
    with bench.anew(alternatives=False):
        assert not variants._ALTERNATIVES
    with bench.anew():
        assert variants._ALTERNATIVES is known


def row_of(task: str, seed: int, ours: float | None = 1e-3, theirs: float | None = 2e-3, cpu_s: float = 1.0) -> Any:
    def side(best_s: float | None, cpu_s: float) -> dict[str, Any]:
        return {"cpu_s": cpu_s, "proposed": 4, "best_s": [math.inf, best_s or math.inf], "retimed_s": best_s}

    return {"task": task, "name": task, "kind": f"kind{task[-1]}", "seed": seed, "trials": 2,
            "tunery": side(ours, cpu_s), "bare": side(1e-3, 2.0), "stock": side(theirs, 8.0)}  # fmt: skip


def test_the_bounds_are_judged() -> None:
    rows = [row_of(f"t{task}", seed) for task in range(20) for seed in range(3)]
    text = summary(rows, 2, 20, 3)
    assert "met     at least 20 tasks x 3 seeds: 20 of 20 x 3" in text
    assert "met     tunery: >= 5 x less CPU" in text
    assert "MISSED  bare: >= 5 x less CPU" in text
    assert "met     tunery: winners no slower" in text
    assert "met     tunery: nowhere along the trials" in text
    assert "after 2 trials             0.500 (0.500 to 0.500) in 60 of 60 searches\n" in text
    worse = summary([*rows[1:], row_of("t0", 0, None)], 2, 20, 3)
    assert "MISSED  tunery: winners no slower" in worse
    assert "met     bare: winners no slower" in worse
    assert "inf (0.500 to inf) in 60 of 60 searches, 1 that we have not" in worse
    assert "winners by kind of operator: kind0 inf (6 searches), kind1 0.500 (6 searches)," in worse
    assert "MISSED" not in "".join(line for line in worse.splitlines() if "whose winners are all" in line)
    slow = [row_of("t0", seed, 2.2e-3) for seed in range(3)]
    regressed = summary([*slow, *rows[3:]], 2, 20, 3)
    assert "slower than stock in every seed, by least: t0 (t0) 1.10 of 3" in regressed
    assert "met     tunery: winners no slower" in regressed
    assert "MISSED  tunery: no task whose winners are all more than 5% slower" in regressed
    text = summary([row_of(row["task"], row["seed"], 3e-3, cpu_s=2.0) for row in rows[1:]], 2, 20, 3)
    assert "MISSED  at least 20 tasks x 3 seeds: 19 of 20 x 3" in text
    assert "MISSED  tunery: >= 5 x less CPU" in text
    assert "MISSED  tunery: winners no slower" in text


def test_along_the_trials_each_point_is_judged() -> None:
    def row(ours: list[float]) -> Any:
        return row_of("t", 0) | {"tunery": row_of("t", 0)["tunery"] | {"best_s": ours}}

    def claim(ours: list[float]) -> str:
        lines = summary([row(ours) | {"stock": row([2e-3, 1e-3])["tunery"]}], 2, 1, 1).splitlines()
        return next(line for line in lines if "tunery: nowhere" in line)

    assert claim([1e-3, 1e-3]).startswith("met")
    assert claim([3e-3, 1e-3]).startswith("MISSED")
    assert claim([1e-3, 1.1e-3]).startswith("MISSED")


def test_each_search_has_a_core_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    busy, both = list[str](), Barrier(2, timeout=10)

    def watch(command: Sequence[str], log: Path, environment: Mapping[str, str], limit_s: float) -> None:
        core = command[command.index("--core") + 1]
        assert core not in busy
        busy.append(core)
        both.wait()
        busy.remove(core)
        both.wait()
        (Path(command[7]) / "row.json").write_text(json.dumps(row_of(Path(command[4]).stem, int(command[5]))))

    monkeypatch.setattr(proposals, "watch", watch)
    monkeypatch.setattr(proposals, "usable_cores", lambda: (3, 5))
    monkeypatch.setattr(rows, "made_by", lambda script: {"code": "c", "device": "d"})
    assert run([tmp_path / "a.json", tmp_path / "b.json"], 2, 2, tmp_path / "rows.jsonl", tmp_path) == 0
    assert not busy


def test_a_ratio_says_who_has_nothing() -> None:
    assert ratio_text("x", [(None, None), (None, 1.0), (1.0, None), (1.0, 2.0)]).endswith(
        "inf (0.500 to inf) in 2 of 4 searches, 1 that neither has, 1 that we have not, 1 that stock has not"
    )
    assert ratio_text("x", [(None, None)]).endswith("- in 0 of 1 searches, 1 that neither has")


def test_a_search_that_fails_is_named_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[tuple[str, int]] = []

    def watch(command: Sequence[str], log: Path, environment: Mapping[str, str], limit_s: float) -> None:
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
    assert "3 of 4 searches, 2 tasks x 2 seeds, failed: b seed 1" in printed
    assert "MISSED  at least 20 tasks x 3 seeds: 1 of 2 x 2" in printed
    ran.clear()
    run(tasks, 2, 2, output, tmp_path)
    assert ran == [("b", 1)]
    assert run(tasks[:1], 2, 2, output, tmp_path) == 0
    ran.clear()
    monkeypatch.setattr(rows, "made_by", lambda script: {"code": "another", "device": "d"})
    run(tasks[:1], 2, 2, output, tmp_path)
    assert sorted(ran) == [("a", 0), ("a", 1)], "other code has made what is there"
    assert "3 rows of " in capsys.readouterr().out
