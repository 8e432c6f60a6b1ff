"""Numbers as people and as programs read them."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunery.domain import Budget, JobState, JobStatus, Network, Prospect, Target, Task, TaskState, Workload
from tunery.domain.request import (
    BUSY,
    GOES_ON,
    BenchReport,
    CompileReport,
    Latency,
    Request,
    ShapeResult,
    Speed,
    TuneReport,
    Verdict,
)
from tunery.reports.comparison import bench_text
from tunery.reports.data import compile_data, plain, task_data, total
from tunery.reports.format import ENDED_EARLY, as_text, duration, file_name, milliseconds, printable, ratio
from tunery.reports.spending import counted
from tunery.reports.text import filter_lines, headlines, left_out_lines, tasks_table, tune_text
from tunery.store import Charge


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1.62, "1620"), (0.0163, "16.3"), (0.0085, "8.50"), (0.00052, "0.520"), (9.43e-6, "0.00943"), (0.0, "0"),
     (None, "-"), (math.inf, "-"), (math.nan, "-")],
)  # fmt: skip
def test_latencies_have_three_significant_digits(seconds: float | None, text: str) -> None:
    assert milliseconds(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0s"), (9.94, "9.9s"), (59.0, "59s"), (61.2, "1min 01s"), (7500.0, "2h 05min")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_text_that_a_terminal_would_obey_is_escaped() -> None:
    assert printable("färben → 2.0x\n日本") == "färben → 2.0x\n日本"
    assert printable("a\x1b[2J\x07\x9b\u202eb\r") == "a\\x1b[2J\\x07\\x9b\\u202eb\\r"
    assert printable("a\nb", lines=False) == "a\\nb"


@given(st.text())
def test_nothing_printed_moves_the_cursor(text: str) -> None:
    assert printable(text, lines=False).isprintable()


def test_ratios_and_totals_need_both_sides() -> None:
    assert ratio(2.0, 1.0) == "2.00x"
    assert ratio(None, 1.0) == ratio(1.0, None) == ratio(1.0, 0.0) == "-"
    tasks = [TaskState("a", "w", "a", "dense", 2, tunable=True, best_s=0.5),
             TaskState("b", "w", "b", "dense", 3, tunable=True, best_s=1.0, baseline_s=2.0)]  # fmt: skip
    assert total(tasks, "best_s") == 4.0
    assert total(tasks, "baseline_s") is None


def test_what_a_kernels_author_chose_stands_beside_what_is_faster() -> None:
    chosen, before = {"TILE": 8, "ORDER": "rows"}, {"TILE": 32, "ORDER": "columns"}
    kernel = task("k", 2e-3, 1e-3, kind="kernel", parameters=chosen, default=before, all_tried=12)
    job = JobStatus("1", JobState.DONE, {}, tasks=(kernel,))
    said = tune_text(
        TuneReport(job, Network("k", "k.toml", "0", "", (), (), 0), (), 2e-3, 1e-3, False, ""), Request("k")
    )
    rows = [line.split() for line in said.splitlines()]
    assert ["best", "1.00", "8", "rows"] in rows
    assert ["default", "2.00", "32", "columns"] in rows
    assert "all 12 " in said


def task(name: str, baseline_s: float, best_s: float, weight: int = 1, **more: object) -> TaskState:
    found = {"tunable": True, "outcomes": {}, "measured": 0, "kind": "conv2d"} | more
    return TaskState(name, name, name, weight=weight, baseline_s=baseline_s, best_s=best_s, **found)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("slots", "calibrated_at", "degrees", "said"),
    [
        (1, None, [1], "one at a time: the device has one slot for kernels of 2 threads"),
        (4, None, [1], "`tunery devices calibrate --threads 2` finds out whether up to 4 kernels of 2 threads"),
        (4, 8.64e8, [1, 1], "one at a time, as calibrated for kernels of 2 threads on 1997-05-"),
        (4, 8.64e8, [1, 3, 3], "3 at once in 2 tasks, 1 at once in 1 task, from what was calibrated for"),
        (4, None, [], ""),
    ],
)
def test_a_report_says_how_many_kernels_were_measured_at_once(
    slots: int, calibrated_at: float | None, degrees: list[int], said: str
) -> None:
    states = tuple(task(str(i), 0.1, 0.1, measured=3, degree=degree) for i, degree in enumerate(degrees))
    work = Task(Workload("w", "conv2d", "conv2d", "", (), 0, 0.0), Target("fake", {}, 2), 1, tunable=True)
    network = Network("n", "n", "d", "", (), (), 0)
    job = JobStatus("j", JobState.DONE, {}, tasks=states)
    report = TuneReport(job, network, (work,), None, None, False, "s.db", slots, calibrated_at, threads=2)
    lines = [line for line in tune_text(report, Request("fake:x")).splitlines() if line.startswith("measured ")]
    assert [said in line for line in lines] == [True] * bool(said)


def test_the_command_to_use_a_result_finds_what_was_measured() -> None:
    work = Task(Workload("w", "conv2d", "conv2d", "", (), 0, 0.0), Target("fake", {}, 2), 1, tunable=True)
    job = JobStatus("j", JobState.DONE, {}, tasks=(task("0", 0.1, 0.1),))
    report = TuneReport(job, Network("n", "n", "d", "", (), (), 0), (work,), None, None, False, "s.db", 1, None)
    plain_request = Request("a model.onnx")
    told = replace(
        plain_request, shapes={"x": (1, 64)}, target="znver3", threads=2, store="my s.db", dialect="fake", trust=True
    )
    [short, long] = [
        line.partition("tunery compile ")[2]
        for request in (plain_request, told)
        for line in tune_text(report, request).splitlines()
        if "tunery compile" in line
    ]
    assert short == "'a model.onnx' -o n.tunery"
    assert long == (
        "'a model.onnx' --shape x=1x64 --target znver3 --threads 2 --trust --store 'my s.db' --dialect fake "
        "-o n-1x64-znver3.tunery"
    )


def test_a_file_wholly_in_onnx_runtime_is_said_to_have_no_kernel_and_no_more_trials_are_proposed() -> None:
    job = JobStatus(
        "j", JobState.DONE, {}, tasks=(task("a", 1.0, 0.5),), message="1 of 2 tasks were not reached" + GOES_ON,
        outlook=(Prospect(64, 9.0, None, 0.0, "USD", 0.3, 0.35, 0.4),),
    )  # fmt: skip
    report = TuneReport(job, Network("n", "n.onnx", "d", "", (), (), 0), (), 1.0, 0.5, False, "s.db")
    made = CompileReport("n", "n.tunery", 100, {"a:1": ("exact", "c")}, elsewhere={"If i": "control flow"})
    kept = replace(made, coverage={}, elsewhere={"If i": "control flow", "Gemm g": "faster there"})
    texts = [tune_text(report, Request("n.onnx"), one) for one in (None, made, kept)]
    assert ["64 further trials" in text for text in texts] == [True, True, False]
    assert "300 to 400 ms instead of 500 ms" in texts[0]
    assert ["larger --budget" in text for text in texts] == [True, True, False]
    assert "Gemm g" in texts[2]


def test_onnx_runtime_is_not_compared_with_itself() -> None:
    def said(verdict: Verdict) -> str:
        times = {"tunery": 0.005, "onnxruntime": 0.004, "untuned": 0.05}
        spreads = {name: Latency(median, median, median, 9) for name, median in times.items()}
        return bench_text(BenchReport("n", 2, spreads, 0.0, verdict=verdict))

    alone, itself = said(Verdict(1.0, native=Speed(0.8, 0.79, 0.81, 7))), said(Verdict(1.0))
    assert all(words in alone for words in ("tunery's kernels", "1.25x slower", "10.00x faster"))
    assert not any(words in itself for words in ("slower", "faster"))


def test_a_file_for_another_shape_or_target_is_proposed_another_name() -> None:
    asked = [Request("n.onnx"), Request("n.onnx", shapes={"x": (1, 3, 32, 32)}), Request("n.onnx", target="znver3")]
    names = {file_name("n", request) for request in (*asked, replace(asked[1], target="znver3"))}
    assert len(names) == 4
    assert names >= {file_name("n")}
    report = TuneReport(
        JobStatus("j", JobState.DONE, {}), Network("n", "n.onnx", "d", "", (), (), 0), (), 1.0, 0.5, False, "s"
    )
    for request in asked:
        text = tune_text(report, request)
        assert f"-o {file_name('n', request)}" in text
        assert f'load_compiled("{file_name("n", request)}")' in text


def test_a_report_says_how_often_the_filter_was_wrong_where_that_is_asked_for() -> None:
    states = [task("a", 0.1, 0.1, outcomes={"filtered": 300, "ok": 30}, dropped=330, audited=30, false_drops=1),
              task("b", 0.1, 0.1, outcomes={"filtered": 75}, dropped=82, audited=7)]  # fmt: skip
    job = JobStatus("j", JobState.DONE, {}, tasks=tuple(states))
    [line] = filter_lines(job)
    assert line.endswith("412 dropped, 37 of them measured all the same, 1 was its task's best (0.068 % to 14 %)")
    assert filter_lines(JobStatus("j", JobState.DONE, {}, tasks=(task("c", 0.1, 0.1),))) == []
    [unknown] = filter_lines(JobStatus("j", JobState.DONE, {}, tasks=(replace(states[1], dropped=75, audited=0),)))
    assert unknown.endswith("75 dropped, none of them measured all the same")
    network = Network("n", "n", "d", "", (), (), 0)
    work = Task(Workload("w", "conv2d", "conv2d", "", (), 0, 0.0), Target("fake", {}, 2), 1, tunable=True)
    report = TuneReport(job, network, (work,), None, None, False, "s.db")
    assert line in tune_text(report, Request("fake:x"), verbose=True)
    assert line not in tune_text(report, Request("fake:x"))
    assert {"audited": 30, "false_drops": 1, "preempted": False}.items() <= task_data(states[0]).items()


FAST, SLOW = Speed(1.31, 1.28, 1.35, 12), Speed(0.87, 0.85, 0.89, 9)


def test_one_headline_says_who_runs_a_network_and_how_fast_it_is() -> None:
    parts = Verdict(0.004, FAST, SLOW)
    whole, busy = Verdict(1.0, None, SLOW), Verdict(0.0, None, None, BUSY)
    assert "tunery 99 %, ONNX Runtime 1 % of the time; 1.31 times as fast" in parts.headline
    assert "alone 0.87 times (0.85 to 0.89, 9 turns, quiet)" in parts.headline
    assert whole.headline.startswith("runs: ONNX Runtime 100 % of the time; tunery's kernels alone 0.87 times")
    assert busy.headline == "runs: tunery 100 % of the time; not judged: the machine was busy"
    assert replace(busy, onnxruntime_share=1.0, delivered=FAST).headline == "runs: ONNX Runtime 100 % of the time"
    assert Verdict(0.0, FAST, FAST).headline.count("1.31") == 1


def test_the_headline_is_the_same_at_the_end_of_compile_and_tune_and_for_each_shape() -> None:
    made = CompileReport("n", "n.tunery", 1, {}, latency_s=2e-3, onnxruntime_s=3e-3, verdict=Verdict(0.4, FAST, FAST))
    assert headlines(made)[0] == made.verdict.headline == compile_data(made)["headline"]
    job = JobStatus("j", JobState.DONE, {}, tasks=(task("a", 1.0, 0.5),))
    report = TuneReport(job, Network("n", "n.onnx", "d", "", (), (), 0), (), 1.0, 0.5, False, "s.db")
    assert made.verdict.headline in tune_text(report, Request("n.onnx"), made).splitlines()
    verdicts = (Verdict(1.0), Verdict(0.0, FAST, FAST))
    shapes = tuple(ShapeResult({"x": (size,)}, verdict=one) for size, one in zip((1, 4), verdicts, strict=True))
    lines = headlines(replace(made, shapes=shapes))
    assert [line.partition(" runs:")[0] for line in lines] == ["for x[1]", "for x[4]"]


def test_what_was_left_out_is_a_line_per_task_and_reason() -> None:
    found = {"conv:1": {"a4": "too few", "a2": "too few", "b": "no genes"}, "conv:2": {"b": "no genes"}, "conv:3": {}}
    assert left_out_lines(found) == [
        "left out    conv:1: a4, a2 (too few)",
        "left out    conv:1: b (no genes)",
        "left out    conv:2: b (no genes)",
    ]


def test_a_table_marks_what_was_preempted() -> None:
    states = [task("a", 0.1, 0.1, preempted=True, outcomes={"ok": 1}), task("b", 0.1, 0.1, outcomes={"ok": 1})]
    rows = {line.split()[0]: line for line in as_text(tasks_table(states)).splitlines() if line[:1].isalnum()}
    assert (ENDED_EARLY in rows["a"], ENDED_EARLY in rows["b"]) == (True, False)


def test_a_job_that_has_said_nothing_yet_has_the_candidates_that_it_has_paid_for() -> None:
    def built(job_id: str, outcome: str, count: int, stage: str = "build") -> Charge:
        return Charge(job_id, "t", stage, outcome, 1.0, 1.0, 0.0, count=count)

    charges = [built("j", "ok", 3), built("j", "build-failed", 2), built("other", "ok", 5), built("j", "", 1),
               built("j", "ok", 3, "measure")]  # fmt: skip
    fresh = JobStatus("j", JobState.RUNNING, {}, tasks=(task("a", 0.1, 0.1),))
    assert counted(fresh, charges) == {"ok": 3, "build-failed": 2}
    told = replace(fresh, tasks=(task("a", 0.1, 0.1, outcomes={"abandoned": 4}),))
    assert counted(told, charges) == {"abandoned": 4}


def test_a_table_leads_with_what_takes_longest_and_sums_up_what_was_not_reached() -> None:
    long = "fused_conv2d20_add16_maximum8_minimum"
    reached = {"measured": 4, "outcomes": {"ok": 4}, "best_candidate": "c"}
    tasks = [
        task("light", 0.05, 0.001, **reached), task(long, 0.5, 0.01, weight=3, **reached),
        *[task(f"missed{i}", 0.02, 0.02, weight=2) for i in range(29)],
        task("early", 0.3, 0.002, best_candidate="c"),
        task("given-up", 0.004, 0.004, problem="gave up: " + "why " * 60),
        task("layout1", 0.001, 0.001, tunable=False), task("layout2", 0.001, 0.001, tunable=False),
    ]  # fmt: skip
    lines = as_text(tasks_table(tasks)).splitlines()
    assert [line.split()[0] for line in lines if line[:1].isalnum()] == [
        "task", long, "given-up", "early", "light", "29", "2", "sum",
    ]  # fmt: skip
    [missed] = [line.split() for line in lines if line.startswith("29 tasks")]
    assert missed == ["29", "tasks", "58", "1160", "-", "-", "-", "0", "not", "reached"], "untuned is not tuned"
    [whole] = [line.split() for line in lines if line.startswith("sum of tasks reached")]
    assert whole[4:] == ["8", "1856", "39.0", "47.59x", "100%", "8"]
    assert max(map(len, lines)) <= 200
    narrow = as_text(tasks_table(tasks), 100).splitlines()
    assert max(map(len, narrow)) <= 100
    assert sum("fused" in line for line in narrow) == 1, "a name is cut, not broken"


def test_records_become_plain_data() -> None:
    value = {JobState.DONE: Budget(math.inf, 3), "path": Path("a/b"), "pair": (1, math.nan), "flag": True, "none": None}
    assert plain(value) == {
        "done": {"seconds": None, "trials": 3, "money": None, "currency": "", "joules": None},
        "path": "a/b", "pair": [1, None], "flag": True, "none": None,
    }  # fmt: skip


@given(st.recursive(st.floats() | st.text() | st.integers() | st.booleans() | st.none(),
                    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))  # fmt: skip
def test_whatever_is_plain_is_json(value: object) -> None:
    json.dumps(plain(value), allow_nan=False)
