from pathlib import Path

import pytest
from studies._procedures import Bench
from studies.measurement import FIXED, RACED, STOCK, TRUSTED, run

from studies import Options, write

pytestmark = pytest.mark.jobs


def test_a_small_version_runs_on_the_fake_compiler_and_goes_on_where_it_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNERY_CACHE", str(tmp_path / "cache"))
    lines: list[str] = []
    options = Options(quick=True, say=lines.append)

    def interrupted(bench: Bench, times: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Bench, "truths", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(options, dialect="fake")
    (kept,) = (tmp_path / "cache").glob("study-*")
    before = len(lines)
    report = run(options, dialect="fake")
    first = report.data["tasks"][0]["name"]
    assert len([line for line in lines[before:] if line.startswith(first)]) == 2, "what was done, and the step left"
    assert not kept.exists(), "the next run measures anew"

    assert [task["candidates"] for task in report.data["tasks"]] == [24, 24]
    for task in report.data["tasks"]:
        cost = {p["name"]: p["device_s"] for p in task["procedures"]}
        assert cost[STOCK] > cost[FIXED] > cost[RACED] > 0
        assert {f"{RACED}{TRUSTED}", "a CPU hog, watched", "a CPU hog, unwatched"} <= cost.keys()
        assert all(p["truth_s"] > 0 for p in task["procedures"]), "every winner was timed once more"
        assert task["tau"]["alone, all"] > 0.8
        assert len(task["repeated"]) == 2
        assert all(one["gain"] > 0 and one["bare_kernel"] > 0 for one in task["throughput"])
    for claim in ("racing takes", "spread over", "under a CPU hog", "without watch and finals"):
        assert any(claim in text for text in report.claims)
    assert "without isolated finals the winner is slower by: racing" in report.text
    assert "a change of clock frequency is not part" in report.text
    for name in (STOCK, FIXED, RACED):
        assert name in report.text
    files = write(report, tmp_path / "out")
    assert [file.name for file in files] == ["measurement.json", "measurement-cost.png", "measurement-truth.png"]
    assert all(file.stat().st_size > 1000 for file in files)
