"""A small version of the simulated study, from the shipped record of real tuning."""

import json
import math
from pathlib import Path

import pytest
from rival_strategies import STRATEGIES
from studies.decision_cost import growth_exponent
from studies.scheduling_simulated import recorded_sorts, run

from studies import Options, decision_cost, scheduling_simulated, write


def test_the_shipped_record_is_of_real_tuning() -> None:
    sorts = recorded_sorts()
    assert len(sorts) >= 5
    for sort in sorts:
        for kind in ("propose", "build", "measure"):
            assert len(sort[kind]) >= 3
            assert all(0 <= seconds < 60 for seconds in sort[kind])
        assert sum(sort["build"]) > 0


@pytest.mark.jobs
@pytest.mark.slow
def test_a_quick_study_shows_every_strategy_and_says_what_it_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduling_simulated, "_QUICK_MIXES", 2)
    monkeypatch.setattr(scheduling_simulated, "_QUICK_DECISIONS", 50)
    monkeypatch.setattr(decision_cost, "JOBS", (10, 20))
    report = run(Options(quick=True, seed=5))
    assert report.data["mixes"] == 2
    for found in report.data["summaries"].values():
        assert [summary["strategy"] for summary in found] == list(STRATEGIES)
        assert all(summary["ratio_median"] >= 0.999999 for summary in found)
    assert {run["seed"] for run in report.data["runs"]["recorded"]} == {5, 6}
    assert len(report.claims) == 15
    again = run(Options(quick=True, seed=5))
    assert again.data["runs"] == report.data["runs"]
    pytest.importorskip("matplotlib")
    files = write(report, tmp_path)
    assert {file.name for file in files} == {"scheduling-simulated.json", "simulated-ratios.png", "decision-cost.png"}
    assert json.loads(files[0].read_text())["mixes"] == 2


def test_growth_is_told_from_its_logarithm() -> None:

    jobs = (100, 1000, 10_000)
    assert growth_exponent([(n, 3 * math.log(n)) for n in jobs]) == pytest.approx(1.0)
    assert growth_exponent([(n, 5.0) for n in jobs]) == pytest.approx(0.0)
    assert growth_exponent([(n, n / 10) for n in jobs]) > 5
