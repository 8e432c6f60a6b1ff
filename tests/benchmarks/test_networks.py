"""Whole networks on a cold store: a network that fails, or an interrupt, costs none of the others' rows."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import networks
import pytest
from networks import run, show

from tunery._errors import WorkError
from tunery.domain import Budget


def row_of(name: str) -> dict[str, Any]:
    spread = {"median": 2e-3, "p10": 1e-3, "p90": 3e-3, "samples": 9}
    return {"network": name, "threads": 2, "trials": 8, "wall_s": 5.0, "settled_s": None, "tasks_s": None,
            "latency_s": {"tunery": spread, "onnxruntime": spread}, "absent": {"untuned": "it was killed"},
            "max_abs_error": 0.0, "curve": []}  # fmt: skip


def test_rows_stay_where_a_network_fails_or_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(model: str, budget: Budget, against: Sequence[str]) -> dict[str, Any]:
        name = model.removeprefix("zoo:")
        if name == "b":
            raise WorkError("b does not compile")
        if name == "d":
            raise KeyboardInterrupt
        return row_of(name)

    monkeypatch.setattr(networks, "measure", measure)
    file = tmp_path / "out" / "rows.jsonl"
    assert run(["a", "b", "c"], "10s", ["onnxruntime"], file) == 1
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(row["network"], row["budget"]) for row in rows] == [("a", "10s"), ("c", "10s")]
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "1 of 3 networks have no result", "b failed: b does not compile",
    ]  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        run(["a", "d"], "10s", ["onnxruntime"], file)
    assert len(file.read_text().splitlines()) == 3
    assert run(["a"], "10s", ["onnxruntime"], file) == 0


def test_what_is_not_known_is_shown_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    show(row_of("a"))
    text = capsys.readouterr().out
    assert "sum of tasks - ms, within 5 % of it after -" in text
    assert "untuned took no part: it was killed" in text
