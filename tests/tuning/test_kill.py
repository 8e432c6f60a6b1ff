"""`kill -9` of each kind of process at random moments of a real run."""

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from job_tools import PATIENCE_S, family, raced, records_in, role_of, start, wait_until

from tunery.domain import Mode, Origin
from tunery.store import open_store

TRIALS = 60
SOURCE = "fake:victim?tasks=2&build_s=0.03&propose_s=0.05&load_s=0.01"
WORKERS = ("proposer", "builder", "measurer", "zygote")


@pytest.fixture(autouse=True)
def _leave_nothing(tmp_path: Path) -> Any:
    yield
    for process in family(tmp_path):
        process.kill()


def kill_one(directory: Path, role: str) -> bool:
    victims = [process for process in family(directory) if role_of(process) == role]
    for process in victims[:1]:
        process.kill()
    return bool(victims)


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    answer: dict[str, Any] = json.loads(out)
    assert answer["status"] == "done"
    return answer


def expect_whole(directory: Path, answer: dict[str, Any]) -> None:
    counts = raced(directory)
    assert answer["spend"]["trials"] == counts.total() == TRIALS
    assert set(counts.values()) == {1}, "a candidate was measured twice"
    baselines = [r.candidate.key for r in records_in(directory, Mode.RACE) if r.candidate.origin is Origin.BASELINE]
    assert len(baselines) == len(set(baselines)) == 2
    assert all(task["baseline_s"] and task["best_s"] < task["baseline_s"] for task in answer["tasks"])
    with open_store(str(directory / "store.db")) as store:
        store.check()
        assert [job.job_id for job in store.jobs()] == [answer["job"]]
    wait_until(lambda: not family(directory))
    assert not list((directory / "cache").glob("run-*")), "a scratch directory was left"


@pytest.mark.jobs
def test_a_killed_worker_costs_at_most_its_measurement(tmp_path: Path) -> None:
    moments, killed = random.Random(0), set[str]()
    with start(tmp_path, SOURCE, TRIALS) as process:
        wait_until(lambda: kill_one(tmp_path, "importer"))
        for role in WORKERS:
            goal = raced(tmp_path).total() + moments.randint(1, 5)
            wait_until(lambda goal=goal: raced(tmp_path).total() >= goal or process.poll() is not None)  # type: ignore[misc]
            wait_until(lambda role=role: kill_one(tmp_path, role) or process.poll() is not None)  # type: ignore[misc]
            if process.poll() is None:
                killed.add(role)
        answer = finish(process)
    assert killed == set(WORKERS)
    expect_whole(tmp_path, answer)


@pytest.mark.jobs
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_the_same_command_goes_on_after_the_death_of_all(tmp_path: Path, seed: int) -> None:
    moments = random.Random(seed)
    known = raced(tmp_path)
    for _ in range(2):
        with start(tmp_path, SOURCE, TRIALS) as process:
            goal = known.total() + moments.randint(1, 15)
            wait_until(lambda goal=goal: raced(tmp_path).total() >= goal or process.poll() is not None)  # type: ignore[misc]
            time.sleep(moments.uniform(0, 0.1))
            process.send_signal(signal.SIGKILL)
            process.communicate()
        wait_until(lambda: not family(tmp_path))
        assert known <= raced(tmp_path)
        known = raced(tmp_path)
    assert list((tmp_path / "cache").glob("run-*")), "the dead leave their scratch to the next"
    with start(tmp_path, SOURCE, TRIALS) as process:
        answer = finish(process)
    assert answer["resumed"]
    assert known <= raced(tmp_path)
    expect_whole(tmp_path, answer)


@pytest.mark.jobs
def test_killed_while_importing(tmp_path: Path) -> None:
    with start(tmp_path, SOURCE + "&extract_s=30", TRIALS) as process:
        wait_until(lambda: any(role_of(p) == "importer" for p in family(tmp_path)))
        process.kill()
        process.communicate()
    wait_until(lambda: not family(tmp_path))
    with start(tmp_path, SOURCE, TRIALS) as process:
        expect_whole(tmp_path, finish(process))


def test_a_scratch_directory_of_the_living_is_left_alone(tmp_path: Path) -> None:
    from tunery._locks import hold_directory
    from tunery.runtime.runtime import make_scratch

    mine, _ = make_scratch(tmp_path)
    dead = tmp_path / "run-999999999-x"
    dead.mkdir()
    unseen = tmp_path / "run-999999998-x"  # of a process in another container
    unseen.mkdir()
    held = hold_directory(unseen)
    other, _ = make_scratch(tmp_path)
    assert mine.exists()
    assert mine != other
    assert not dead.exists()
    assert unseen.exists()
    os.close(held)
    make_scratch(tmp_path)
    assert not unseen.exists()
    assert psutil.pid_exists(int(mine.name.split("-")[1]))
