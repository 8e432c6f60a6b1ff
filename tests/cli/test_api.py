"""The Python face: a chain of immutable steps whose order is enforced."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tunery
from tunery.domain.request import BenchReport, Latency, Progress, Speed, Verdict

CHAIN = {"dialect": "fake"}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TUNERY_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return str(tmp_path / "store.db")


@pytest.mark.jobs
def test_the_chain_tunes_reports_compiles_and_runs(store: str, tmp_path: Path) -> None:
    seen: list[Progress] = []
    planned = tunery.load("fake:demo?tasks=1&ops=elementwise").on("native", threads=1, **CHAIN).within("10trials")
    tuned = planned.tune(store=store, on_progress=seen.append)
    assert tuned.result.job.spend.trials == 10
    assert {progress.phase for progress in seen} >= {"importing", "search", "finals"}
    assert "elementwise_0" in tuned.report()
    assert tuned.result.job.job_id in tuned.report() == str(tuned)

    compiled = tuned.compile()
    assert compiled.path == Path("demo.tunery")
    assert compiled.path.stat().st_size == compiled.result.size_bytes
    assert tuned.compile(tmp_path / "again.tunery").path == tmp_path / "again.tunery"


@pytest.mark.jobs
def test_without_a_budget_the_effort_decides(store: str) -> None:
    placed = tunery.load("fake:demo?tasks=1").on(**CHAIN)
    assert placed.tune(store=store, effort="quick").result.job.spend.trials == 16


@pytest.mark.jobs
def test_a_latency_that_is_good_enough_ends_tuning(store: str) -> None:
    placed = tunery.load("fake:demo?tasks=1&space=16x16x2").on(threads=1, **CHAIN)
    tuned = placed.within("200trials", latency_target="300us").tune(store=store)
    assert tuned.result.job.spend.trials < 200
    assert "the latency target of 0.3 ms: met" in tuned.result.job.message
    served = placed.within(latency_target="300us").tune(store=store)
    assert "nothing was tuned" in served.result.job.message
    for mistake in ({"latency_target": "soon"}, {}):
        with pytest.raises(tunery.BudgetError):
            placed.within(**mistake)


@pytest.mark.parametrize("given", [({"a": 1.5},), ([{"a": 1}, 3],), ("abc",), (5,), ({}, 3)])
def test_what_are_no_shapes_is_told(given: tuple[Any, ...]) -> None:
    with pytest.raises(tunery.UsageError, match="shape"):
        tunery.load("x.onnx", *given)


def test_steps_are_immutable_and_can_branch() -> None:
    model = tunery.load("x.onnx", {"a": [1, 2]})
    one, two = model.on(threads=1), model.on(threads=2)
    assert (one.threads, two.threads) == (1, 2)
    assert model.shapes == {"a": (1, 2)}
    several = tunery.load("x.onnx", [{"n": 1}, {"n": 4, "a": [1, 2]}])
    assert (several.shapes, several.more_shapes) == ({"n": (1,)}, ({"n": (4,), "a": (1, 2)},))
    with pytest.raises(AttributeError):
        model.source = "y.onnx"  # type: ignore[misc]


@pytest.mark.parametrize("steps", [("within",), ("tune",), ("on", "on"), ("on", "compile"), ("on", "within", "report"),
                                   ("benchmark",), ("on", "within", "within"), ("on", "within", "on")])  # fmt: skip
def test_a_step_out_of_order_says_which_comes_first(steps: tuple[str, ...]) -> None:
    *first, last = steps
    chain: object = tunery.load("x.onnx")
    for step in first:
        chain = getattr(chain, step)("1min" if step == "within" else "native")
    with pytest.raises(tunery.UsageError, match=r"tunery\.load"):
        getattr(chain, last)
    assert not hasattr(tunery.load("x.onnx"), "nonsense")


def test_wrong_values_are_told_at_once() -> None:
    with pytest.raises(tunery.BudgetError, match="500trials"):
        tunery.load("x.onnx").on().within("soon")
    with pytest.raises(tunery.UsageError, match="threads=-1"):
        tunery.load("x.onnx").on(threads=-1)
    with pytest.raises(tunery.UsageError, match="seed='seven'"):
        tunery.load("x.onnx").on().tune(seed="seven")
    with pytest.raises(tunery.UsageError, match="positive integers"):
        tunery.load("x.onnx", {"a": (1, 0)})
    with pytest.raises(tunery.UsageError, match="positive integers"):
        tunery.load("x.onnx", {"a": None})  # type: ignore[dict-item]
    for inputs in ((np.zeros(3),), np.zeros(3), "a=3"):
        with pytest.raises(tunery.UsageError, match="write for example"):
            tunery.load("x.pt2", inputs)
    with pytest.raises(tunery.UsageError, match="in one tuple"):
        tunery.load("x.pt2", {}, {})  # type: ignore[call-overload]
    with pytest.raises(AttributeError, match="nonsense"):
        _ = tunery.nonsense  # type: ignore[attr-defined]


@pytest.mark.jobs
def test_errors_of_the_work_come_out_as_they_are(store: str) -> None:
    with pytest.raises(tunery.ModelError, match=r"missing\.onnx"):
        tunery.load("missing.onnx").on(**CHAIN).tune(store=store)
    with pytest.raises(tunery.ModelError, match="Scripted"):
        tunery.load("fake:x?unsupported=1").on(**CHAIN).tune(store=store)
    with pytest.raises(tunery.UsageError, match="tunery compile"):
        tunery.load_compiled("missing.tunery")


@pytest.mark.jobs
def test_a_printed_comparison_is_a_table(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    latency = {"tunery": Latency(0.008, 0.007, 0.009, 70), "onnxruntime": Latency(0.012, 0.011, 0.013, 50)}
    measured = BenchReport("demo", 1, latency, 1e-6, verdict=Verdict(0.0, Speed(1.5, 1.4, 1.6, 7)))
    monkeypatch.setattr("tunery.service.session.Session.bench", lambda *_: measured)
    tuned = tunery.load("fake:demo?tasks=1").on(threads=1, **CHAIN).within("2trials").tune(store=store)
    compared = tuned.compile().benchmark()
    assert "1.50 times as fast as ONNX Runtime" in str(compared).splitlines()[1]
    assert str(compared) == compared.report()
    assert compared.result is measured
    assert repr(tuned) == f"<Tuned demo, job {tuned.result.job.job_id}>"


def test_everything_that_is_promised_is_there() -> None:
    assert all(hasattr(tunery, name) for name in tunery.__all__)
    assert tunery.__version__ == "0.1.0"
    assert issubclass(tunery.BudgetError, tunery.UsageError)


def test_everything_public_is_listed_and_torch_is_asked_for_only_when_it_is_used() -> None:
    assert set(tunery.__all__) <= set(dir(tunery))
    code = (
        "import sys; import tunery; assert 'torch' not in sys.modules; sys.modules['torch'] = None\n"
        "for used in (lambda: tunery.torch.wrap, lambda: __import__('tunery.torch')):\n"
        "    try: used()\n"
        "    except tunery.UsageError as error: assert 'pip install' in str(error)\n"
        "    else: raise SystemExit('it was imported')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
