"""The files of several dialects are timed in turns; one that cannot be run costs the others nothing."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tunery._errors import BlobError, CrashError
from tunery.delivery import several
from tunery.delivery.comparing.compare import Contestants
from tunery.delivery.several import Made, compile_fastest, time_files
from tunery.dialects import get_dialect
from tunery.domain import HERE, Network
from tunery.domain.request import CompileOptions, CompileReport, Request
from tunery.engines import WorkerSpec
from tunery.runtime.runtime import BlobHolds
from tunery.testing.fake_blobs import FakeBlobs
from tunery.tuning.work import Work

THEIRS = "OnnxRuntimeContestant"


class Runtime:
    """Stands in for a job's runtime and engine: a file's text is its name, and calls of those in `fails` raise."""

    threads, measure_cores, measure_host, host_facts, slowness = 1, None, HERE, None, 1.0
    environment = get_dialect("fake").environment()
    measuring_environment = environment.measuring()

    def __init__(self, *fails: str, full: bool = False) -> None:
        self.engine, self.pools, self.blobs = self, self, Full() if full else FakeBlobs()
        self.fails, self.alive, self.calls = fails, dict[str, str](), Counter[str]()
        self.put, self.holds = list[str](), BlobHolds(self.blobs)

    def start(self, spec: WorkerSpec) -> str:
        worker, blob = f"worker {len(self.alive)}", spec.settings["blob"]
        theirs = spec.service.endswith(THEIRS)
        self.alive[worker] = THEIRS if theirs else self.blobs.get(blob).read_text()
        self.put += [] if theirs else [blob]
        return worker

    def kill(self, worker: str) -> None:
        del self.alive[worker]

    async def call(self, worker: str, method: str, *args: object, deadline_s: float) -> list[float]:
        assert method == "samples"
        name = self.alive[worker]
        self.calls[name] += 1
        if name in self.fails:
            raise CrashError(f"{name} was killed by SIGSEGV")
        return [2e-3 if name == THEIRS else 1e-3]

    @asynccontextmanager
    async def stage(self, *of: object, **more: object) -> AsyncIterator[None]:
        yield


class Full(FakeBlobs):
    """A disk without room."""

    def put(self, source: bytes | Path, *, temporary: bool = False, move: bool = False, sync: bool = True) -> str:
        raise BlobError("the disk is full")


def made(directory: Path, **runtimes: Any) -> dict[str, Made]:
    found = {}
    for name, runtime in runtimes.items():
        path = directory / name
        path.write_text(name)
        network = Network("n", "n.onnx", "d", "", (), (), 0, "n.onnx")
        report = CompileReport("n", str(path), path.stat().st_size, {})
        no_store: Any = None
        found[name] = (Work(runtime, no_store, Request("n", dialect=name), "job"), report, network)
    return found


def times(of: dict[str, Made]) -> tuple[dict[str, float], dict[str, str]]:
    found, failed = asyncio.run(time_files(of))
    return found, {name: str(error) for name, error in failed.items()}


def test_files_are_timed_in_turns_with_one_onnx_runtime_and_nothing_is_left(tmp_path: Path) -> None:
    runtime = Runtime()
    found, failed = times(made(tmp_path, one=runtime, other=runtime))
    assert found == {"one": 1e-3, "other": 1e-3, "onnxruntime": 2e-3}
    assert not failed
    assert set(runtime.calls.values()) == {7}
    assert runtime.alive == {}
    assert not any(runtime.blobs.has(one) for one in runtime.put)


@pytest.mark.parametrize("fails", ["one", "other"])
def test_a_file_that_crashes_costs_the_others_nothing(tmp_path: Path, fails: str) -> None:
    runtime = Runtime(fails)
    found, failed = times(made(tmp_path, one=runtime, other=runtime))
    assert found.keys() == {"one", "other", "onnxruntime"} - {fails}
    assert failed == {fails: f"{fails} was killed by SIGSEGV"}
    assert runtime.calls[fails] == 1
    assert runtime.alive == {}
    assert not any(runtime.blobs.has(one) for one in runtime.put)


def test_where_onnx_runtime_or_every_file_crashes_the_rest_is_told(tmp_path: Path) -> None:
    found, failed = times(made(tmp_path, one=Runtime(THEIRS)))
    assert (found, failed.keys()) == ({"one": 1e-3}, {"onnxruntime"})
    found, failed = times(made(tmp_path, one=Runtime("one", THEIRS)))
    assert (found, failed.keys()) == ({}, {"one", "onnxruntime"})


def test_a_full_disk_costs_a_dialect_its_place(tmp_path: Path) -> None:
    found, failed = times(made(tmp_path, one=Runtime(full=True), other=Runtime()))
    assert found == {"other": 1e-3, "onnxruntime": 2e-3}
    assert failed == {"one": "the disk is full"}


@pytest.mark.parametrize("fails", ["", "one", THEIRS])
def test_the_file_that_is_the_fastest_in_turns_is_delivered(
    tmp_path: Path, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def compiled(work: Work, place: Path, *_: object, **__: object) -> tuple[CompileReport, Network]:
        place.write_text(work.request.dialect)
        network = Network("n", "n.onnx", "d", "", (), (), 0, "n.onnx")
        return CompileReport("n", str(place), 1, {}, latency_s=5e-3), network

    monkeypatch.setattr(several, "compile_checked", compiled)
    one, other = (
        Work(
            cast("Any", Runtime(fails)),
            cast("Any", SimpleNamespace(url="s.db")),
            Request("n.onnx", dialect=name),
            "job",
        )
        for name in ("one", "other")
    )
    output = tmp_path / "n.tunery"
    report, _ = asyncio.run(compile_fastest(replace(one, others=(other,)), output, CompileOptions(), lambda _: None))
    assert output.read_text() == report.dialect == ("other" if fails == "one" else "one")
    assert report.latency_s == {"": 1e-3, "one": 1e-3, THEIRS: 1e-3}[fails]


def test_of_contestants_that_cannot_all_start_none_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, start = Runtime(), Runtime.start

    def first_only(_: Runtime, spec: WorkerSpec) -> str:
        if runtime.alive:
            raise CrashError("out of memory")
        return start(runtime, spec)

    monkeypatch.setattr(Runtime, "start", first_only)
    blob = runtime.blobs.put(b"one")
    with pytest.raises(CrashError):
        Contestants.start(cast("Any", runtime), Network("n", "n.onnx", "d", "", (), (), 0, "n.onnx"), {"tunery": blob})
    assert runtime.put == [blob]
    assert runtime.alive == {}
