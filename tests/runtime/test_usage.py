"""Core-seconds of stages on engines that know CPU seconds, and that do not."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from job_tools import run_in, runtimes

from tunery.domain import JobState
from tunery.runtime.hosts.workers import StageUsage
from tunery.testing.inline_engine import InlineEngine


class KnowingEngine(InlineEngine):
    """CPU seconds as a test sets them."""

    used: ClassVar = {"w": 5.0, "v": 1.0}

    def cpu_s(self, worker: str) -> float:
        return self.used[worker]

    def own_cpu_s(self) -> float:
        return 0.5


@pytest.fixture
def engine() -> Iterator[InlineEngine]:
    with InlineEngine() as engine:
        yield engine


def test_where_no_cpu_seconds_are_known_a_stage_uses_its_cores_all_the_time(engine: InlineEngine) -> None:
    now_s = 10.0
    usage = StageUsage(engine, lambda: now_s, lambda: ["w", "v"])
    usage.begin("a", "job", "w", 4)
    usage.begin("b", "other", "v", 1)
    now_s = 12.0
    assert (usage.in_use(), usage.in_use("job"), usage.in_use("nobody")) == (10.0, 8.0, 0.0)
    assert usage.split("a") == (2.0, 8.0)
    now_s = 13.0
    assert usage.in_use("job") == 4.0, "what was split off is somebody's already"
    assert usage.end("a") == (1.0, 4.0)
    assert usage.end("b") == (3.0, 3.0)
    assert usage.in_use() == 0.0
    assert usage.unclaimed() == 0.0


def test_a_stage_uses_what_its_worker_used() -> None:
    engine = KnowingEngine()
    usage = StageUsage(engine, lambda: 0.0, lambda: ["w", "v"])
    assert usage.unclaimed() == 6.5
    usage.begin("a", "job", "w", 4)
    engine.used["w"] = 8.0
    assert usage.in_use("job") == 3.0
    assert usage.unclaimed() == 6.5, "an open stage is left out"
    assert usage.split("a") == (0.0, 3.0)
    engine.used["w"] = 7.0  # it cannot be
    assert usage.end("a") == (0.0, 0.0)
    usage.claim(7.0)
    assert usage.unclaimed() == pytest.approx(1.5)


@pytest.mark.jobs
def test_a_job_runs_and_is_charged_on_an_engine_that_knows_no_cpu_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNERY_ENGINE", "inline")
    with runtimes():
        report = run_in(tmp_path, "fake:uncontrolled?tasks=1&build_s=0.01", "12trials")
    assert report.job.state is JobState.DONE
    assert report.job.spend.core_s > 0
