from pathlib import Path

import pytest
from rival_strategies import STRATEGIES
from studies.scheduling_real import run

from studies import Options, write

pytestmark = pytest.mark.jobs

NETWORKS = ("fake:one?tasks=3&build_s=0.02", "fake:two?tasks=3&build_s=0.02&seed=1")


@pytest.mark.slow
def test_a_small_version_measures_all_strategies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNERY_CACHE", str(tmp_path / "cache"))
    said: list[str] = []
    report = run(Options(quick=True, say=said.append), NETWORKS, "fake")
    rows = report.data["rows"]
    assert {row["strategy"] for row in rows} == set(STRATEGIES)
    for row in rows:
        assert row["jobs"] == 2
        assert row["over_bound"] >= 1.0
        assert 0.0 <= row["idle_core"] < 1.0
        assert 0.0 <= row["idle_device"] < 1.0
        assert row["latency_ratio"] > 0
    assert {one["trials"] for one in report.data["runs"]} == {48}
    sequential = next(row for row in rows if row["strategy"] == "sequential")
    assert sequential["latency_ratio"] == pytest.approx(1.0)
    assert len(report.claims) == 4
    assert "predictive" in report.text
    assert [file.name for file in write(report, tmp_path / "out")] == ["scheduling.json", "gantt_2.png", "busy.png"]
    assert not list((tmp_path / "cache").glob("run-*"))
