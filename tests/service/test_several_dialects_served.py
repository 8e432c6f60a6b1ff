"""A service's job over two dialects: killed, paused and cancelled between and within their turns."""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_tools import Daemon, raced, state_of, wait_until

from tunery.domain import Budget, JobState, JobStatus
from tunery.domain.request import Request, ShareRequest
from tunery.store import open_store

pytestmark = [pytest.mark.jobs, pytest.mark.slow]

TRIALS = 40


@pytest.fixture(autouse=True)
def _second_dialect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a second dialect, the fake one under another name, in the processes that start here."""
    info = tmp_path / "plugin" / "second_dialect-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: second-dialect\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[tunery.dialects]\nsecond = second_dialect:SecondDialect\n")
    (info.parent / "second_dialect.py").write_text(
        "from tunery.testing.fake_dialect import FakeDialect\nclass SecondDialect(FakeDialect):\n    name = 'second'\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(info.parent), os.environ.get("PYTHONPATH", "")]))


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[list[Daemon]]:
    running = [Daemon(tmp_path)]
    yield running
    assert running[-1].end(signal.SIGTERM) == 0


def submitted(daemon: Daemon) -> str:
    request = Request(
        "fake:long?tasks=2&build_s=0.02&space=16x16x16", dialect="fake,second", threads=1, budget=Budget(trials=TRIALS)
    )
    return daemon.client.submit(request, ShareRequest()).job_id


def by_dialect(directory: Path, job: str) -> Counter[str]:
    """Return how many candidates each dialect has measured in a job."""
    found = Counter[str]()
    with open_store(str(directory / "store.db")) as store:
        for task in store.job(job).tasks:
            found[task.dialect] += task.measured
    return found


def check_whole(directory: Path, status: JobStatus) -> None:
    assert (status.state, status.spend.trials) == (JobState.DONE, TRIALS)
    assert set(raced(directory).values()) == {1}, "nothing was measured twice"
    found = by_dialect(directory, status.job_id)
    assert found.keys() == {"fake", "second"}
    assert min(found.values()) >= TRIALS // 4, "each has had its first share"


@pytest.mark.parametrize("when", ["fake", "second"])
def test_killed_in_the_turn_of_either_it_goes_on(tmp_path: Path, daemons: list[Daemon], when: str) -> None:
    job = submitted(daemons[0])
    wait_until(lambda: by_dialect(tmp_path, job)[when] > 2)
    daemons[0].end(signal.SIGKILL)
    daemons.append(Daemon(tmp_path))
    assert "going on with 1 job" in daemons[1].greeting
    check_whole(tmp_path, daemons[1].client.act("follow", job))


@pytest.mark.parametrize("when", ["fake", "second"])
def test_paused_in_the_turn_of_either_it_goes_on(tmp_path: Path, daemons: list[Daemon], when: str) -> None:
    job = submitted(daemons[0])
    wait_until(lambda: by_dialect(tmp_path, job)[when] > 2)
    daemons[0].client.act("pause", job)
    wait_until(lambda: state_of(tmp_path, job) is JobState.PAUSED)
    check_whole(tmp_path, daemons[0].client.act("resume", job, follow=True))


def test_cancelled_in_the_second_ones_turn_it_ends_and_the_service_takes_others(
    tmp_path: Path, daemons: list[Daemon]
) -> None:
    job = submitted(daemons[0])
    wait_until(lambda: by_dialect(tmp_path, job)["second"] > 2)
    daemons[0].client.act("cancel", job)
    wait_until(lambda: state_of(tmp_path, job) is JobState.CANCELLED)
    assert raced(tmp_path).total() < TRIALS
    check_whole(tmp_path, daemons[0].client.act("follow", submitted(daemons[0])))
