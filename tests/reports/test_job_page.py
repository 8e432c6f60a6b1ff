"""A job as data and as a page."""

import json
from collections.abc import Mapping
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tunery import Tuned
from tunery.cli.app import app
from tunery.domain import Budget, JobState, JobStatus, Spend, TaskState
from tunery.domain.request import BUSY, Request, Speed, Verdict
from tunery.reports.data import plain
from tunery.reports.job import (
    ANSWER,
    COMPARED,
    COMPILED,
    STAGES,
    JobView,
    host_seconds,
    job_view,
    stages_payload,
    view_of,
)
from tunery.reports.page import job_page
from tunery.service.session import Session
from tunery.store import Event, Trial, open_store


def task(key: str, before_s: float, best_s: float, weight: int = 1, candidate: str = "", **more: Any) -> TaskState:
    return TaskState(key, f"w{key}", f"op_{key}", "dense", weight, tunable=True, baseline_s=before_s, best_s=best_s,
                     best_candidate=candidate or f"{key}1", measured=3, outcomes={"ok": 3}, **more)  # fmt: skip


def trial(key: str, candidate: str, rank_s: float | None, at: float, mode: str = "race") -> Trial:
    return Trial(key, candidate, mode, "ok" if rank_s else "crashed", rank_s, at, 0.5)


def job(*tasks: TaskState, wall_s: float = 20.0, name: str = "net") -> JobStatus:
    return JobStatus("0123456789ab", JobState.DONE, {"name": name, "target": "native"}, Spend(wall_s=wall_s, trials=3),
                     tasks, created_at=100.0, updated_at=120.0)  # fmt: skip


def event(kind: str, payload: Mapping[str, Any]) -> Event:
    return Event(1, "0123456789ab", kind, payload, 0.0)


def test_the_curve_goes_from_the_untuned_sum_to_the_tuned_one() -> None:
    status = job(task("a", 8.0, 2.0, weight=2), task("b", 4.0, 3.0))
    trials = [trial("a", "a1", 3.0, 105.0), trial("b", "b2", None, 106.0), trial("b", "b1", 3.0, 108.0),
              trial("a", "a2", 5.0, 109.0), trial("a", "a1", 2.0, 110.0, "final")]  # fmt: skip
    view = view_of(status, trials, [])
    assert [(p.at_s, p.latency_s) for p in view.curve] == [(0, 20), (5, 10), (8, 9), (10, 7), (20, 7)]
    assert [p.paid_s for p in view.curve] == [0, 0.5, 1.5, 2.5, 2.5], "what failed was paid, too"
    assert (view.before_s, view.first_s, view.after_s) == (20.0, 9.0, 7.0), "b had no verified candidate before"


def test_a_race_that_finals_did_not_confirm_is_taken_back() -> None:
    trials = [trial("a", "a1", 1.0, 101.0), trial("a", "a1", 3.0, 102.0, "final"), trial("a", "a1", 1.0, 103.0)]
    view = view_of(job(task("a", 8.0, 3.0)), trials, [])
    assert [p.latency_s for p in view.curve] == [8.0, 1.0, 3.0, 3.0]


def test_what_was_known_before_the_job_is_there_from_its_beginning() -> None:
    status = job(task("a", 8.0, 2.0, candidate="earlier"), task("b", 4.0, 1.0))
    assert view_of(status, [trial("b", "b1", 1.0, 104.0)], []).curve[0].latency_s == 6.0


def test_pauses_are_left_out_of_the_curve() -> None:
    trials = [trial("a", "a1", 4.0, 110.0), trial("a", "a2", 2.0, 90_000.0)]
    end = view_of(job(task("a", 8.0, 2.0, candidate="a2")), trials, []).curve[-1]
    assert 20.0 <= end.at_s <= 30.0


def test_a_job_that_has_measured_nothing_has_a_page() -> None:
    unreached = TaskState("a", "w", "op", "dense", 1, tunable=True, baseline_s=1.0)
    for status in (JobStatus("0123456789ab", JobState.QUEUED, {}), job(unreached)):
        view = view_of(status, [], [])
        assert view.curve == ()
        assert status.job_id in job_page(view)


def test_operators_come_by_their_share_and_know_onnx_runtime() -> None:
    status = job(task("a", 8.0, 1.0), task("b", 4.0, 2.0, weight=3), TaskState("c", "wc", "c", "add", 1, tunable=True))
    compared = {"latency_s": {"tunery": {"median": 7.5}, "onnxruntime": {"median": 9.0}}}
    view = view_of(status, [], [event(COMPARED, compared)])
    assert [(row.task, row.share and round(row.share, 3)) for row in view.operators] == [
        ("b", 0.857), ("a", 0.143), ("c", None)
    ]  # fmt: skip
    assert view.operators[2].note == "not reached"
    running = view_of(replace(status, state=JobState.RUNNING), [], [])
    assert running.operators[2].note == "not searched yet"
    assert (view.whole_s, view.onnxruntime_s) == (7.5, 9.0)


@pytest.mark.parametrize(
    ("kind", "answer", "known"),
    [
        ("compile", {"latency_s": 7.5, "onnxruntime_s": 9.0}, (7.5, 9.0)),
        ("bench", {"latency_s": {"tunery": {"median": 7.5}, "onnxruntime": {"median": 9.0}}}, (7.5, 9.0)),
        ("measure", {"latency_s": 7.5}, (None, None)),
    ],
)
def test_only_what_is_of_a_whole_network_is_told_as_its_latency(
    kind: str, answer: Mapping[str, Any], known: tuple[float | None, float | None]
) -> None:
    view = view_of(replace(job(), request={"kind": kind}), [], [event(ANSWER, answer)])
    assert (view.whole_s, view.onnxruntime_s) == known
    assert view.job in job_page(view)


