import json
import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tunery._errors import UsageError
from tunery.budgets import Audit
from tunery.jobs import Request
from tunery.studies import Options, stock_sides, trimming
from tunery.studies._trimmed import ARMS, KINDS, STAGES, WITHIN, Point, Run, of_search, plain_run, run_of, savings
from tunery.studies.trimming import run, stock_curves


def made(arm: str, *curve: tuple[float, float | None], seed: int = 0) -> Run:
    points = tuple(Point(spent, 2 * spent, 16 * spent, spent / 1e4, 8, latency) for spent, latency in curve)
    in_vain = dict.fromkeys(STAGES, dict.fromkeys(("wall_s_in_vain", "core_s_in_vain", "joules_in_vain"), 0.5))
    whole = replace(points[-1], core_s=points[-1].core_s + 20)
    last_s = points[-1].latency_s
    return Run("net", seed, arm, points, last_s, last_s, 8, Audit(), whole, True, in_vain, {"build": 1.0})


def test_a_saving_is_what_was_used_to_the_quality_of_the_untrimmed_run() -> None:
    runs = [
        made("untrimmed", (0, None), (50, 2e-3), (100, 1e-3), (120, 1e-3)),
        made("filter", (0, None), (30, 1.5e-3), (40, 1.009e-3)),
        made("abandonment", (0, None), (90, 1.2e-3)),
        made("untrimmed", (0, None), (10, 1e-3), seed=1),
        made("filter", (0, None), (8, 1e-3), seed=1),
        made("abandonment", (0, None), (5, 1e-3), seed=1),
    ]
    by_arm = {one.arm: one for one in savings(runs)}
    assert by_arm["filter"].ratios["wall_s"] == (pytest.approx(0.4), pytest.approx(0.8))
    assert by_arm["filter"].saved("joules") == pytest.approx(0.4)
    assert by_arm["filter"].of_whole["core_s"] == (pytest.approx(100 / 260), pytest.approx(36 / 40)), "finals and all"
    assert (by_arm["abandonment"].reached, by_arm["abandonment"].runs) == (1, 2), "one fell short, and that is said"
    assert by_arm["abandonment"].ratios["wall_s"] == (math.inf, pytest.approx(0.5)), "and is no saving"
    assert by_arm["abandonment"].saved("wall_s") is None
    assert by_arm["untrimmed"].saved("money") == 0
    assert by_arm["all"].saved("wall_s") is None


def test_the_whole_study_on_the_fake_dialect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNERY_CACHE", str(tmp_path / "cache"))
    said: list[str] = []
    report = run(
        Options(quick=True, say=said.append), ["fake:study?tasks=2&space=16x16x16&noise=0.003"], 16, "fake", threads=1
    )
    assert [run["arm"] for run in report.data["runs"]] == list(ARMS)
    assert len(said) == len(ARMS)
    goal_s = report.data["runs"][0]["final_s"] * WITHIN
    for one in report.data["runs"]:
        assert one["trials"] == 32 or (one["trials"] < 32 and one["final_s"] <= goal_s)
        assert one["final_s"] > 0
        spent = [point["core_s"] for point in one["curve"]]
        assert spent == sorted(spent)
        assert min(spent) == 0
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


def test_an_interrupted_study_goes_on_with_the_run_that_was_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNERY_CACHE", str(tmp_path / "cache"))
    made_anew: list[str] = []

    def short(request: Request, arm: str, trials: int, goal_s: float | None, compiled: Path | None) -> Run:
        assert (compiled is not None) == (arm in {"untrimmed", "all"})
        assert (goal_s is None) == (arm == "untrimmed")
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


def test_only_finals_say_that_the_quality_was_reached() -> None:
    honest = replace(made("untrimmed", (0, None), (50, 0.99e-3), (100, 0.9e-3)), final_s=1e-3)
    lucky = replace(made("all", (0, None), (10, 0.9e-3), (20, 0.9e-3)), final_s=1.02e-3)
    good = replace(made("all", (0, None), (10, 0.9e-3), (25, 1e-3), seed=1), final_s=1e-3)
    by_arm = {one.arm: one for one in savings([honest, lucky, replace(honest, seed=1), good])}
    assert by_arm["all"].ratios["core_s"] == (math.inf, pytest.approx(0.25)), "its end: finals may have sent it back"
    assert honest.spend_to(1.01e-3) == honest.curve[-1], "not at 50: its races were ten percent too fast"


def test_what_finals_take_is_no_part_of_the_search() -> None:
    def at(spent: float) -> Point:
        return Point(spent, 2 * spent, 16 * spent, spent / 1e4, 8, 1e-3)

    seen = [("baseline", at(5)), ("search", at(10)), ("finals", at(11)), ("finals", at(30)), ("search", at(31))]
    curve = of_search([*seen, ("search", at(41)), ("finals", at(60))])
    assert [point.wall_s for point in curve] == [0, 5, 6, 6, 16, 35]
    assert [point.core_s for point in curve] == [0, 10, 12, 12, 32, 70]


def test_networks_timed_in_turns_say_whether_the_quality_is_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNERY_CACHE", str(tmp_path / "cache"))
    seen: list[set[str]] = []

    def short(request: Request, arm: str, trials: int, goal_s: float | None, compiled: Path | None) -> Run:
        if compiled:
            compiled.write_text(arm)
        return made(arm, (0, None), (trials, 1e-3))

    def turns(request: Request, files: Mapping[str, Path]) -> dict[str, float]:
        seen.append({file.read_text() for file in files.values()})
        return {"untrimmed": 2e-3, "all": 2.1e-3, "onnxruntime": 1.9e-3}

    monkeypatch.setattr(trimming, "tuned", short)
    monkeypatch.setattr(trimming, "in_turns", turns)
    report = run(Options(quick=True), ["fake:turns?tasks=1"], 8, "fake", threads=1)
    assert seen == [{"untrimmed", "all"}]
    assert "1.05x" in report.text
    assert [met for claim, met in report.claims.items() if "in turns" in claim] == [False]


def test_a_run_is_the_same_after_it_was_kept() -> None:
    one = made("all", (0, None), (10, 1e-3))
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
        with pytest.raises(UsageError, match="tunery study stock"):
            stock_curves(str(file))
