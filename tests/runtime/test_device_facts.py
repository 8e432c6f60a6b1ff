"""Which device measured is what the worker says that measured; the parent process does not look for itself."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tunery._errors import UsageError
from tunery.devices import open_device
from tunery.domain import Budget, Calibration
from tunery.domain.request import Request
from tunery.engines import Engine, LocalEngine, Role
from tunery.runtime import opening
from tunery.runtime.opening import introduce
from tunery.runtime.runtime import Runtime
from tunery.runtime.spec import RuntimeSpec
from tunery.service.session import tune
from tunery.store import AsyncStore, open_store
from tunery.testing.fake_device import FakeDevice
from tunery.testing.inline_engine import InlineEngine


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[Runtime]:
    with InlineEngine() as engine:
        yield Runtime(engine, RuntimeSpec("fake", device="fake"), tmp_path)


def test_a_runtime_keeps_what_its_measurer_says(runtime: Runtime) -> None:
    described = asyncio.run(runtime.device())
    assert described == FakeDevice(runtime.cores).describe()
    assert described.fingerprint != open_device("cpu").describe().fingerprint
    runtime.engine.kill(runtime.workers(Role.MEASURER)[0])
    assert asyncio.run(runtime.device()) == described, "it is not asked again"


def test_the_facts_of_a_device_are_stored_under_its_fingerprint(runtime: Runtime, tmp_path: Path) -> None:
    with open_store(str(tmp_path / "store.db")) as store:
        device = asyncio.run(introduce(runtime, AsyncStore(store)))
        [known] = store.devices.find()
        assert (known.fingerprint, known.facts["kind"], known.facts["cores"]) == (
            device.fingerprint, "fake", len(device.cores),
        )  # fmt: skip
        assert device.facts.items() <= store.devices.facts(device.fingerprint).items()


def test_a_job_that_is_cancelled_while_it_waits_leaves_the_answer_to_others(runtime: Runtime) -> None:
    async def main() -> None:
        first, second = asyncio.create_task(runtime.device()), asyncio.create_task(runtime.device())
        await asyncio.sleep(0)
        first.cancel()
        assert (await second).kind == "fake"

    asyncio.run(main())


@pytest.mark.jobs
def test_a_measurer_that_is_killed_before_it_answers_is_asked_again(tmp_path: Path) -> None:
    with LocalEngine(tmp_path / "logs") as engine:
        runtime = Runtime(engine, RuntimeSpec("fake"), tmp_path)
        engine.kill(runtime.workers(Role.MEASURER)[0])
        assert asyncio.run(runtime.device()) == open_device("cpu", runtime.cores).describe()


def test_a_dialect_that_is_not_installed_is_named(tmp_path: Path) -> None:
    with InlineEngine() as engine, pytest.raises(UsageError, match="no-such-dialect"):
        Runtime(engine, RuntimeSpec("no-such-dialect", device="fake"), tmp_path)


def test_slots_beyond_the_first_get_measurers_when_a_calibration_allows_it(runtime: Runtime) -> None:
    runtime.share(None)
    assert len(runtime.pools.slots) == len(runtime.workers(Role.MEASURER)) == 1
    runtime.share(Calibration("d", "fake", 1, 2, (), {}, {"compute": 2}, 1.0, 1.0, 0.0))
    expected = min(2, len(runtime.pools.all_slots))
    assert len(runtime.pools.slots) == len(runtime.workers(Role.MEASURER)) == expected


@pytest.mark.jobs
def test_records_carry_the_fingerprint_that_the_worker_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = opening.Runtime

    def on_fake_device(engine: Engine, spec: RuntimeSpec, *args: object, **more: object) -> Runtime:
        return made(engine, replace(spec, device="fake"), *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(opening, "Runtime", on_fake_device)
    place = str(tmp_path / "store.db")
    tune(Request("fake:small?tasks=1", dialect="fake", threads=1, budget=Budget(None, 8), store=place))
    with open_store(place) as store:
        records = store.records()
        [known] = store.devices.find()
    assert {record.provenance.device for record in records} == {known.fingerprint}
    told = {record.measurement.context["device"] for record in records if "settings" in record.measurement.context}
    assert told == {known.fingerprint}
    assert known.facts["kind"] == "fake"
