"""What a compilation is thought to take, and how dialects share what is left of a budget: on a clock of the test's."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tunery._errors import WorkError
from tunery.blobs import DirectoryBlobs
from tunery.delivery import several
from tunery.domain import Network, Target
from tunery.domain.request import CompileOptions, Request
from tunery.runtime.importing import ImportedModel
from tunery.tuning.work import CompileTimes, Work


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    return clock


def work(blobs: DirectoryBlobs | None, slowness: float, **more: Any) -> Work:
    network = Network("n", "n.onnx", "digest", "", (), (), 0)
    read = ImportedModel(network, Target("fake", {}, 1), "c", (), wall_s=4.0, core_s=2.0)
    runtime, store = SimpleNamespace(blobs=blobs, slowness=slowness), SimpleNamespace(url="")
    return Work(cast(Any, runtime), cast(Any, store), Request("n.onnx"), "job", imported=read, **more)


def test_times_are_told_by_reading_at_first_and_then_by_the_last_compilation(tmp_path: Path) -> None:
    with DirectoryBlobs(tmp_path) as blobs:
        first = work(blobs, 1.0)
        assert first.times == CompileTimes.by_reading(2.0)
        first.remember(first.model_read, CompileTimes(2.0, 9.0, 0.5, 1.5))
        assert work(blobs, 1.0).times == CompileTimes(2.0, 9.0, 0.5, 1.5)
        stored = work(blobs, 1.0)  # whose tasks were in the store: what links it has to read it anew
        stored.imported = replace(stored.model_read, core_s=0.1)
        assert stored.times == CompileTimes(2.0, 9.0, 2.5, 1.5)
        stored.remember(stored.model_read, CompileTimes(2.0, 8.0, 2.75, 1.0))
        assert work(blobs, 1.0).times == CompileTimes(2.0, 8.0, 0.75, 1.0)


def test_a_slow_machine_leaves_less_time(now: list[float]) -> None:
    assert work(None, 1.0, until=now[0] + 10).has_time(9.0)
    assert not work(None, 3.0, until=now[0] + 10).has_time(9.0)
    assert work(None, 3.0).has_time(1e9), "without a budget of time"


def test_dialects_share_the_time_that_is_left(
    now: list[float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ends: dict[str, float] = {}

    async def compile_checked(one: Work, *_: object) -> None:
        assert one.until is not None
        ends[one.request.dialect] = one.until - now[0]
        now[0] += 40.0  # the first takes longer than its share, the second gets what is left
        raise WorkError("no time")

    monkeypatch.setattr(several, "compile_checked", compile_checked)
    other = work(None, 1.0, until=now[0] + 100)
    other.request = replace(other.request, dialect="iree")
    first = work(None, 1.0, until=now[0] + 100, others=(other,))
    with pytest.raises(WorkError, match="no time"):
        asyncio.run(several.compile_fastest(first, tmp_path / "n.tunery", CompileOptions(), lambda _: None))
    kept_s = 100 - 2 * ends["metaschedule"]  # to time their files
    assert 0 < kept_s < 10
    assert ends["iree"] == pytest.approx(100 - kept_s - 40)
