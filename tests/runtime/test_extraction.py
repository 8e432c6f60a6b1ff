"""Many models at once: each is extracted once, one failure costs one model, a stop costs what was in flight."""

import asyncio
import sqlite3
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from inline_engine import run_workers_here
from job_tools import request_in

from tunery._errors import StoreError, TargetError, TuneryError
from tunery.domain import Network, Target, Task, Workload
from tunery.engines import Role
from tunery.models import zoo
from tunery.runtime.extraction import Extracted, count_by_kind, count_tasks, extract_beside, extract_many
from tunery.runtime.importing import held
from tunery.runtime.opening import open_runtime
from tunery.runtime.runtime import Reservation
from tunery.runtime.spec import RuntimeSpec
from tunery.service.session import extract
from tunery.store import AsyncStore, Store, open_store
from tunery.testing.fake_blobs import FakeBlobs
from tunery.tuning.work import Work


@pytest.mark.jobs
def test_each_model_is_extracted_once(tmp_path: Path) -> None:
    models = ["fake:a?tasks=3", "fake:b?tasks=4&size=9", "fake:c?tasks=2&frozen=1"]
    seen: list[Extracted] = []
    first = extract_many(request_in(tmp_path, ""), models, seen.append)
    assert [one.model for one in first.models] == models
    assert sorted(one.model for one in seen) == sorted(models)
    assert [len(one.tasks) for one in first.models] == [3, 4, 3]
    assert not any(one.cached or one.failure for one in first.models)
    again = extract_many(request_in(tmp_path, ""), models)
    assert all(one.cached for one in again.models)
    assert [one.tasks for one in again.models] == [one.tasks for one in first.models]


@pytest.mark.jobs
def test_what_the_sweep_found_is_what_a_job_starts_from(tmp_path: Path) -> None:
    extract_many(request_in(tmp_path, ""), ["fake:a?tasks=3"])
    with open_store(str(tmp_path / "store.db")) as store:
        assert store.stats().networks == 1
    found = extract(request_in(tmp_path, "fake:a?tasks=3&extract_s=0"))
    assert all(task.workload.program for task in found.tasks)


@pytest.mark.jobs
def test_what_other_code_extracted_is_not_taken(tmp_path: Path) -> None:
    """As of a version of the dialect before, whose compiler had the same name."""
    model = "fake:a?tasks=3"
    first = extract_many(request_in(tmp_path, ""), [model])
    with closing(sqlite3.connect(tmp_path / "store.db")) as store, store:
        store.execute("UPDATE extractions SET compiler = ?", [first.compiler])
    again, last = (extract_many(request_in(tmp_path, ""), [model]) for _ in range(2))
    assert [found.models[0].cached for found in (first, again, last)] == [False, False, True]


@pytest.mark.jobs
def test_a_failure_costs_its_model_only(tmp_path: Path) -> None:
    models = ["fake:a", "fake:b?unsupported=1", "fake:c?extract_dies=1", "zoo:resnet81", "fake:d?tasks=0", "fake:e"]
    found = {one.model: one for one in extract_many(request_in(tmp_path, ""), models).models}
    assert "Scripted" in found["fake:b?unsupported=1"].failure
    assert "SIGSEGV" in found["fake:c?extract_dies=1"].failure
    assert "did you mean resnet18" in found["zoo:resnet81"].failure
    assert not found["fake:a"].failure
    assert not found["fake:e"].failure
    assert not found["fake:d?tasks=0"].failure, "a network with nothing to tune is none"
    assert all(bool(one.tasks) != bool(one.failure) for name, one in found.items() if "d?" not in name)


@pytest.mark.jobs
def test_a_stop_keeps_what_was_done(tmp_path: Path) -> None:
    stop = threading.Event()
    models = [f"fake:m{i}?seed={i}" for i in range(12)]
    part = extract_many(request_in(tmp_path, ""), models, lambda _: stop.set(), stop)
    assert 0 < len(part.models) < len(models)
    again = extract_many(request_in(tmp_path, ""), models)
    assert sum(one.cached for one in again.models) == len(part.models)


def test_a_wrong_target_ends_it_before_it_begins(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="quantum"):
        extract_many(request_in(tmp_path, "", target="quantum"), ["fake:a"])


def test_a_store_that_cannot_be_written_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = Store.save_tasks

    def full(store: Store, network: Network, tasks: Sequence[Task], **place: Any) -> None:
        if network.name == "b":
            raise StoreError("the disk is full; free some space")
        save(store, network, tasks, **place)

    monkeypatch.setattr(Store, "save_tasks", full)
    with pytest.raises(StoreError, match="the disk is full"):
        extract_many(request_in(tmp_path, ""), ["fake:a?tasks=3", "fake:b?tasks=4"])


