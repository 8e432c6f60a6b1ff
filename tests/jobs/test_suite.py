"""A suite of networks: what is written, what is not run again, and what its summary claims."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tunery._comparison import bench_text, suite_text
from tunery._errors import UsageError, WorkError
from tunery.domain import Budget
from tunery.frontends import zoo
from tunery.jobs import BenchReport, Latency, Request
from tunery.jobs._request import TaskShare
from tunery.jobs.bench import with_tasks
from tunery.jobs.suite import SUITES, Plan, networks_of, run_suite

PEAK = 1e11


def latency(median: float) -> Latency:
    return Latency(median, 0.9 * median, 1.1 * median, 50)


def report(network: str, threads: int, ours: float, theirs: float) -> BenchReport:
    found = BenchReport(
        network, threads, {"tunery": latency(ours), "onnxruntime": latency(theirs)}, 1e-5, kernels_s=0.9 * ours
    )
    shares = [TaskShare("conv", "1", "conv2d", 2, 2e8, 0.3 * ours), TaskShare("mean", "2", "reduce", 1, 1e3, 1e-6)]
    return with_tasks(found, shares)


class Bench:
    """Times networks by a table; None is a failure."""

    def __init__(self, times: dict[str, tuple[float, float] | None]) -> None:
        self.times = times
        self.asked: list[tuple[str, int]] = []

    def __call__(self, request: Request, against: Sequence[str], seconds: float) -> BenchReport:
        name = request.model.removeprefix("zoo:")
        self.asked.append((name, request.threads))
        found = self.times[name]
        if found is None:
            raise WorkError(f"{name} does not compile")
        return report(name, request.threads, *found)


def run(bench: Bench, plan: Plan, tune: object = None, **changed: object) -> dict[str, object]:
    request = replace(Request(""), **changed)  # type: ignore[arg-type]
    return run_suite(plan, request, tune, lambda _: None, timed=bench, peak=lambda _: PEAK)  # type: ignore[arg-type]


def test_results_are_kept_and_only_the_rest_is_run(tmp_path: Path) -> None:
    plan = Plan(("a", "b"), (1, 2), 1.0, tmp_path / "out.json")
    bench = Bench({"a": (1e-3, 1.5e-3), "b": None})
    run(bench, plan)
    assert bench.asked == [("a", 1), ("b", 1), ("a", 2), ("b", 2)]
    assert json.loads(plan.file.read_text())["runs"]["b x1"]["error"] == "b does not compile"
    again = Bench({"b": (1e-3, 0.9e-3)})
    results = run(again, plan)
    assert again.asked == [("b", 1), ("b", 2)]
    assert json.loads(plan.file.read_text()) == results


def test_the_summary_counts_wins_and_says_which_goal_is_missed(tmp_path: Path) -> None:
    plan = Plan(("a", "b"), (2,), 1.0, tmp_path / "out.json")
    results = run(Bench({"a": (1e-3, 2e-3), "b": (1e-3, 0.8e-3)}), plan)
    summary = results["summary"]["all"]  # type: ignore[index]
    assert summary["geometric_mean"] == pytest.approx(1.6**0.5)
    assert (summary["won"], summary["lost"]) == (1, 1)
    text = suite_text(results)
    assert "met     geometric mean >= 1.2" in text
    assert "MISSED  none below 0.95" in text
    assert "0.80 lost" in text
    # 2e8 operations in 0.3 ms on a peak of 1e11
    assert "conv2d 60% at 667% of peak" in text
    assert "100 GFLOP/s on 2 threads" in text


def test_other_rivals_are_shown_where_they_took_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def timed(request: Request, against: Sequence[str], seconds: float) -> BenchReport:
        asked.append(tuple(against))
        one = report("net", request.threads, 1e-3, 1.5e-3)
        if request.model == "zoo:b":
            return replace(one, network="b", absent={"torch": "no library has it"})
        more = {"torch": latency(3e-3), "stock": latency(0.5e-3), "torch-compiled": latency(1e-9)}
        return replace(one, network="a", latency_s={**one.latency_s, **more}, wrong=("torch-compiled",))

    plan = Plan(("a", "b"), (1,), 1.0, tmp_path / "out.json")
    monkeypatch.setattr("tunery.jobs.suite.find_spec", lambda name: object())
    results = run_suite(plan, Request(""), None, lambda _: None, timed=timed, peak=lambda _: PEAK)
    assert asked == [("onnxruntime", "torch", "torch-compiled")] * 2
    assert "torch-compiled" not in results["runs"]["a x1"]["latency_s"], "its outputs are wrong"
    others = results["summary"]["all"]["others"]
    assert others["torch"] == {"runs": 1, "geometric_mean": pytest.approx(3), "least": pytest.approx(3), "won": 1}
    assert others["stock"]["won"] == 0
    assert "torch-compiled" not in others
    text = suite_text(results)
    assert "3.00x faster than torch eager in 1 runs" in text
    assert "0.50x faster than stock MetaSchedule" in text
    [row] = [line for line in text.splitlines() if line.startswith("b ")]
    assert row.split()[6:9] == ["-", "-", "-"]
    monkeypatch.setattr("tunery.jobs.suite.find_spec", lambda name: None)
    run_suite(replace(plan, networks=("c",)), Request(""), None, lambda _: None, timed=timed, peak=lambda _: PEAK)
    assert asked[-1] == ("onnxruntime",)


def test_a_stop_ends_the_suite_and_keeps_what_was_done(tmp_path: Path) -> None:
    plan = Plan(("a", "b"), (1,), 1.0, tmp_path / "out.json")
    bench = Bench({"a": (1e-3, 1e-3)})
    results = run(bench, plan, tune=lambda request: request.model == "zoo:a")
    assert bench.asked == [("a", 1)]
    assert list(results["runs"]) == ["a x1"]  # type: ignore[call-overload]


def test_a_file_of_something_else_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "notes.json"
    file.write_text("[1]")
    with pytest.raises(UsageError, match="another file"):
        run(Bench({}), Plan(("a",), (1,), 1.0, file))
    assert file.read_text() == "[1]"


@pytest.mark.parametrize(
    ("changed", "word"), [({"budget": Budget(seconds=300.0)}, "budget"), ({"target": "other"}, "target")]
)
def test_results_of_other_conditions_are_not_shown_as_these(
    tmp_path: Path, changed: dict[str, object], word: str
) -> None:
    plan = Plan(("a",), (1,), 1.0, tmp_path / "out.json")
    run(Bench({"a": (1e-3, 1e-3)}), plan)
    before = plan.file.read_text()
    with pytest.raises(UsageError, match=f"other conditions .*{word} .* -o"):
        run(Bench({}), plan, **changed)
    assert plan.file.read_text() == before


def test_the_suites_networks_are_in_the_zoo() -> None:
    known = {entry.name for entry in zoo.names()}
    assert len(SUITES["cpu"]) >= 12
    assert set(SUITES["cpu"]) <= known
    with pytest.raises(UsageError, match="use cpu"):
        networks_of("gpu")


def test_a_network_is_compared_with_the_sum_of_its_tasks() -> None:
    found = report("a", 2, 10e-3, 12e-3)
    assert found.tasks_s == pytest.approx(6.001e-3)
    assert "+67% in the network: its kernels 9.00 ms (+50%), dispatch, allocation and copies" in bench_text(
        found
    ).replace("\n", " ")
    unknown = with_tasks(found, [TaskShare("conv", "1", "conv2d", 1, 0.0, None)])
    assert unknown.tasks_s is None
    assert "sum of tasks" not in bench_text(unknown)
