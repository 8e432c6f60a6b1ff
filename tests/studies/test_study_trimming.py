import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from studies._judged import Way, judge, ways
from studies._trimmed import ARMS, KINDS, STAGES, Point, Run, of_search, plain_run, run_of, savings, tuned
from studies.trimming import judged, run, stock_curves

from studies import Options, stock_sides, trimming
from tunery._errors import UsageError
from tunery.domain import Candidate, Measurement, Mode, Origin, Outcome, Provenance, Record, Target, Task, Workload
from tunery.domain.request import Request
from tunery.service.session import extract
from tunery.tuning.allocation.trimming import Audit

TASK = Task(Workload("w", "w", "dense", "", (), 1, 8.0), Target("fake", {"kind": "cpu"}, 1))


def made(arm: str, *curve: tuple[float, float | None], seed: int = 0) -> Run:
    points = tuple(Point(spent, 2 * spent, 16 * spent, spent / 1e4, 8, latency) for spent, latency in curve)
    in_vain = dict.fromkeys(STAGES, dict.fromkeys(("wall_s_in_vain", "core_s_in_vain", "joules_in_vain"), 0.5))
    whole = replace(points[-1], core_s=points[-1].core_s + 20)
    return Run("net", seed, arm, points, points[-1].latency_s, 8, Audit(), whole, True, in_vain, {"build": 1.0})


def test_a_saving_is_what_was_used_to_the_quality_of_the_untrimmed_run() -> None:
    runs = [
        made("untrimmed", (0, None), (50, 2e-3), (100, 1e-3), (120, 1e-3)),
        made("filter", (0, None), (30, 1.5e-3), (40, 1.009e-3)),
        made("abandonment", (0, None), (90, 1.2e-3)),
        made("untrimmed", (0, None), (10, 1e-3), seed=1),
        made("filter", (0, None), (8, 1e-3), seed=1),
        made("abandonment", (0, None), (5, 1e-3), (7, 1e-3), seed=1),
    ]
    by_arm = {one.arm: one for one in savings(runs)}
    assert by_arm["filter"].ratios["wall_s"] == (pytest.approx(0.4), pytest.approx(0.8))
    assert by_arm["filter"].saved("joules") == pytest.approx(0.4)
    assert by_arm["filter"].of_whole["core_s"] == (pytest.approx(100 / 260), pytest.approx(36 / 40)), "finals and all"
    assert (by_arm["abandonment"].reached, by_arm["abandonment"].runs) == (1, 2), "one fell short, and that is said"
    assert by_arm["abandonment"].ratios["wall_s"] == (math.inf, pytest.approx(0.5)), "and is no saving"
    assert by_arm["abandonment"].of_whole["core_s"] == (math.inf, pytest.approx(30 / 40)), "not what came after it"
    assert by_arm["abandonment"].quality == (pytest.approx(1.2), pytest.approx(1.0))
    assert by_arm["abandonment"].beside == (pytest.approx(0.6),), "the second had no latency to compare with so early"
    assert by_arm["abandonment"].saved("wall_s") is None
    assert by_arm["untrimmed"].saved("money") == 0
    assert by_arm["all"].saved("wall_s") is None


