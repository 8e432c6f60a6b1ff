from pathlib import Path

import pytest

from tunery.budgets import Audit
from tunery.studies import Options
from tunery.studies.trimming import ARMS, KINDS, Point, Run, run, savings


def made(arm: str, *curve: tuple[float, float | None], seed: int = 0) -> Run:
    points = tuple(Point(spent, 2 * spent, 16 * spent, spent / 1e4, 8, latency) for spent, latency in curve)
    return Run("net", seed, arm, points, points[-1].latency_s, None, 8, Audit())


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
    assert (by_arm["abandonment"].reached, by_arm["abandonment"].runs) == (1, 2), "one fell short, and that is said"
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
    for one in report.data["runs"]:
        assert one["trials"] == 32
        assert one["final_s"] > 0
        spent = [point["core_s"] for point in one["curve"]]
        assert spent == sorted(spent)
        assert min(spent) == 0
    plain = report.data["runs"][0]
    assert 0 < plain["in_vain"]["measure"]["core_s_in_vain"] <= 1
    assert {kind for one in report.data["savings"] for kind in one["saved"]} == set(KINDS)
    assert "untrimmed" in report.text
    assert len(report.claims) == len(KINDS) + 1
