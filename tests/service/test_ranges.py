"""Every quantity has a range, checked where it enters, and each refusal is one short sentence."""

import gzip
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tunery._errors import BudgetError, ModelError, StoreError, TuneryError, UsageError
from tunery.accounting.prices import load_prices
from tunery.costmodels.registry import read
from tunery.domain import Budget, parse_latency
from tunery.domain.request import Request, ShareRequest
from tunery.service.checks import check, check_limits, check_model
from tunery.service.session import Session

pytestmark = pytest.mark.usefixtures("inline_workers")

NINES = "9" * 4000
SHEET = {
    "machine": '"m"', "currency": '"USD"', "machine_hour": "1.5", "cores": "4", "kwh": "0.2", "source": '"x"',
    "date": "2025-01-01",
}  # fmt: skip
FAKE = Request("fake:demo", dialect="fake")


def sheet(path: Path, **changes: str) -> str:
    path.write_text("\n".join(f"{name} = {value}" for name, value in (SHEET | changes).items()))
    return str(path)


def told(error: TuneryError) -> None:
    assert "\n" not in str(error)
    assert len(str(error)) < 400


@pytest.mark.parametrize(("name", "value"), [
    ("machine_hour", NINES), ("machine_hour", "1e300"), ("machine_hour", "-1"), ("machine_hour", "nan"),
    ("kwh", "inf"), ("kwh", "true"), ("cores", "9000000000000000000"), ("cores", NINES), ("cores", "0"),
    ("cores", "4.0"), ("machine", f'"{"x" * 5000}"'), ("source", "[" * 30_000), ("currency", f'"{"x" * 5000}"'),
    ("currency", "[1]"), ("date", f'"{"x" * 5000}"'),
])  # fmt: skip
def test_a_price_sheet_has_prices_in_range(name: str, value: str, tmp_path: Path) -> None:
    load_prices(sheet(tmp_path / "good.toml"))
    with pytest.raises(BudgetError) as caught:
        load_prices(sheet(tmp_path / "prices.toml", **{name: value}))
    told(caught.value)


@pytest.mark.parametrize("make", [
    lambda path: path.symlink_to("/dev/zero"), os.mkfifo, lambda path: path.mkdir(),
    lambda path: path.touch() or os.truncate(path, 30 << 30), lambda path: path.write_bytes(b"\xff\xfe"),
], ids=["device", "pipe", "directory", "30 GB", "no text"])  # fmt: skip
def test_a_price_sheet_is_a_small_file(make: Callable[[Path], object], tmp_path: Path) -> None:
    make(tmp_path / "prices.toml")
    with pytest.raises(BudgetError) as caught:
        load_prices(str(tmp_path / "prices.toml"))
    told(caught.value)


@pytest.mark.parametrize("text", [
    f"{NINES}s", "99999999999h", "999999999999999999trials", f"{NINES}trials", "$99999999999", "99999999999999kWh",
    f"1{'x' * 5000}", f"{'$' * 5000}1",
])  # fmt: skip
def test_a_budget_limits_something(text: str) -> None:
    with pytest.raises(BudgetError) as caught:
        Budget.parse(text)
    told(caught.value)


@pytest.mark.parametrize("text", [f"{NINES}s", "99999999999s", f"1{'m' * 5000}"])
def test_a_latency_target_is_a_latency(text: str) -> None:
    with pytest.raises(BudgetError) as caught:
        parse_latency(text)
    told(caught.value)


CHANGES: dict[str, dict[str, object]] = {
    "seconds": {"budget": Budget(seconds=1e300)},
    "endless": {"budget": Budget(seconds=math.inf)},
    "no number": {"budget": Budget(joules=math.nan)},
    "trials": {"budget": Budget(trials=10**4000)},
    "negative trials": {"budget": Budget(trials=-1)},
    "target": {"latency_target_s": 1e300},
    "seed": {"seed": 10**4000},
    "negative seed": {"seed": -1},
    "long model": {"model": "x" * 100_000},
    "model with NUL": {"model": "fake:de\0mo"},
    "long target": {"target": "{" * 100_000},
    "extent": {"shapes": {"x": (1, 10**400)}},
    "no extent": {"shapes": {"x": (0,)}},
    "elements": {"shapes": {"x": (65_536, 65_536)}},
    "further extent": {"more_shapes": ({"x": (0,)},)},
    "bindings": {"more_shapes": ({"x": (2,)},) * 16},
    "bindings of none": {"model": "fake:x", "more_shapes": ({"x": (2,)},)},
    "rank": {"shapes": {"x": (1,) * 1000}},
    "name of an input": {"shapes": {"x\0": (1,)}},
    "price sheet": {"prices": "/dev/zero"},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_request_is_checked_however_it_was_made(change: dict[str, object], tmp_path: Path) -> None:
    check_limits(FAKE)
    wrong = replace(FAKE, **change)  # type: ignore[arg-type]
    with pytest.raises(UsageError) as caught:
        check_limits(wrong)
    told(caught.value)
    with Session(str(tmp_path / "s.db")) as session:
        for verb in (session.tune, session.extract, session.query, session.bench, session.calibrate):
            with pytest.raises(UsageError):
                verb(wrong)


@pytest.mark.parametrize("claim", [
    ShareRequest(owner="x" * 1000), ShareRequest(owner="a\0b"), ShareRequest(weight=math.nan),
    ShareRequest(weight=1e300), ShareRequest(priority=10**400),
])  # fmt: skip
def test_a_claim_is_in_range(claim: ShareRequest) -> None:
    check(FAKE, ShareRequest("me"))
    with pytest.raises(UsageError):
        check(FAKE, claim)


@pytest.mark.parametrize(("kind", "options"), [
    ("compile", {"output": "net", "few_shot": 10**9}), ("compile", {"output": "net", "few_shot": -1}),
    ("compile", {"output": "net", "few_shot_seconds": 1e300}), ("bench", {"seconds": 1e300}),
    ("compile", {"output": "n" * 5000}),
])  # fmt: skip
def test_options_of_a_job_are_in_range(
    kind: str, options: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError):
        check(replace(FAKE, kind=kind, options=options), ShareRequest())


@pytest.mark.parametrize("name", ["x" * 5000, f"{'x' * 300}/s.db", "a\0b"])
def test_a_store_has_a_name_that_a_file_can_have(name: str) -> None:
    with pytest.raises(StoreError) as caught, Session(name):
        pass
    told(caught.value)


@pytest.mark.parametrize("batch", ["0", "99999999999", NINES, "-1"])
def test_a_batch_of_the_zoo_is_in_range(batch: str) -> None:
    with pytest.raises(ModelError) as caught:
        check_model(f"zoo:mlp-mnist@{batch}")
    told(caught.value)


@pytest.mark.jobs
def test_a_cost_model_is_a_small_file(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.json.gz"
    with gzip.open(bomb, "wb", 1) as file:
        for _ in range(17):
            file.write(bytes(64 << 20))
    deep = tmp_path / "deep.json.gz"
    deep.write_bytes(gzip.compress(b"[" * 100_000))
    sparse = tmp_path / "sparse.json.gz"
    sparse.touch()
    os.truncate(sparse, 30 << 30)
    for path in (bomb, deep, sparse, Path("/dev/zero")):
        with pytest.raises(UsageError) as caught:
            read(path)
        told(caught.value)