def test_a_page_has_the_ratio_of_the_headline_and_none_that_it_does_not_have() -> None:
    for verdict in (Verdict(0.1, Speed(1.31, 1.28, 1.35, 12)), Verdict(1.0), Verdict(not_judged=BUSY)):
        made = {"headline": verdict.headline, "verdict": plain(verdict), "latency_s": 1.0, "onnxruntime_s": 1.5}
        view = view_of(job(), [], [event(COMPILED, made)])
        assert (view.headline, view.times) == (verdict.headline, verdict.delivered and verdict.delivered.ratio)


# -- stages -----------------------------------------------------------------------------------------------------------


def test_stages_of_several_runs_follow_one_another() -> None:
    runs = [[("m", "measure", 5.0, 7.0), ("b", "build", 4.0, 5.0)], [("m", "measure", 100.0, 101.0)]]
    view = view_of(job(), [], [event(STAGES, stages_payload(run)) for run in runs])
    assert [(one.lane, one.start_s, one.end_s) for one in view.stages] == [("b", 0, 1), ("m", 1, 3), ("m", 3, 4)]


def test_seconds_are_summed_by_the_host_that_a_worker_is_on() -> None:
    first = [("here/b1", "build", 0.0, 1.0), ("big/b1", "build", 0.0, 2.0), ("here/m", "measure", 1.0, 3.0)]
    again = [("big/b2", "build", 5.0, 6.0), ("b1", "build", 0.0, 4.0)]
    events = [event(STAGES, stages_payload(run)) for run in (first, again)]
    told = [{"kind": one.kind, **one.payload} for one in events]
    assert host_seconds(told) == {
        "big": {"build": 3.0},
        "here": {"build": 5.0, "measure": 2.0},
    }


def test_stages_of_a_long_job_are_bounded_and_cover_the_same_time() -> None:
    spans = [(f"w{i % 3}", "build", i * 0.1, i * 0.1 + 0.05) for i in range(30_000)]
    kept = stages_payload(spans)["spans"]
    assert len(kept) <= 2000
    assert {lane for lane, *_ in kept} == {"w0", "w1", "w2"}
    assert max(end for *_, end in kept) == pytest.approx(spans[-1][3], abs=1e-3)


# -- pages ------------------------------------------------------------------------------------------------------------


class Checker(HTMLParser):
    """Scripts are the page's own, nothing comes from elsewhere, and `data` is what is shown."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.scripts: list[str] = []
        self.data: Any = None
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in {"img", "link", "iframe", "object", "a"}
        assert not [name for name, _ in attrs if name.startswith("on") or name in {"src", "href"}], attrs
        if tag == "script":
            self._inside = dict(attrs).get("type") or "script"
            self.scripts.append(self._inside)

    def handle_data(self, data: str) -> None:
        if self._inside == "application/json":
            self.data = json.loads(data)
        elif self._inside:
            assert "https:" not in data

    def handle_endtag(self, _: str) -> None:
        self._inside = ""


@pytest.mark.parametrize("evil", ["<script>x</script>", '"><img src=x onerror=y>', "a&b<c>'\"", "</style></script>"])
def test_names_of_strangers_are_text(evil: str) -> None:
    stranger = TaskState(evil, "w", evil, evil, 1, tunable=True, baseline_s=2.0, best_s=1.0, measured=1, problem=evil,
                         outcomes={evil: 1})  # fmt: skip
    status = job(stranger, name=evil)
    stages = stages_payload([(evil, evil, 0.0, 1.0)])
    view = view_of(status, [], [event(STAGES, stages), event("answer", {evil: evil})])
    page = Checker(job_page(view))
    assert page.scripts == ["importmap", "application/json", "module"]
    assert (page.data["job"]["network"], page.data["answer"]) == (evil, {evil: evil})
    assert [row["name"] for row in page.data["operators"]] == [evil]


# -- a real job -------------------------------------------------------------------------------------------------------


@pytest.mark.jobs
def test_a_tuned_job_has_a_report(tmp_path: Path) -> None:
    store, page = str(tmp_path / "store.db"), tmp_path / "report.html"
    request = Request(
        "fake:demo?tasks=2&refuse=0.3", dialect="fake", threads=1, budget=Budget.parse("24trials"), store=store
    )
    with Session(store) as session:
        tuned = session.tune(request)
    with open_store(store) as opened:
        view = job_view(opened, tuned.job.job_id)
    check_view(view, tuned.before_s, tuned.after_s)
    assert "tunery/job.js" in Tuned(request, tuned)._repr_html_(), "in a notebook"
    command = ["report", tuned.job.job_id, "-o", str(page), "--store", store]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert Checker(page.read_text()).data["gain"]["after_s"] == tuned.after_s
    again = CliRunner().invoke(app, [*command, "--json"])
    assert json.loads(again.stdout)["view"]["network"] == "demo", "a report may be replaced"
    page.write_text("mine")
    assert (CliRunner().invoke(app, command).exit_code, page.read_text()) == (2, "mine")
    other = ["report", "000000000000", "-o", str(tmp_path / "x.html"), "--store", store]
    assert CliRunner().invoke(app, other).exit_code != 0


def check_view(view: JobView, before_s: float | None, after_s: float | None) -> None:
    assert view.curve[0].latency_s == before_s
    assert view.curve[-1].latency_s == after_s
    assert {"build", "measure", "propose"} <= {stage.kind for stage in view.stages}
    assert len({stage.lane for stage in view.stages}) >= 3
    for lane in {stage.lane for stage in view.stages}:
        held = sorted((s.start_s, s.end_s) for s in view.stages if s.lane == lane)
        assert all(before[1] <= after[0] + 2e-3 for before, after in pairwise(held)), "one at a time"
