"""Single operators against ONNX Runtime: each model is what its name says, and what is known is not measured again."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import operators
import pytest
from operators import OPERATORS, run, write

from tunery._errors import WorkError


@pytest.mark.jobs
@pytest.mark.parametrize("name", OPERATORS)
def test_a_model_calls_its_operator_so_many_times_on_numbers_that_stay_numbers(name: str, tmp_path: Path) -> None:
    chain = OPERATORS[name]
    write(chain, tmp_path / "m.onnx")
    model = onnx.load(tmp_path / "m.onnx")
    assert len(model.graph.node) == chain.calls
    [y] = onnxruntime.InferenceSession(tmp_path / "m.onnx").run(
        None, {"x": np.random.default_rng(1).standard_normal(chain.shape).astype(np.float32)}
    )
    assert y.shape == chain.shape
    assert np.isfinite(y).all()
    assert np.abs(y).max() > 1e-4


def test_rows_stay_where_an_operator_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured: list[str] = []

    def measure(model: str, *_: object) -> dict[str, Any]:
        name = Path(model).stem
        measured.append(name)
        if name == "gemv-1024":
            raise WorkError("it does not compile")
        spread = {"median": 32e-6, "p10": 16e-6, "p90": 64e-6}
        return {"latency_s": {"tunery": spread, "onnxruntime": {**spread, "median": 64e-6}}, "trials": 8}

    monkeypatch.setattr(operators, "measure", measure)
    file = tmp_path / "rows.jsonl"
    assert run(["gemv-512", "gemv-1024"], "10s", file) == 1
    assert run(["gemv-512"], "10s", file) == 0
    assert measured == ["gemv-512", "gemv-1024"]
    assert len(file.read_text().splitlines()) == 1
    assert json.loads(file.read_text())["network"] == "gemv-512"
    assert "2.00" in capsys.readouterr().out
