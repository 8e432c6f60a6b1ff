import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from study import conduct

from studies import Options, StudyReport, write
from tunery._errors import UsageError


def draw(figure: Any) -> None:
    figure.add_subplot().plot([1, 2], [3, 4])


REPORT = StudyReport(
    "tiny", {"rows": [{"x": float("nan"), "y": 1}]}, "a table", {"y <= 2": True, "x <= 1": False, "z <= 3": None}
)


def test_a_report_is_written_as_data_and_plots(tmp_path: Path) -> None:
    report = StudyReport("tiny", REPORT.data, "a table", REPORT.claims, {"line.png": draw})
    files = write(report, tmp_path / "made" / "here")
    assert [file.name for file in files] == ["tiny.json", "line.png"]
    assert json.loads(files[0].read_text()) == {
        "study": "tiny", "claims": {"y <= 2": True, "x <= 1": False, "z <= 3": None}, "rows": [{"x": None, "y": 1}],
    }  # fmt: skip
    assert files[1].read_bytes().startswith(b"\x89PNG")


def test_an_unwritable_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="choose another directory with --out"):
        write(REPORT, tmp_path / "file")


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    def run(_: Options) -> StudyReport:
        raise AssertionError("it is said before the work")

    with pytest.raises(UsageError, match=r"tunery\[study\]"):
        conduct(run, str(tmp_path), quick=True, repeats=1, seed=0, as_json=False)


def test_a_place_that_cannot_be_written_is_said_before_the_work(tmp_path: Path) -> None:
    def run(options: Options) -> StudyReport:
        raise AssertionError("it is said before the work")

    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="choose another directory with --out"):
        conduct(run, str(tmp_path / "file"), quick=True, repeats=1, seed=0, as_json=False)


def test_a_study_ends_at_one_ctrl_c(tmp_path: Path) -> None:
    def run(options: Options) -> StudyReport:
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("it went on")

    with pytest.raises(KeyboardInterrupt, match="goes on"):
        conduct(run, "", quick=True, repeats=1, seed=0, as_json=False)


@pytest.mark.parametrize("as_json", [False, True])
def test_a_missed_claim_is_printed_as_missed(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    heard: list[Options] = []

    def run(options: Options) -> StudyReport:
        options.say("on the way")
        heard.append(options)
        return REPORT

    conduct(run, "", quick=True, repeats=2, seed=5, as_json=as_json)
    captured = capsys.readouterr()
    assert (heard[0].quick, heard[0].repeats, heard[0].seed, heard[0].out) == (True, 2, 5, None)
    assert captured.err == "on the way\n"
    if as_json:
        assert json.loads(captured.out)["claims"] == {"y <= 2": True, "x <= 1": False, "z <= 3": None}
    else:
        assert captured.out.splitlines() == ["a table", "met     y <= 2", "MISSED  x <= 1", "?       z <= 3"]
