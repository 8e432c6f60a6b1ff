"""Random steps with the leases of jobs, by several stores with clocks of their own: is a job ever in two hands?

    python benchmarks/leases.py postgresql://USER@HOST/DATABASE [--steps 100000] [--stores 4] [--jobs 6] [--seed 0]

Steps acquire, let all acquire at once, beat, record, save and release; a holder falls silent, or dies and comes back
as another. Before each the clock of this process is set anew, up to an hour off. A model says what each step must
answer; the first wrong answer ends the run.
"""

import argparse
import random
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from unittest.mock import patch

import sqlalchemy as sa
from store_scale import _record, _task

from tunery._errors import LostJobError
from tunery.domain import JobState
from tunery.store import Store, open_store
from tunery.store.database.schema import jobs as table

_SKEW_S, _BEAT_EACH = 3600.0, 500
_SILENT_SINCE = 0.0


def main() -> None:
    """Take the steps, and print how many of each there were."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--stores", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    began = time.monotonic()
    counts = fuzz(arguments.store, arguments.steps, arguments.stores, arguments.jobs, arguments.seed)
    print(", ".join(f"{count} {name}" for name, count in sorted(counts.items())))
    print(f"{arguments.steps:,} steps in {time.monotonic() - began:.0f} s: no job in two hands, leases only grew: met")


@dataclass
class _Job:
    """What must be true of one job; `holder` is a store's index, None for nobody."""

    job_id: str
    holder: int | None = None
    silent: bool = False
    lease: int = 0
    had: set[int] = field(default_factory=set)

    @property
    def free(self) -> bool:
        return self.holder is None or self.silent


def fuzz(url: str, steps: int, stores: int, jobs: int, seed: int, *, skewed: bool = True) -> Counter[str]:
    """Take random steps and check each answer; return how many of each kind there were.

    Raises:
        AssertionError: a store has answered what must not be.
    """
    chance, counts, real = random.Random(seed), Counter[str](), time.time
    opened = [open_store(url) for _ in range(stores)]
    try:
        known = [_Job(opened[0].create_job({"model": f"lease-{seed}-{n}"}).job_id) for n in range(jobs)]
        for step in range(steps):
            skew_s = chance.uniform(-_SKEW_S, _SKEW_S) if skewed else 0.0
            with patch("time.time", lambda off_s=skew_s: real() + off_s):
                if step % _BEAT_EACH == 0:  # who is not silent is never so for long
                    for job in known:
                        if job.holder is not None and job.holder >= 0 and not job.silent:
                            assert opened[job.holder].heartbeat(job.job_id)
                job, index = chance.choice(known), chance.randrange(stores)
                name = chance.choice(
                    ("acquire", "acquire", "race", "beat", "record", "save", "silence", "release", "die")
                )
                counts[name] += 1
                _STEPS[name](opened, job, index)
                if name == "die":
                    for each in known:
                        each.had.discard(index)
                        each.holder = -1 if each.holder == index else each.holder
                    opened[index].close()
                    opened[index] = open_store(url)
    finally:
        for store in opened:
            store.close()
    return counts


def _acquire(opened: Sequence[Store], job: _Job, index: int) -> None:
    _took(opened, job, [index] if opened[index].acquire_job(job.job_id) else [], asked=1)


def _race(opened: Sequence[Store], job: _Job, _: int) -> None:
    with ThreadPoolExecutor(len(opened)) as threads:
        won = list(threads.map(lambda store: store.acquire_job(job.job_id), opened))
    _took(opened, job, [index for index, one in enumerate(won) if one], asked=len(opened))


def _took(opened: Sequence[Store], job: _Job, winners: Sequence[int], asked: int) -> None:
    assert len(winners) == (1 if job.free else 0), f"{len(winners)} of {asked} acquired {job}"
    for index in winners:
        lease = opened[index].lease(job.job_id)
        assert lease is not None
        assert lease > job.lease, f"lease {lease} after {job.lease}"
        job.holder, job.silent, job.lease = index, False, lease
        job.had.add(index)


def _beat(opened: Sequence[Store], job: _Job, index: int) -> None:
    assert opened[index].heartbeat(job.job_id) == (job.holder == index), job
    job.silent = job.silent and job.holder != index


def _record_one(opened: Sequence[Store], job: _Job, index: int) -> None:
    task, key = _task(0), f"{job.job_id}/{index}/{time.monotonic_ns()}"
    opened[index].add_record(task, replace(_record(task, key), job_id=job.job_id))
    [stored] = opened[index].records(task.key, job_id=job.job_id, limit=1)
    late = bool(stored.measurement.context.get("late"))
    assert stored.candidate.key == key
    assert late == (index in job.had and job.holder != index), job


def _save(opened: Sequence[Store], job: _Job, index: int) -> None:
    status = replace(opened[index].job(job.job_id), state=JobState.RUNNING)
    try:
        opened[index].save_job(status)
        saved = True
    except LostJobError:
        saved = False
    lost = index in job.had and job.holder != index
    assert saved == (job.holder == index or (job.free and not lost)), job


def _silence(opened: Sequence[Store], job: _Job, index: int) -> None:
    """Make the holder one of another host that was not heard of for long: it is not looked up among processes."""
    if job.holder is None:
        return

    def age(connection: sa.Connection) -> None:
        here = table.c.job_id == job.job_id
        owner = connection.execute(sa.select(table.c.owner).where(here)).scalar_one()
        aged = {"owner": {**owner, "host": "elsewhere"}, "heartbeat_at": _SILENT_SINCE}
        connection.execute(sa.update(table).where(here).values(**aged))

    opened[index].write(age)
    job.silent = True


def _release(opened: Sequence[Store], job: _Job, index: int) -> None:
    mine = job.holder == index
    assert opened[index].release_job(job.job_id, JobState.STOPPED) == mine, job
    job.had.discard(index)
    if mine:
        job.holder, job.silent = None, False


def _die(_opened: Sequence[Store], _job: _Job, _index: int) -> None:
    """Leave all jobs as they are; `fuzz` opens the store anew."""


_STEPS = {
    "acquire": _acquire, "race": _race, "beat": _beat, "record": _record_one, "save": _save, "silence": _silence,
    "release": _release, "die": _die,
}  # fmt: skip


if __name__ == "__main__":
    main()
