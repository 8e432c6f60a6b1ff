"""Two daemons on one store: each finishes what the other leaves, and neither does what the other does."""

import signal
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_tools import PATIENCE_S, Daemon, request

from tunery._errors import LostJobError
from tunery.domain import JobState, Mode
from tunery.domain.request import ShareRequest
from tunery.store import open_store
from tunery.store.database import lease

pytestmark = pytest.mark.jobs

SMALL = "fake:small?tasks=2&build_s=0.02&space=4x4x4"
SLOW = "fake:slow?tasks=2&build_s=0.02&space=16x16x16"


BY_STORE = pytest.mark.parametrize("store_url", ["sqlite", "postgresql"], indirect=True)


@pytest.fixture
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "store.db")
    found: str = request.getfixturevalue("postgres_database")
    return found


def daemon_on(url: str, directory: Path) -> Daemon:
    directory.mkdir()
    return Daemon(directory, store=url)


def raced(url: str) -> Counter[tuple[str, str]]:
    """Return how often each candidate was raced, the compiler's defaults among them."""
    with open_store(url) as store:
        found = [record.candidate for record in store.records(modes=[Mode.RACE])]
    return Counter((candidate.task_key, candidate.key) for candidate in found)


def until(url: str, job_id: str, state: JobState) -> None:
    deadline = time.monotonic() + PATIENCE_S
    with open_store(url) as store:
        while store.job(job_id).state is not state:
            assert time.monotonic() < deadline, store.job(job_id)
            time.sleep(0.1)


# Who holds a job is told by the same rows in both; each of these two runs on one.
@pytest.mark.parametrize("store_url", [pytest.param("sqlite", marks=pytest.mark.slow), "postgresql"], indirect=True)
def test_a_live_daemon_goes_on_with_the_jobs_of_a_killed_one(store_url: str, tmp_path: Path) -> None:
    first, second = (daemon_on(store_url, tmp_path / name) for name in ("first", "second"))
    try:
        jobs = [first.client.submit(request(f"{SLOW}&seed={n}", 30), ShareRequest()).job_id for n in range(2)]
        while raced(store_url).total() < 8:
            time.sleep(0.2)
        first.end(signal.SIGKILL)
        for job in jobs:
            until(store_url, job, JobState.DONE)
        with open_store(store_url) as store:
            assert [store.job(job).spend.trials for job in jobs] == [30, 30]
        assert set(raced(store_url).values()) == {1}
    finally:
        for daemon in (first, second):
            if daemon.process.poll() is None:
                daemon.end(signal.SIGTERM)


@BY_STORE
def test_who_was_silent_too_long_can_change_nothing_of_the_job(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "LEASE_S", -1.0)  # every heartbeat is too old
    with open_store(store_url) as theirs, open_store(store_url) as mine:
        job_id = mine.create_job({"model": "fake:x"}).job_id
        monkeypatch.setattr(lease, "_host", lambda: "there")
        assert theirs.acquire_job(job_id)
        monkeypatch.setattr(lease, "_host", lambda: "here")
        assert mine.acquire_job(job_id)
        done = mine.job(job_id)
        assert mine.release_job(job_id, JobState.DONE)
        assert not theirs.heartbeat(job_id)
        with pytest.raises(LostJobError):
            theirs.save_job(done)
        assert mine.job(job_id).state is JobState.DONE


@pytest.mark.parametrize("store_url", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)], indirect=True)
def test_two_daemons_that_search_the_same_tasks_measure_nothing_twice(store_url: str, tmp_path: Path) -> None:
    both = [daemon_on(store_url, tmp_path / name) for name in ("first", "second")]
    try:
        # Of another seed, for the same job would be refused; the space is small, so both want the same candidates.
        jobs = [
            daemon.client.submit(replace(request(SMALL, 40), seed=seed), ShareRequest()).job_id
            for seed, daemon in enumerate(both)
        ]
        for job in jobs:
            until(store_url, job, JobState.DONE)
        counts = raced(store_url)
        assert set(counts.values()) == {1}
        with open_store(store_url) as store:
            paid_by = {record.job_id for record in store.records(modes=[Mode.RACE])}
        assert paid_by == set(jobs)
    finally:
        for daemon in both:
            daemon.end(signal.SIGTERM)
