"""A daemon and its workers that are killed again and again while several jobs are measured."""

import random
import signal
import time
from pathlib import Path

import pytest
from daemon_tools import Daemon, raced, request, state_of, wait_until

from tunery.domain import JobState, Mode, Origin
from tunery.domain.request import ShareRequest
from tunery.store import open_store

pytestmark = pytest.mark.hostile
TRIALS = 40
JOB = "fake:job?tasks=2&build_s=0.03&propose_s=0.03&space=16x16x16"


@pytest.mark.parametrize("seed", range(3))
def test_a_daemon_that_dies_again_and_again_finishes_all_jobs(tmp_path: Path, seed: int) -> None:
    moments = random.Random(seed)
    daemon = Daemon(tmp_path)
    jobs = [daemon.client.submit(request(f"{JOB}&seed={n}", TRIALS), ShareRequest(priority=n)).job_id for n in range(4)]
    for _ in range(3):
        goal = raced(tmp_path).total() + moments.randint(1, 12)
        wait_until(lambda goal=goal: raced(tmp_path).total() >= goal)
        time.sleep(moments.uniform(0, 0.2))
        for victim in moments.sample(daemon.family(), 1):  # a worker, or the daemon itself
            victim.kill()
        time.sleep(moments.uniform(0, 0.2))
        known = raced(tmp_path)
        daemon.end(signal.SIGKILL)
        daemon = Daemon(tmp_path)
        assert known <= raced(tmp_path), "what was measured is kept"
    for job in jobs:
        wait_until(lambda job=job: state_of(tmp_path, job) is JobState.DONE)
    assert daemon.end(signal.SIGTERM) == 0
    assert set(raced(tmp_path).values()) == {1}, "a candidate was measured twice"
    with open_store(str(tmp_path / "store.db")) as store:
        store.check()
        assert [store.job(job).spend.trials for job in jobs] == [TRIALS] * len(jobs)
        baselines = [r for r in store.records(modes=[Mode.RACE]) if r.candidate.origin is Origin.BASELINE]
        assert len({r.candidate.task_key for r in baselines}) == len(baselines)
    assert not list((tmp_path / "cache").glob("run-*"))