def test_a_prepared_file_is_not_kept(tmp_path: Path) -> None:
    found = extract_many(request_in(tmp_path, ""), ["zoo:mlp-mnist"])
    assert found.models[0].failure  # the fake dialect takes only networks of its own
    assert list(tmp_path.rglob("*.onnx")) == []


async def _unpaid(_: Reservation) -> None:
    """Charge nobody."""


def test_a_prepared_file_that_a_job_holds_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_workers_here(monkeypatch)
    request = request_in(tmp_path, "")

    async def main() -> None:
        with (
            open_store(request.store) as opened,
            AsyncStore(opened) as store,
            open_runtime(RuntimeSpec("fake")) as runtime,
        ):
            runtime.dispatch.submit("collect")
            worker = runtime.workers(Role.IMPORTER)[0]
            load = partial(runtime.call, worker, "load", "zoo:mlp-mnist", {}, False, True, deadline_s=60)
            network = await held(load, runtime.holds.add, runtime.holds.release)
            await extract_beside(runtime, store, request, "collect", ["zoo:mlp-mnist"], _unpaid)
            assert runtime.blobs.has(network.blob)
            runtime.holds.release(network.blob)
            assert not runtime.blobs.has(network.blob)

    asyncio.run(main())


def test_an_import_that_fails_holds_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_workers_here(monkeypatch)
    request = request_in(tmp_path, "zoo:mlp-mnist")  # the fake dialect takes only networks of its own

    async def main() -> None:
        with (
            open_store(request.store) as opened,
            AsyncStore(opened) as store,
            open_runtime(RuntimeSpec("fake")) as runtime,
        ):
            runtime.dispatch.submit("job")
            held_now: Counter[str] = Counter()
            hold, release = runtime.holds.add, runtime.holds.release

            def counted(blob: str) -> bool:
                held_now[blob] += 1
                return hold(blob)

            def uncounted(blob: str) -> None:
                held_now[blob] -= 1
                release(blob)

            monkeypatch.setattr(runtime.holds, "add", counted)
            monkeypatch.setattr(runtime.holds, "release", uncounted)
            with pytest.raises(TuneryError):
                await Work(runtime, store, request, "job").model()
            assert set(held_now.values()) == {0}

    asyncio.run(main())


def test_a_network_whose_file_goes_while_it_is_loaded_is_loaded_again() -> None:
    blobs, calls = FakeBlobs(), 0
    held_now: Counter[str] = Counter()

    def hold(blob: str) -> bool:
        held_now[blob] += 1
        return blobs.has(blob)

    def release(blob: str) -> None:
        held_now[blob] -= 1

    async def load() -> Network:
        nonlocal calls
        calls += 1
        blob = blobs.put(b"network", temporary=True)
        if calls == 1:
            blobs.release(blob)  # as the last of others does
        return Network("n", "n.onnx", "d", "", (), (), 0, blob)

    network = asyncio.run(held(load, hold, release))
    assert blobs.has(network.blob)
    assert held_now == {network.blob: 1}


def _extracted(model: str, *tasks: tuple[str, str, int, bool]) -> Extracted:
    target = Target("fake", {}, 1)
    made = tuple(Task(Workload(key, key, kind, "", (), 1, 0.0), target, calls, on) for key, kind, calls, on in tasks)
    return Extracted(model, made, False, 0.0)


def test_counting() -> None:
    models = (
        _extracted("a", ("k1", "conv2d", 4, True), ("k2", "conv2d", 1, True), ("k3", "layout", 2, False)),
        _extracted("b", ("k1", "conv2d", 3, True)),
        Extracted("c", (), False, 0.0, "broken"),
    )
    conv, layout = count_by_kind(models)
    assert (conv.kind, conv.models, conv.tasks, conv.unique, conv.tunable, conv.calls) == ("conv2d", 2, 3, 2, 2, 8)
    assert (layout.kind, layout.models, layout.tasks, layout.unique, layout.tunable, layout.calls) == (
        "layout",
        1,
        1,
        1,
        0,
        2,
    )
    everything = count_tasks("all", models)
    assert (everything.models, everything.tasks, everything.unique, everything.calls) == (2, 4, 3, 10)


def test_the_zoo_is_large() -> None:
    assert len(zoo.names()) >= 100