@pytest.mark.jobs
@pytest.mark.slow
def test_the_whole_study_on_the_fake_dialect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNERY_CACHE", str(tmp_path / "cache"))
    said: list[str] = []
    report = run(
        Options(quick=True, say=said.append),
        ["fake:study?tasks=2&space=16x16x16&noise=0.003&build_s=0.1"],
        16,
        "fake",
        threads=1,
    )
    assert [run["arm"] for run in report.data["runs"]] == list(ARMS)
    assert len(said) == len(ARMS) + 1
    for one in report.data["runs"]:
        assert one["trials"] <= 32
        assert one["final_s"] > 0
        spent = [point["core_s"] for point in one["curve"]]
        assert spent == sorted(spent)
        assert min(spent) == 0
        latencies = [point["latency_s"] for point in one["curve"] if point["latency_s"]]
        assert latencies == sorted(latencies, reverse=True)
        assert latencies[-1] == pytest.approx(one["final_s"])
        assert all(way["winner"] for way in one["ways"])
    plain = report.data["runs"][0]
    assert plain["trials"] == 32
    assert 0 < plain["in_vain"]["measure"]["core_s_in_vain"] <= 1
    assert {kind for one in report.data["savings"] for kind in one["saved"]} == set(KINDS)
    assert "untrimmed" in report.text
    rows = [line for line in report.text.splitlines() if line.split()[:1] == ["all"]]
    reached = next(one["reached"] for one in report.data["savings"] if one["arm"] == "all")
    assert sum("never" in row for row in rows) == 1 - reached, "a run that fell short has no ratio"
    modelled = any(one["modelled"] for one in report.data["runs"])
    assert sum("modelled" in claim for claim in report.claims) == 2 * modelled, "what no meter counted is marked"
    for one in report.data["runs"]:
        assert one["whole"]["core_s"] > one["curve"][-1]["core_s"], "finals are in the whole run, not in the curve"
    audit = report.data["false_drops"]["untrimmed"]
    assert audit["dropped"] == audit["audited"], "what would be dropped is measured, all of it"


class CutError(Exception):
    """What ends a study in the middle."""


@pytest.mark.jobs
def test_an_interrupted_study_goes_on_with_the_run_that_was_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNERY_CACHE", str(tmp_path / "cache"))
    made_anew: list[str] = []

    def short(request: Request, arm: str, trials: int, joules: float | None) -> Run:
        assert (joules is None) == (arm == "untrimmed")
        if len(made_anew) == 2:
            made_anew.append("")
            raise CutError
        made_anew.append(arm)
        return made(arm, (0, None), (trials, 1e-3))

    monkeypatch.setattr(trimming, "tuned", short)
    options = Options(quick=True)
    with pytest.raises(CutError):
        run(options, ["fake:cut?tasks=1"], 8, "fake", threads=1)
    report = run(options, ["fake:cut?tasks=1"], 8, "fake", threads=1)
    assert [arm for arm in made_anew if arm] == list(ARMS), "each arm was run once"
    assert [one["arm"] for one in report.data["runs"]] == list(ARMS)
    assert not list((tmp_path / "cache").glob("study-trimming-*")), "nothing is kept of a complete study"


def record(number: int, latency_s: float, mode: Mode = Mode.RACE, origin: Origin = Origin.SEARCH) -> Record:
    candidate = Candidate(f"c{number}", "task", "{}", origin)
    return Record(candidate, Measurement(Outcome.OK, (latency_s,) * 3, mode), Provenance("", "", "", ""))


def test_a_run_is_judged_by_its_finals_and_these_by_winners_timed_in_turns() -> None:
    races = [record(0, 9.0, origin=Origin.BASELINE), record(1, 2.0), record(2, 1.0), record(3, 1.1), record(4, 5.0)]
    finals = [record(2, 1.5, Mode.FINAL), record(3, 1.2, Mode.FINAL)]
    of_task = [replace(one, candidate=replace(one.candidate, task_key=TASK.key)) for one in [*races, *finals]]
    [way] = ways([replace(TASK, weight=3)], of_task, {TASK.key: "c3"})
    ratio = 1.2 / 1.1
    assert way.steps == ((0, pytest.approx(9 * ratio)), (1, pytest.approx(2 * ratio)), (2, 1.5), (3, 1.2))
    assert (way.winner["key"], way.final_s, way.at(2), way.at(99)) == ("c3", 1.2, 1.5, 1.2)

    points = tuple(Point(float(n), float(n), 0.0, 0.0, n, 1.0) for n in range(5))
    run = replace(made("all", (0, None)), curve=points, ways=(way,), trials=4)
    judged = run.judged({TASK.key: 1.8})
    assert [point.latency_s for point in judged.curve] == [pytest.approx(3 * 1.5 * way.at(n)) for n in range(5)]
    assert judged.final_s == pytest.approx(3 * 1.8)
    assert judged.spend_to(3 * 1.8) == judged.curve[3], "not when its race had been the fastest"


