"""Rows of a benchmark: what other code or another device has found is not mixed with what is found now."""

import json
from pathlib import Path

import pytest
import rows
from rows import Kept, made_by


def test_only_rows_of_this_code_and_device_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, state = tmp_path / "out" / "rows.jsonl", {"code": "c1", "device": "d1"}
    monkeypatch.setattr(rows, "made_by", lambda script: dict(state))
    assert Kept(file, "one.py", trials=4).read() == []
    row = Kept(file, "one.py", trials=4).add({"task": "a"})
    Kept(file, "one.py", trials=8).add({"task": "b"})
    assert row == {"task": "a", "trials": 4, "code": "c1", "device": "d1"}
    assert Kept(file, "one.py", trials=4).read() == [row]
    assert capsys.readouterr().out == ""
    for name, value in list(state.items()):
        state[name] = "other"
        assert Kept(file, "one.py", trials=4).read() == []
        assert capsys.readouterr().out == f"1 rows of {file} are of other code or another device: not used\n"
        state[name] = value
    file.write_text(json.dumps({"task": "a", "trials": 4}) + "\n")
    assert Kept(file, "one.py", trials=4).read() == [], "an older benchmark did not say of what it was"


def test_the_code_is_the_packages_and_the_benchmarks_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "one.py"
    script.write_text("1")
    first = made_by(str(script))
    assert made_by(str(script)) == first
    script.write_text("2")
    second = made_by(str(script))
    monkeypatch.setattr(rows, "sources", lambda: "another state of the package")
    assert len({made["code"] for made in (first, second, made_by(str(script)))}) == 3
    assert first["device"] == second["device"]
