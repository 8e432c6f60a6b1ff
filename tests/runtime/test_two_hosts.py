"""Two hosts on one machine: each has directories of its own, and what one has built the other gets by content."""

import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from job_tools import expect_nothing_held, raced, records_in, run_in, runtimes, wait_until

from tunery.blobs import Blobs, DirectoryBlobs
from tunery.devices.cpu.placement import usable_cores
from tunery.dialects.fake import FakeDialect, fake_network
from tunery.domain import Artifact, JobState, Mode, Outcome
from tunery.engines import HERE, AgentEngine, JoinedEngine, LocalEngine, Role, WorkerSpec
from tunery.runtime.pools import MEASURER

pytestmark = pytest.mark.jobs
PATIENCE_S = 120.0
FAR = "far"


def agent(directory: Path) -> str:
    """Return the command of an agent with directories of its own."""
    places = [f"{name}={directory}" for name in ("TUNERY_CACHE", "XDG_DATA_HOME", "TMPDIR")]
    return shlex.join(["env", *places, sys.executable, "-m", "tunery", "agent", "--stdio"])


class TwoHosts(JoinedEngine):
    """This machine as two hosts; the second works below the directory `far`. It counts calls by host and method."""

    far: Path
    calls: Counter[tuple[str, str]]

    @classmethod
    def open(cls, scratch: Path, blobs: Blobs) -> "TwoHosts":
        cls.far.mkdir()
        return cls({HERE: LocalEngine.open(scratch, blobs), FAR: AgentEngine(FAR, agent(cls.far), blobs)})

    def call(self, worker: str, method: str, *args: object, deadline_s: float) -> Future[Any]:
        self.calls[worker.partition("/")[0], method] += 1
        return super().call(worker, method, *args, deadline_s=deadline_s)


@pytest.fixture
def _two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    installed = tmp_path / "site" / "two_hosts-1.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: two-hosts\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(f"[tunery.engines]\ntwo = {__name__}:TwoHosts\n")
    monkeypatch.syspath_prepend(installed.parent)
    monkeypatch.setenv("TUNERY_ENGINE", "two")
    TwoHosts.far, TwoHosts.calls = tmp_path / "far", Counter()
    yield
    del TwoHosts.far, TwoHosts.calls


@pytest.mark.usefixtures("_two")
def test_both_hosts_build_and_one_measures(tmp_path: Path) -> None:
    with runtimes() as made:
        report = run_in(tmp_path, "fake:apart?tasks=2&build_s=0.02", "40trials")
    assert report.job.state is JobState.DONE
    assert TwoHosts.calls[HERE, "build"] > 0
    assert TwoHosts.calls[FAR, "build"] > 0
    assert {method for host, method in TwoHosts.calls if host == FAR} <= {"build", "yardsticks"}
    assert set(raced(tmp_path).values()) == {1}
    assert {record.measurement.outcome for record in records_in(tmp_path, Mode.FINAL)} == {Outcome.OK}
    expect_nothing_held(made[0])


def test_what_one_host_has_built_the_other_measures(tmp_path: Path) -> None:
    dialect = FakeDialect()
    task = dialect.extract(fake_network("fake:moved"), dialect.resolve_target("native", 1))[0]
    (tmp_path / "far").mkdir()
    with (
        DirectoryBlobs(tmp_path / "here") as blobs,
        JoinedEngine({HERE: LocalEngine(tmp_path / "logs", blobs=blobs),
                      FAR: AgentEngine(FAR, agent(tmp_path / "far"), blobs)}) as engine,
    ):  # fmt: skip
        builder = engine.start(WorkerSpec(
            Role.BUILDER, "tunery.runtime.services:Builder", {"dialect": "fake", "device": "cpu"}, host=FAR
        ))  # fmt: skip
        reference, artifact = (
            engine.call(builder, "build", task, candidate, deadline_s=PATIENCE_S).result(PATIENCE_S)
            for candidate in (dialect.reference(task), dialect.baseline(task))
        )
        assert isinstance(artifact, Artifact)
        assert found(tmp_path / "far", artifact.blob)
        settings = {"dialect": "fake", "device": "cpu", "cores": usable_cores(), "slot": usable_cores()[:1]}
        measurer = engine.start(WorkerSpec(Role.MEASURER, MEASURER, settings))
        measured = engine.call(
            measurer, "race", task, artifact, dialect.baseline(task), None, reference, 1, 0.0, deadline_s=PATIENCE_S
        ).result(PATIENCE_S)
        assert measured.outcome is Outcome.OK
        engine.blobs.release(artifact.blob)
        assert not engine.blobs.has(artifact.blob)
        wait_until(lambda: not found(tmp_path / "far", artifact.blob))


def found(directory: Path, blob: str) -> bool:
    return any(directory.rglob(blob))
