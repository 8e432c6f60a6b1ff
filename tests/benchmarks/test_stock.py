"""A task against stock's tuning: rows are kept one by one, and a side that found nothing breaks no table."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import stock
from stock import fastest, ratios, run

from tunery._errors import WorkError


def side(best_s: float | None, trials: int = 4) -> dict[str, Any]:
    return {"wall_s": 8.0, "cpu_s": 4.0, "trials": trials, "best_s": best_s}


def test_rows_stay_where_a_task_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def compare(name: str, trials: int) -> dict[str, Any]:
        if name == "dense":
            raise WorkError("`python stock.py` failed: Traceback\nDialectError: no")
        return {"description": name, "stock": side(2e-3), "tunery": side(None if name == "depthwise" else 1e-3)}

    monkeypatch.setattr(stock, "compare", compare)
    file = tmp_path / "out" / "rows.jsonl"
    assert run(["conv2d", "dense", "depthwise"], 4, 1, file) == 1
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(row["task"], row["trials"]) for row in rows] == [("conv2d", 4), ("depthwise", 4)]
    text = capsys.readouterr().out
    assert text.splitlines()[-1] == "dense, repeat 0: DialectError: no"
    assert "best latency 2.000x" in text
    assert "best latency -\n" in text
    assert "best latency      2.00x (2.00 to 2.00) in 1 of 2" in text
    assert run(["dense"], 4, 1, file) == 1
    assert run(["conv2d"], 4, 1, file) == 0


def test_a_side_that_tried_or_found_nothing_has_no_ratio() -> None:
    assert ratios({"stock": side(2e-3), "tunery": side(1e-3, trials=0)}) == (None, None, 2.0)
    assert ratios({"stock": side(None), "tunery": side(1e-3)}) == (1.0, 1.0, None)


def test_stock_may_have_found_nothing_that_runs() -> None:
    failed, slow, fast = (SimpleNamespace(run_secs=seconds) for seconds in ([1e10], [2.0, 2.0], [3.0, 0.5]))
    assert fastest([failed, SimpleNamespace(run_secs=None)]) is None
    assert fastest([failed, slow, fast]) is fast
