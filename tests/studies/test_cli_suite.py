"""The study `suite`: who takes part beside ONNX Runtime."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from study import app
from typer.testing import CliRunner

from tunery._errors import WorkError
from tunery.domain.request import BenchReport, Latency, Request


@pytest.fixture(autouse=True)
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("studies.suite.find_spec", lambda name: None)


def test_stocks_network_takes_part_where_its_study_has_finished_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Mapping[str, Path]] = {}

    def compared(
        _: object,
        request: Request,
        rivals: object,
        seconds: float,
        compiled: None,
        *,
        verbose: bool,
        others: Mapping[str, Path],
    ) -> BenchReport:
        seen[request.model] = others
        times = dict.fromkeys(("tunery", "onnxruntime", *others), Latency(1e-3, 1e-3, 1e-3, 9))
        return BenchReport(request.model, request.threads, times, 0.0)

    monkeypatch.setattr("studies.suite.SUITES", {"cpu": ("a", "b")})
    monkeypatch.setattr("studies.suite.measured_peak", lambda _: 1e9)
    monkeypatch.setattr("tunery.cli.bench.compared_with", compared)
    stock = tmp_path / "a.tunery"
    monkeypatch.setattr("studies.stock.finished", lambda model, threads: stock if model == "zoo:a" else None)
    done = CliRunner().invoke(app, ["suite", "cpu", "--threads", "1", "-o", str(tmp_path / "out.json"), "--json"])
    assert done.exit_code == 0, done.output
    assert seen == {"zoo:a": {"stock": stock}, "zoo:b": {}}
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["summary"]["all"]["others"]["stock"]["runs"] == 1
    assert "stock" in found["runs"]["a x1"]["latency_s"]


def test_a_network_that_fails_makes_the_exit_code_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def compared(_: object, request: Request, *__: object, **___: object) -> BenchReport:
        if request.model == "zoo:b":
            raise WorkError("b does not compile")
        return BenchReport("a", 1, dict.fromkeys(("tunery", "onnxruntime"), Latency(1e-3, 1e-3, 1e-3, 9)), 0.0)

    monkeypatch.setattr("studies.suite.SUITES", {"cpu": ("a", "b")})
    monkeypatch.setattr("studies.suite.measured_peak", lambda _: 1e9)
    monkeypatch.setattr("tunery.cli.bench.compared_with", compared)
    monkeypatch.setattr("studies.stock.finished", lambda model, threads: None)
    done = CliRunner().invoke(app, ["suite", "cpu", "--threads", "1,1", "-o", str(tmp_path / "out.json")])
    assert done.exit_code == 1
    assert done.stderr.splitlines().count("b x1 failed: b does not compile") == 1, "a count given twice is run once"
    assert "without a result: b x1 (failed)" in done.stdout


@pytest.mark.parametrize(
    ("more", "word"),
    [
        (("--threads", "1,4096"), "4096 threads"),
        (("--threads", "two"), "two"),
    ],
)
def test_what_a_suite_cannot_do_is_said_before_it_begins(
    more: tuple[str, ...], word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begun(*_: object) -> float:
        raise AssertionError

    monkeypatch.setattr("studies.suite.measured_peak", begun)
    done = CliRunner().invoke(app, ["suite", "cpu", "-o", str(tmp_path / "out.json"), *more])
    assert done.exit_code == 2
    assert word in done.stderr