def test_a_task_without_a_candidate_has_its_default_and_one_without_anything_no_latency() -> None:
    default = record(0, 9.0, origin=Origin.BASELINE)
    default = replace(default, candidate=replace(default.candidate, task_key=TASK.key))
    [way] = ways([TASK], [default], {})
    assert (way.final_s, way.winner["key"]) == (9.0, "c0")
    [nothing] = ways([TASK], [], {})
    assert nothing.final_s == math.inf
    assert made("all", (0, None), (1, 1.0)).judged({}).final_s == 0.0
    assert replace(made("all", (0, None), (1, 1.0)), ways=(way, nothing)).judged({TASK.key: 9.0}).final_s is None


@pytest.mark.jobs
def test_winners_are_timed_in_the_same_rounds_and_what_does_not_build_takes_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNERY_CACHE", str(tmp_path / "cache"))
    request = Request(
        "fake:judged?tasks=2&frozen=1&space=8x8x8", dialect="fake", threads=1, store=str(tmp_path / "s.db")
    )
    plain = tuned(request, "all", 16)
    tunable = [way for way in plain.ways if way.winner]
    broken = [replace(way, winner={**way.winner, "key": "broken", "body": "no program"}) for way in tunable]
    worth = judge(request, extract(request).tasks, {"untrimmed": plain.ways, "twin": plain.ways, "broken": broken})
    assert set(worth) == {way.task_key for way in tunable}
    assert len(tunable) == 2
    for found in worth.values():
        assert found["untrimmed"] == found["twin"] > 0.0
        assert found["broken"] == math.inf

    twin = replace(plain, arm="twin")
    first, second = judged({"untrimmed": plain, "twin": twin}, {tunable[0].task_key: {"untrimmed": 1.0, "twin": 2.0}})
    other = sum(way.weight * way.final_s for way in plain.ways if way is not tunable[0])
    assert first.final_s == pytest.approx(1.0 * tunable[0].weight + other), (
        "what was not timed counts as finals held it"
    )
    assert second.final_s == pytest.approx(2.0 * tunable[0].weight + other)


def test_what_finals_take_is_no_part_of_the_search() -> None:
    def at(spent: float) -> Point:
        return Point(spent, 2 * spent, 16 * spent, spent / 1e4, 8, 1e-3)

    seen = [("baseline", at(5)), ("search", at(10)), ("finals", at(11)), ("finals", at(30)), ("search", at(31))]
    curve = of_search([*seen, ("search", at(41)), ("finals", at(60))])
    assert [point.wall_s for point in curve] == [0, 5, 6, 6, 16, 35]
    assert [point.core_s for point in curve] == [0, 10, 12, 12, 32, 70]


def test_a_run_is_the_same_after_it_was_kept() -> None:
    way = Way("task", 2, ((0, 2.0), (3, 1.0)), {"key": "c"})
    one = replace(made("all", (0, None), (10, 1e-3)), ways=(way,))
    assert run_of(json.loads(json.dumps(plain_run(one)))) == one


def test_curves_of_stock_are_read_by_network(tmp_path: Path) -> None:
    file = tmp_path / "stock.json"
    side = stock_sides.Side(
        "net", 1, 2, 0, 0.0, 5.0, 9.0, 2, tuple(stock_sides.Point(1.0, 2.0, 2, latency) for latency in (None, 3e-3))
    )
    file.write_text(json.dumps({"rows": [{"stock": asdict(side)}]}))
    assert stock_curves(str(file)) == {"net": [[(1.0, 2.0, 3e-3)]]}
    for wrong in ("{}", "no json", '{"rows": [{"stock": {"network": "net"}}]}'):
        file.write_text(wrong)
        with pytest.raises(UsageError, match="make study-stock"):
            stock_curves(str(file))
