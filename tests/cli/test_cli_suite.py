"""`tunery bench --suite`: who takes part beside ONNX Runtime."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tunery.cli._app import app
from tunery.jobs import BenchReport, Latency, Request


def test_stocks_network_takes_part_where_its_study_has_finished_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Mapping[str, Path]] = {}

    def compared(
        request: Request, rivals: object, seconds: float, compiled: None, *, verbose: bool, others: Mapping[str, Path]
    ) -> BenchReport:
        seen[request.model] = others
        times = dict.fromkeys(("tunery", "onnxruntime", *others), Latency(1e-3, 1e-3, 1e-3, 9))
        return BenchReport(request.model, request.threads, times, 0.0)

    monkeypatch.setattr("tunery.jobs.suite.SUITES", {"cpu": ("a", "b")})
    monkeypatch.setattr("tunery.jobs.suite.measured_peak", lambda _: 1e9)
    monkeypatch.setattr("tunery.cli.bench.compared_with", compared)
    stock = tmp_path / "a.tunery"
    monkeypatch.setattr("tunery.studies.stock.finished", lambda model, threads: stock if model == "zoo:a" else None)
    done = CliRunner().invoke(
        app, ["bench", "--suite", "cpu", "--threads", "1", "-o", str(tmp_path / "out.json"), "--json"]
    )
    assert done.exit_code == 0, done.output
    assert seen == {"zoo:a": {"stock": stock}, "zoo:b": {}}
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["summary"]["all"]["others"]["stock"]["runs"] == 1
    assert "stock" in found["runs"]["a x1"]["latency_s"]
