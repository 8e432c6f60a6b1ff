"""Several coordinators of one PostgreSQL store, of which one is killed now and then: is every job done, and once?

    python benchmarks/coordinators.py postgresql://USER@HOST/DATABASE [--coordinators 4] [--jobs 200] [--kill-s 20]

Starts `tunery serve` so often with places of its own, puts jobs of the fake dialect into the store, and kills
one coordinator after the other with SIGKILL, starting another in its place. Then it counts jobs that are done, and
candidates that were raced more than once. A job's records of a killed coordinator count: what was measured stays.
"""

import argparse
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tunery.domain import Budget, JobState, Mode
from tunery.domain.request import Request, ShareRequest
from tunery.service import stored_jobs
from tunery.service.codec import request_data
from tunery.store import Store, new_job_id, open_store

_LIMIT_S = 3600.0
_ENDED = {JobState.DONE, JobState.FAILED, JobState.CANCELLED}


def main() -> None:
    """Run the jobs and print what became of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--coordinators", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--kill-s", type=float, default=20.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tunery-many-") as directory, open_store(arguments.store) as store:
        places = [Path(directory, str(number)) for number in range(arguments.coordinators)]
        running = [_start(arguments.store, place) for place in places]
        try:
            jobs = [_submit(store, number) for number in range(arguments.jobs)]
            began, killed = time.monotonic(), 0
            for turn in itertools.count():
                if any(process.poll() is not None for process in running):
                    raise SystemExit(f"a coordinator has ended by itself:\n{_last_lines(places)}")
                if _wait(store, jobs, arguments.kill_s) or time.monotonic() - began > _LIMIT_S:
                    break
                victim = turn % len(running)
                os.killpg(running[victim].pid, signal.SIGKILL)
                running[victim].wait()
                running[victim] = _start(arguments.store, places[victim])
                killed += 1
            took_s = time.monotonic() - began
        finally:
            for process in running:
                process.terminate()
            for process in running:
                process.wait()
        _tell(store, jobs, killed, took_s)


def _start(store: str, place: Path) -> "subprocess.Popen[bytes]":
    place.mkdir(exist_ok=True)
    environment = {**os.environ, "TUNERY_CACHE": str(place / "cache"), "TUNERY_LOAD_WATCH": "off"}
    command = [sys.executable, "-m", "tunery", "serve", "--socket", str(place / "socket"), "--store", store]
    with (place / "log").open("ab") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)


def _last_lines(places: list[Path]) -> str:
    return "\n".join(line for place in places for line in (place / "log").read_text().splitlines()[-1:])


def _submit(store: Store, number: int) -> str:
    model = f"fake:one?tasks=1&build_s=0.02&seed={number}"
    request = Request(model, dialect="fake", threads=1, budget=Budget(trials=16), store=store.url, seed=number)
    job_id = new_job_id()
    stored_jobs.submit(store, request_data(request, claim=ShareRequest()), job_id)
    return job_id


def _wait(store: Store, jobs: list[str], seconds: float) -> bool:
    """Wait for so long; return whether all jobs have ended."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if all(status.state in _ENDED for status in store.jobs() if status.job_id in jobs):
            return True
        time.sleep(1.0)
    return False


def _tell(store: Store, jobs: list[str], killed: int, took_s: float) -> None:
    states = Counter(status.state.value for status in store.jobs() if status.job_id in jobs)
    raced = Counter(
        (record.candidate.task_key, record.candidate.key) for record in store.records(modes=[Mode.RACE, Mode.SHARED])
    )
    twice = sum(count > 1 for count in raced.values())
    print(f"{len(jobs)} jobs in {took_s:.0f} s, {killed} coordinators killed: {dict(states)}")
    print(f"{len(raced)} candidates raced, {twice} of them more than once")
    print("every job done once: " + ("met" if states == {"done": len(jobs)} and not twice else "MISSED"))


if __name__ == "__main__":
    main()
