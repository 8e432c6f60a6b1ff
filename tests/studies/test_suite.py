"""A suite of networks: what is written, what is not run again, and what its summary claims."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from studies.suite import LEAST_NETWORKS, SUITES, SuitePlan, even, measured_peak, networks_of, run_suite
from studies.suite_text import suite_text

from tunery._errors import UsageError, WorkError
from tunery.delivery.comparing.compare import ContestantError, with_tasks
from tunery.domain import Budget
from tunery.domain.request import BenchReport, Latency, Request, TaskShare
from tunery.models import zoo
from tunery.reports.comparison import bench_text

PEAK = 1e11


@pytest.fixture(autouse=True)
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("studies.suite.find_spec", lambda name: None)


def latency(median: float) -> Latency:
    return Latency(median, 0.9 * median, 1.1 * median, 50)


def report(network: str, threads: int, ours: float, theirs: float) -> BenchReport:
    found = BenchReport(
        network, threads, {"tunery": latency(ours), "onnxruntime": latency(theirs)}, 1e-5, kernels_s=0.9 * ours
    )
    shares = [
        TaskShare("conv", "1234567890", "conv2d", 2, 2e8, 0.3 * ours, 12_000_000),
        TaskShare("mean", "2", "reduce", 1, 1e3, 1e-6),
    ]
    return with_tasks(found, shares)


class Bench:
    """Times networks by a table; None is a failure."""

    def __init__(self, times: dict[str, tuple[float, float] | None]) -> None:
        self.times = times
        self.asked: list[tuple[str, int]] = []

    def __call__(
        self, request: Request, against: Sequence[str], seconds: float, others: Mapping[str, Path]
    ) -> BenchReport:
        name = request.model.removeprefix("zoo:")
        self.asked.append((name, request.threads))
        found = self.times[name]
        if found is None:
            raise WorkError(f"{name} does not compile")
        return report(name, request.threads, *found)


def run(
    bench: Bench,
    plan: SuitePlan,
    tune: Callable[[Request], bool] | None = None,
    said: list[str] | None = None,
    **changed: object,
) -> dict[str, Any]:
    request = replace(Request(""), **changed)  # type: ignore[arg-type]
    said = [] if said is None else said
    return run_suite(plan, request, tune, said.append, timed=bench, peak=lambda _: PEAK)


def test_results_are_kept_and_only_the_rest_is_run(tmp_path: Path) -> None:
    plan = SuitePlan(("a", "b"), (1, 2), 1.0, tmp_path / "out.json")
    bench, said = Bench({"a": (1e-3, 1.5e-3), "b": None}), list[str]()
    run(bench, plan, said=said)
    assert said[:3] == [
        "a x1: timing what is known; --budget tunes", "b x1: timing what is known; --budget tunes",
        "b x1 failed: b does not compile",
    ]  # fmt: skip
    assert bench.asked == [("a", 1), ("b", 1), ("a", 2), ("b", 2)]
    assert json.loads(plan.file.read_text())["runs"]["b x1"]["error"] == "b does not compile"
    again = Bench({"b": (1e-3, 0.9e-3)})
    results = run(again, plan)
    assert again.asked == [("b", 1), ("b", 2)]
    assert json.loads(plan.file.read_text()) == results


def test_the_summary_counts_wins_and_says_which_goal_is_missed(tmp_path: Path) -> None:
    plan = SuitePlan(("a", "b"), (2,), 1.0, tmp_path / "out.json")
    results = run(Bench({"a": (1e-3, 2e-3), "b": (1e-3, 0.8e-3)}), plan)
    summary = results["summary"]["all"]
    assert summary["geometric_mean"] == pytest.approx(1.6**0.5)
    assert (summary["won"], summary["lost"]) == (1, 1)
    text = suite_text(results)
    assert "met     2 threads: geometric mean >= 1.2" in text
    assert "MISSED  2 threads: none below 0.95" in text
    assert "MISSED  all runs: at 1 and 2 threads" in text
    assert "0.80 lost" in text
    # 2e8 operations in 0.3 ms on a peak of 1e11
    assert "90% in kernels: conv2d 123456 60% at 667% of peak and 40 GB/s, reduce 2 0% at 1% of peak and 0 GB/s" in text
    assert "100 GFLOP/s on 2 threads" in text


def test_where_the_dialect_knows_no_peak_no_share_of_it_is_shown(tmp_path: Path) -> None:
    plan = SuitePlan(("a",), (2,), 1.0, tmp_path / "out.json")
    bench = Bench({"a": (1e-3, 2e-3)})
    text = suite_text(run_suite(plan, Request(""), None, lambda _: None, timed=bench, peak=lambda _: None))
    assert "conv2d 123456 60% at 40 GB/s, reduce" in text
    assert "peak" not in text


def test_a_peak_that_cannot_be_measured_costs_no_network_and_is_tried_again(tmp_path: Path) -> None:
    plan, said = SuitePlan(("a",), (2,), 1.0, tmp_path / "out.json"), list[str]()

    def broken(_: Request) -> float:
        raise WorkError("no worker")

    def ran(peak: Callable[[Request], float | None]) -> dict[str, Any]:
        bench = Bench({"a": (1e-3, 2e-3)})
        return run_suite(plan, Request(""), None, said.append, timed=bench, peak=peak)

    assert ran(broken)["runs"]["a x2"]["times_faster"] == 2
    assert said[0] == "the peak on 2 threads is not known: no worker"
    known = ran(lambda _: PEAK)
    assert known["peak_flops"] == {"2": PEAK}
    assert known["runs"]["a x2"]["deciding"][0]["of_peak"] == pytest.approx(6.67, abs=0.01), (
        "of what was timed before, too"
    )


@pytest.mark.parametrize(
    ("dialect", "least"), [("fake", None), pytest.param("metaschedule", 1e9, marks=pytest.mark.tvm)]
)
def test_the_peak_is_measured_in_a_worker(dialect: str, least: float | None) -> None:
    found = measured_peak(Request("", dialect=dialect, threads=1))
    assert found is None if least is None else found and found > least


def test_what_the_spread_does_not_tell_apart_is_even(tmp_path: Path) -> None:
    plan = SuitePlan(("a", "b", "c"), (2,), 1.0, tmp_path / "out.json")
    results = run(Bench({"a": (1e-3, 1.05e-3), "b": (1e-3, 0.96e-3), "c": (1e-3, 1.2e-3)}), plan)
    summary = results["summary"]["2"]
    assert (summary["won"], summary["even"], summary["lost"]) == (1, 2, 0)
    one = results["runs"]["b x2"]
    steady = {"median": 0.96e-3, "p10": 0.95e-3, "p90": 0.97e-3, "samples": 50}
    assert not even({"latency_s": {**one["latency_s"], "onnxruntime": steady}}), "one side's spread is not enough"
    text = suite_text(results)
    assert "1.05 even" in text
    assert "0.96 even" in text
    assert "1.20 even" not in text


def test_a_network_whose_kernels_slow_down_is_named_though_its_sum_is_right(tmp_path: Path) -> None:
    def timed(request: Request, *_: object) -> BenchReport:
        shares = [
            TaskShare("conv", "12", "conv2d", 2, 1e8, None),
            TaskShare("mean", "34", "reduce", 1, 1e3, 1e-4),
            TaskShare("split", "56", "layout", 3, 0.0, None),
        ]
        kernels = {"12": 6e-4, "34": 1.2e-4, "56": 1.5e-4}
        return with_tasks(replace(report("a", 1, 0.9e-3, 1e-3), kernels=kernels, kernels_s=8.7e-4), shares)

    plan = SuitePlan(("a",), (1,), 1.0, tmp_path / "out.json")
    results = run_suite(plan, Request(""), None, lambda _: None, timed=timed, peak=lambda _: PEAK)
    assert (
        "a x1: sum of tasks 0.850 ms, +6% in the network: its kernels 0.870 ms (+2%; 0.120 of them 0.100 when timed "
        "alone), of which layout transforms 0.150 ms; dispatch, allocation and copies 0.0300 ms" in suite_text(results)
    )


def test_other_rivals_are_shown_where_they_took_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def timed(request: Request, against: Sequence[str], seconds: float, others: Mapping[str, Path]) -> BenchReport:
        asked.append(tuple(against))
        one = report("net", request.threads, 1e-3, 1.5e-3)
        if request.model == "zoo:b":
            return replace(one, network="b", absent={"torch": "no library has it"})
        more = {"torch": latency(3e-3), "stock": latency(0.5e-3), "torch-compiled": latency(1e-9)}
        return replace(one, network="a", latency_s={**one.latency_s, **more}, wrong=("torch-compiled",))

    plan = SuitePlan(("a", "b"), (1,), 1.0, tmp_path / "out.json")
    monkeypatch.setattr("studies.suite.find_spec", lambda name: object())
    results = run_suite(
        plan, Request(""), None, lambda _: None, timed=timed, peak=lambda _: PEAK,
        stock=lambda one: Path("stock.tunery") if one.model == "zoo:a" else None,
    )  # fmt: skip
    assert asked == [("onnxruntime", "torch", "torch-compiled")] * 2
    assert "torch-compiled" not in results["runs"]["a x1"]["latency_s"], "its outputs are wrong"
    others = results["summary"]["all"]["others"]
    assert others["torch"] == {"runs": 1, "geometric_mean": pytest.approx(3), "least": pytest.approx(3), "won": 1}
    assert others["stock"]["won"] == 0
    assert "torch-compiled" not in others
    text = suite_text(results)
    assert "3.00x faster than torch eager in 1 runs" in text
    assert "0.50x faster than stock MetaSchedule" in text
    assert "3.00 (2.70 to 3.30)" in text, "with its spread"
    assert "torch compiled ms" not in text, "it took part nowhere"
    [row] = [line for line in text.splitlines() if line.startswith("b  ")]
    assert row.split()[6:8] == ["-", "-"]
    assert "torch eager took no part in b x1: no library has it" in text
    assert "torch compiled took no part in a x1: it computes something else" in text
    assert "stock MetaSchedule took no part in b x1: `make study-stock` has not finished it" in text
    monkeypatch.setattr("studies.suite.find_spec", lambda name: None)
    run_suite(replace(plan, networks=("c",)), Request(""), None, lambda _: None, timed=timed, peak=lambda _: PEAK)
    assert asked[-1] == ("onnxruntime",)


def test_a_stop_ends_the_suite_and_keeps_what_was_done(tmp_path: Path) -> None:
    plan = SuitePlan(("a", "b"), (1,), 1.0, tmp_path / "out.json")
    bench = Bench({"a": (1e-3, 1e-3)})
    results = run(bench, plan, tune=lambda request: request.model == "zoo:a")
    assert bench.asked == [("a", 1)]
    assert list(results["runs"]) == ["a x1"]
    assert "without a result: b x1" in suite_text(results)


def test_a_goal_is_that_every_network_has_a_result(tmp_path: Path) -> None:
    names = [f"n{number}" for number in range(LEAST_NETWORKS)]
    plan = SuitePlan(tuple(names), (1, 2), 1.0, tmp_path / "out.json")
    goal = "all 12 networks at each thread count, at least 12"
    times: dict[str, tuple[float, float] | None] = dict.fromkeys(names, (1e-3, 2e-3))
    results = run(Bench({**times, "n3": None}), plan)
    assert results["summary"]["all"]["goals"][goal] is False
    assert results["summary"]["all"]["missing"] == ["n3 x1", "n3 x2"]
    text = suite_text(results)
    assert f"MISSED  all runs: {goal}" in text
    assert "met     all runs: at 1 and 2 threads" in text
    assert "without a result: n3 x1 (failed), n3 x2 (failed)" in text
    results = run(Bench(times), plan)
    assert results["summary"]["all"]["goals"][goal] is True
    assert "without a result" not in suite_text(results)
    # Another thread count, begun in the same file, is wanted of every network too.
    results = run(Bench({**times, "new": None}), replace(plan, networks=(*names[1:], "new"), threads=(3,)))
    assert results["summary"]["all"]["missing"] == ["new x1", "new x2", "new x3"]
    few = run(Bench(times), SuitePlan(tuple(names[1:]), (1,), 1.0, tmp_path / "few.json"))
    assert few["summary"]["all"]["goals"]["all 11 networks at each thread count, at least 12"] is False


def test_where_everything_failed_no_goal_is_met(tmp_path: Path) -> None:
    text = suite_text(run(Bench({"a": None}), SuitePlan(("a",), (1,), 1.0, tmp_path / "out.json")))
    assert "all runs: nothing was timed" in text
    assert "?       1 thread: geometric mean >= 1.2" in text
    assert "met " not in text


def test_a_network_that_was_tuned_is_not_tuned_again(tmp_path: Path) -> None:
    plan, tuned, said = SuitePlan(("a",), (1,), 1.0, tmp_path / "out.json"), list[str](), list[str]()

    def tune(request: Request) -> bool:
        tuned.append(request.model)
        return True

    class Cut(Bench):
        def __call__(self, *_: object) -> BenchReport:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(Cut({}), plan, tune)
    kept = json.loads(plan.file.read_text())
    assert kept["runs"]["a x1"] == {"network": "a", "threads": 1, "tuned": True}
    assert "tuned, not timed yet" in suite_text(kept)
    run(Bench({"a": None}), plan, tune)
    run(Bench({"a": (1e-3, 1e-3)}), plan, tune, said)
    assert tuned == ["zoo:a"]
    assert said == ["a x1: timing, it was tuned before"]


def test_a_rival_that_can_be_had_now_is_timed_without_tuning_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, tuned, asked = SuitePlan(("a",), (1,), 1.0, tmp_path / "out.json"), list[str](), list[tuple[str, ...]]()
    stock: list[Path] = []

    def tune(request: Request) -> bool:
        tuned.append(request.model)
        return True

    def timed(request: Request, against: Sequence[str], seconds: float, others: Mapping[str, Path]) -> BenchReport:
        asked.append((*against, *others))
        one = report("a", 1, 1e-3, 2e-3)
        took_part = {name: latency(3e-3) for name in others}
        return replace(one, latency_s={**one.latency_s, **took_part}, absent={"torch": "it does not have it"})

    def again() -> dict[str, Any]:
        return run_suite(
            plan, Request(""), tune, lambda _: None, timed=timed, peak=lambda _: PEAK,
            stock=lambda _: stock[0] if stock else None,
        )  # fmt: skip

    again()
    again()
    assert asked == [("onnxruntime",)], "nothing is new"
    stock.append(tmp_path / "stock.tunery")
    assert again()["runs"]["a x1"]["latency_s"]["stock"]["median"] == pytest.approx(3e-3)
    monkeypatch.setattr("studies.suite.find_spec", lambda name: object())
    again()
    again()
    assert asked[1:] == [("onnxruntime", "stock"), ("onnxruntime", "torch", "torch-compiled", "stock")]
    assert tuned == ["zoo:a"]
    stock.clear()
    again()
    assert len(asked) == 3, "what took part stands, though it could not be had any more"


def test_a_good_result_is_not_replaced_by_code_whose_records_are_gone(tmp_path: Path) -> None:
    plan, tuned, pruned = SuitePlan(("a",), (1,), 1.0, tmp_path / "out.json"), list[str](), list[bool]()

    def tune(request: Request) -> bool:
        tuned.append(request.model)
        pruned.clear()
        return True

    def timed(request: Request, *_: object) -> BenchReport:
        found = report("a", 1, 9e-3 if pruned else 1e-3, 2e-3)
        known = None if pruned else 1e-4
        return with_tasks(found, [TaskShare("conv", "12", "conv2d", 1, 1e8, known)])

    def again(stock: Path | None = None) -> dict[str, Any]:
        results = run_suite(
            plan, Request(""), tune, lambda _: None, timed=timed, peak=lambda _: PEAK, stock=lambda _: stock
        )
        return dict(results["runs"]["a x1"])

    again()
    pruned.append(True)
    run = again(tmp_path / "stock.tunery")
    assert run["times_faster"] == pytest.approx(2.0)
    assert "the store holds latencies of fewer of its tasks" in run["error"]
    assert tuned == ["zoo:a"]
    run = again(tmp_path / "stock.tunery")
    assert tuned == ["zoo:a", "zoo:a"]
    assert run["times_faster"] == pytest.approx(2.0)
    assert "error" not in run


def test_a_network_that_fails_when_timed_again_is_named_beside_its_earlier_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = SuitePlan(("a", "b"), (1,), 1.0, tmp_path / "out.json")
    run(Bench({"a": (1e-3, 2e-3), "b": (1e-3, 2e-3)}), plan)
    monkeypatch.setattr("studies.suite.find_spec", lambda name: object())
    text = suite_text(run(Bench({"a": None, "b": (1e-3, 2e-3)}), plan))
    said = "a x1 failed when it was timed again, its earlier result is shown and counts nowhere: a does not compile"
    assert said in text.splitlines()
    assert "b x1 failed" not in text
    assert "without a result: a x1 (failed)" in text
    assert "1 won, 0 even, 0 lost" in text
    monkeypatch.setattr("studies.suite.find_spec", lambda name: None)
    again = Bench({"a": (1e-3, 2e-3)})
    assert "failed" not in suite_text(run(again, plan))
    assert again.asked == [("a", 1)], "tried again, though what it had lacked is gone"


def test_tuned_and_cut_short_it_needs_its_records_too(tmp_path: Path) -> None:
    plan = SuitePlan(("a",), (1,), 1.0, tmp_path / "out.json")
    run(Bench({"a": None}), plan, lambda _: True)

    def timed(request: Request, *_: object) -> BenchReport:
        return with_tasks(report("a", 1, 9e-3, 2e-3), [TaskShare("conv", "12", "conv2d", 1, 1e8, None)])

    results = run_suite(plan, Request(""), lambda _: True, lambda _: None, timed=timed, peak=lambda _: PEAK)
    assert "latency_s" not in results["runs"]["a x1"]
    assert results["runs"]["a x1"]["tuned"] is False


def test_a_file_of_stocks_that_cannot_be_run_costs_only_its_own_column(tmp_path: Path) -> None:
    plan, asked = SuitePlan(("a",), (1,), 1.0, tmp_path / "out.json"), list[list[str]]()

    def timed(request: Request, against: Sequence[str], seconds: float, others: Mapping[str, Path]) -> BenchReport:
        asked.append(list(others))
        if others:
            raise ContestantError("stock", "its process ended")
        return report("a", 1, 1e-3, 2e-3)

    def again() -> dict[str, Any]:
        return run_suite(
            plan, Request(""), None, lambda _: None, timed=timed, peak=lambda _: PEAK, stock=lambda _: Path("s")
        )

    results = again()
    assert "error" not in results["runs"]["a x1"]
    assert results["runs"]["a x1"]["times_faster"] == pytest.approx(2.0)
    assert "stock MetaSchedule took no part in any run: its process ended" in suite_text(results)
    again()
    assert asked == [["stock"], []], "it is known why"


def test_torchs_networks_are_timed_again_where_a_library_has_come_or_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, installed = SuitePlan(("a",), (1,), 1.0, tmp_path / "out.json"), {"torch": "2.13"}

    def version(name: str) -> str:
        if name in ("torch", "torchvision", "timm", "transformers") and name not in installed:
            raise PackageNotFoundError(name)
        return installed.get(name, "1")

    def timed() -> int:
        bench = Bench({"a": (1e-3, 2e-3)})
        run(bench, plan)
        return len(bench.asked)

    monkeypatch.setattr("studies.suite.version", version)
    monkeypatch.setattr("studies.suite.find_spec", lambda name: object())
    assert [timed(), timed()] == [1, 0]
    installed["timm"] = "1.0"
    assert [timed(), timed()] == [1, 0]
    assert json.loads(plan.file.read_text())["runs"]["a x1"]["libraries"] == {"torch": "2.13", "timm": "1.0"}
    installed["torch"] = "2.14"
    assert [timed(), timed()] == [1, 0]
    monkeypatch.setattr("studies.suite.find_spec", lambda name: None)
    assert timed() == 0, "what took part stands"


def test_a_file_of_something_else_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "notes.json"
    file.write_text("[1]")
    with pytest.raises(UsageError, match="another file"):
        run(Bench({}), SuitePlan(("a",), (1,), 1.0, file))
    assert file.read_text() == "[1]"


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"budget": Budget(seconds=300.0)}, "budget"),
        ({"target": "other"}, "target"),
        ({"store": "other.db"}, "store"),
        ({"seconds": 2.0}, "seconds"),
    ],
)
def test_results_of_other_conditions_are_not_shown_as_these(
    tmp_path: Path, changed: dict[str, object], word: str
) -> None:
    plan = SuitePlan(("a",), (1,), 1.0, tmp_path / "out.json")
    run(Bench({"a": (1e-3, 1e-3)}), plan)
    before = plan.file.read_text()
    other = replace(plan, seconds=changed.pop("seconds", plan.seconds))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=f"other conditions .*{word} .* -o"):
        run(Bench({}), other, **changed)
    assert plan.file.read_text() == before


def test_results_say_of_which_versions_and_store_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = SuitePlan(("a",), (1,), 1.0, tmp_path / "out.json")
    bench = Bench({"a": (1e-3, 1e-3)})
    conditions = run(bench, plan, store=str(tmp_path / "my.db"))["conditions"]
    assert conditions["store"] == str(tmp_path / "my.db")
    assert re.fullmatch(r"tunery \S+, onnxruntime \S+, apache-tvm \S+", conditions["versions"])
    monkeypatch.setattr("studies.suite.version", lambda name: "99")
    with pytest.raises(UsageError, match=r"versions tunery .* instead of tunery 99"):
        run(bench, plan, store=str(tmp_path / "my.db"))


def test_records_of_an_earlier_lowering_are_other_conditions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, bench = SuitePlan(("a",), (1,), 1.0, tmp_path / "out.json"), Bench({"a": (1e-3, 1e-3)})
    assert " lowering " in run(bench, plan)["conditions"]["compiler"]
    monkeypatch.setattr("studies.suite.get_dialect", lambda name: SimpleNamespace(compiler="lowering 99"))
    with pytest.raises(UsageError, match=r"compiler apache-tvm .* instead of lowering 99"):
        run(bench, plan)


def test_tasks_without_a_latency_are_counted(tmp_path: Path) -> None:
    def timed(request: Request, *_: object) -> BenchReport:
        shares = [TaskShare("conv", "12", "conv2d", 1, 1e8, 1e-4), TaskShare("mean", "34", "reduce", 1, 1e3, None)]
        return with_tasks(report("a", 1, 1e-3, 1e-3), shares)

    plan = SuitePlan(("a",), (1,), 1.0, tmp_path / "out.json")
    results = run_suite(plan, Request(""), None, lambda _: None, timed=timed, peak=lambda _: PEAK)
    assert results["runs"]["a x1"]["unmeasured"] == 1
    assert "1 of 2 tasks were not timed alone" in suite_text(results)
    assert results["runs"]["a x1"]["tasks_s"] is None


def test_a_task_that_was_not_timed_alone_counts_as_it_is_inside_the_network(tmp_path: Path) -> None:
    def timed(request: Request, *_: object) -> BenchReport:
        shares = [TaskShare("conv", "12", "conv2d", 2, 1e8, None), TaskShare("mean", "34", "reduce", 1, 1e3, 1e-4)]
        found = replace(report("a", 1, 1e-3, 1e-3), kernels={"12": 6e-4, "34": 2e-4, "copy": 1e-5}, kernels_s=8.1e-4)
        return with_tasks(found, shares)

    plan = SuitePlan(("a",), (1,), 1.0, tmp_path / "out.json")
    results = run_suite(plan, Request(""), None, lambda _: None, timed=timed, peak=lambda _: PEAK)
    one = results["runs"]["a x1"]
    assert one["tasks_s"] == pytest.approx(7e-4)
    assert [(of["workload"], of["share"]) for of in one["deciding"]] == [
        ("12", pytest.approx(0.6)), ("34", pytest.approx(0.1)),
    ]  # fmt: skip
    text = suite_text(results)
    assert "conv2d 12 60% at 333% of peak and 0 GB/s inside the network, reduce 34" in text
    assert (
        "a x1: sum of tasks 0.700 ms, +43% in the network: its kernels 0.810 ms (+16%; 0.200 of them 0.100 when timed "
        "alone), of which layout transforms 0 ms; dispatch, allocation and copies 0.190 ms" in text
    )
    assert "(1 of 2 were timed inside the network)" in bench_text(timed(Request("")))


def test_results_of_other_code_are_other_conditions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, bench = SuitePlan(("a",), (1,), 1.0, tmp_path / "out.json"), Bench({"a": (1e-3, 1e-3)})
    run(bench, plan)
    monkeypatch.setattr("studies.suite.sources", lambda: "another state")
    with pytest.raises(UsageError, match=r"code \w+ instead of another"):
        run(bench, plan)


def test_the_suites_networks_are_in_the_zoo() -> None:
    known = {entry.name for entry in zoo.names()}
    assert len(SUITES["cpu"]) >= 12
    assert set(SUITES["cpu"]) <= known
    with pytest.raises(UsageError, match="use cpu"):
        networks_of("gpu")


def test_a_network_is_compared_with_the_sum_of_its_tasks() -> None:
    found = report("a", 2, 10e-3, 12e-3)
    assert found.tasks_s == pytest.approx(6.001e-3)
    said = bench_text(found)
    assert "9.00 ms in its kernels" in said
    assert "add up to 6.00 ms" in said
    unknown = with_tasks(found, [TaskShare("conv", "1", "conv2d", 1, 0.0, None)])
    assert unknown.tasks_s is None
    assert "add up" not in bench_text(unknown)
