import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import sqlalchemy as sa
from store_samples import HERE, record, task

from tunery._errors import LostJobError, NothingFoundError, StoreError
from tunery.domain import JobState, Spend, TaskState
from tunery.store import Charge, OtherVersionError, Store, _ledger, open_store
from tunery.store.database import lease, schema
from tunery.store.database.codec import encode

REQUEST = {"model": "resnet18.onnx", "threads": 2, "seed": 0, "quick": True, "budget": "10min", "store": "a.db"}
CHILD = Path(__file__).parent / "store_child.py"


@contextmanager
def owner_process(url: str, job_id: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that has acquired the job and keeps it until killed."""
    command = [sys.executable, str(CHILD), url, "own", job_id]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "True\n"
            yield process
        finally:
            process.kill()


def test_a_job_comes_back_as_saved(store: Store) -> None:
    job = store.create_job(REQUEST)
    assert (job.state, job.request, job.tasks) == (JobState.QUEUED, REQUEST, ())
    assert store.job(job.job_id) == job
    task = TaskState("t", "w", "conv", "conv2d", 3, True, 0.1, measured=2, outcomes={"ok": 1, "timeout": 1})
    saved = replace(
        job, state=JobState.DONE, spend=Spend(1.5, 2.5, 0.1, 7, {"build": 1.0}), tasks=(task,), message="ok"
    )
    store.save_job(saved)
    back = store.job(job.job_id)
    assert replace(back, updated_at=saved.updated_at) == saved
    assert back.updated_at >= job.updated_at
    assert type(back.request["quick"]) is bool


def test_jobs_are_listed_latest_first(store: Store) -> None:
    ids = [store.create_job({"model": str(n)}).job_id for n in range(3)]
    assert [job.job_id for job in store.jobs()] == ids[::-1]
    assert [job.job_id for job in store.jobs(limit=1)] == ids[-1:]


def test_an_unknown_job_is_named(store: Store) -> None:
    for ask in (store.job, store.acquire_job, store.heartbeat):
        with pytest.raises(NothingFoundError, match="no job nope"):
            ask("nope")


def test_a_job_that_several_store_at_once_is_new_to_one_of_them(url: str) -> None:
    together = threading.Barrier(4)

    def submit(store: Store) -> list[tuple[str, bool]]:
        found = []
        for number in range(10):
            together.wait(30)
            found.append(store.create_job_once({**REQUEST, "seed": number}, f"{number:012x}"))
        return [(job.job_id, is_new) for job, is_new in found]

    with ExitStack() as opened, ThreadPoolExecutor(4) as threads:
        stores = [opened.enter_context(open_store(url)) for _ in range(4)]
        results = list(threads.map(submit, stores))
        jobs = stores[0].jobs()
        states = [event for event in stores[0].events.after() if event.kind == "state"]
    for same in zip(*results, strict=True):
        assert len({job_id for job_id, _ in same}) == 1
        assert sorted(is_new for _, is_new in same) == [False, False, False, True]
    assert len(jobs) == len(states) == 10


def test_the_same_request_resumes_whatever_its_budget(store: Store) -> None:
    first, second = store.create_job(REQUEST), store.create_job(REQUEST)
    store.create_job({**REQUEST, "model": "other.onnx"})
    resumed = store.resumable({**REQUEST, "budget": "20min", "budget_trials": 9, "store": "b.db"})
    assert resumed is not None
    assert resumed.job_id == second.job_id
    store.save_job(replace(second, state=JobState.DONE))
    resumed = store.resumable(dict(reversed(REQUEST.items())))
    assert resumed is not None
    assert resumed.job_id == first.job_id
    store.save_job(replace(first, state=JobState.DONE))
    assert store.resumable(REQUEST) is None


def test_a_request_resumes_jobs_of_its_own_account_alone(store: Store) -> None:
    mine = store.create_job(REQUEST)
    hers = store.create_job({**REQUEST, "queue_owner": "ann"})
    for asked, job in ((REQUEST, mine), ({**REQUEST, "queue_owner": "ann"}, hers)):
        resumed = store.resumable(asked)
        assert resumed is not None
        assert resumed.job_id == job.job_id
    assert store.resumable({**REQUEST, "queue_owner": "bob"}) is None


@pytest.mark.parametrize("change", [{"model": "b.onnx"}, {"threads": 4}, {"seed": 1}, {"target": "cuda"}])
def test_another_request_is_another_job(store: Store, change: dict[str, str | int]) -> None:
    store.create_job(REQUEST)
    assert store.resumable({**REQUEST, **change}) is None


def test_a_job_is_acquired_once_and_can_be_released(url: str) -> None:
    with open_store(url) as mine, open_store(url) as theirs:
        job_id = mine.create_job(REQUEST).job_id
        assert mine.acquire_job(job_id)
        assert not mine.acquire_job(job_id)
        assert not theirs.acquire_job(job_id)
        assert mine.heartbeat(job_id)
        assert not theirs.heartbeat(job_id)
        assert not theirs.release_job(job_id, JobState.STOPPED)
        assert theirs.job(job_id).state is JobState.RUNNING
        assert theirs.resumable(REQUEST) is None
        with pytest.raises(StoreError, match="belongs to process"):
            theirs.save_job(replace(theirs.job(job_id), message="mine now"))
        assert mine.release_job(job_id, JobState.STOPPED)
        assert not mine.heartbeat(job_id)
        assert theirs.acquire_job(job_id)
        assert theirs.release_job(job_id, JobState.DONE)
        assert not mine.acquire_job(job_id)


def test_a_killed_owner_leaves_a_resumable_job_at_once(store: Store, url: str) -> None:
    job_id = store.create_job(REQUEST).job_id
    with owner_process(url, job_id) as process:
        assert store.job(job_id).state is JobState.RUNNING
        assert not store.acquire_job(job_id)
        process.kill()
        while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:  # nobody has waited for it yet
            time.sleep(0.01)
        job = store.job(job_id)
        assert job.state is JobState.STOPPED
        assert "ended unexpectedly" in job.message
        assert store.resumable(REQUEST) == job
        assert store.acquire_job(job_id)
        assert store.job(job_id).state is JobState.RUNNING


def test_a_silent_live_owner_is_not_robbed(store: Store, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "LEASE_S", -1.0)  # every heartbeat is too old
    job_id = store.create_job(REQUEST).job_id
    with owner_process(url, job_id) as process:
        psutil.Process(process.pid).suspend()
        assert not store.acquire_job(job_id)
        assert store.job(job_id).state is JobState.RUNNING


def test_an_owner_elsewhere_lives_as_long_as_its_heartbeat() -> None:
    there = replace(lease.this_process(), host="another")
    assert lease.lives(there, 1000.0, lambda: 1000.0 + lease.LEASE_S - 1)
    assert not lease.lives(there, 1000.0, lambda: 1000.0 + lease.LEASE_S + 1)


def test_a_reused_process_number_is_not_the_owner() -> None:
    earlier = replace(lease.this_process(), started=lease.this_process().started - 1000)
    assert not lease.lives(earlier, 1000.0, lambda: 1000.0 + lease.LEASE_S + 1)


def test_the_ledger_adds_up(store: Store) -> None:
    job, other = store.create_job(REQUEST), store.create_job(REQUEST)
    store.charge_all([Charge(job.job_id, "t1", "build", "ok", 1.0, 0.5, 0.0, joules=3.0)])
    store.charge_all([Charge(job.job_id, "t1", "build", "ok", 2.0, 0.25, 0.0, joules=4.0, modelled=True, count=2)])
    store.charge_all([Charge(job.job_id, "t1", "build", "timeout", 8.0, 8.0, 0.0)])
    store.charge_all(
        [Charge(job.job_id, "t1", "measure", "ok", 1.0, 1.0, 1.0), Charge(other.job_id, "", "learn", "", 1, 1, 0)]
    )
    assert store.ledger(job.job_id) == [
        Charge(job.job_id, "t1", "build", "ok", 3.0, 0.75, 0.0, 7.0, True, 3),
        Charge(job.job_id, "t1", "build", "timeout", 8.0, 8.0, 0.0, None, False, 1),
        Charge(job.job_id, "t1", "measure", "ok", 1.0, 1.0, 1.0, None, False, 1),
    ]
    assert len(store.ledger()) == 4
    with pytest.raises(StoreError):
        store.charge_all([Charge("no such job", "", "build", "ok", 1.0, 1.0, 1.0)])


def test_all_that_was_spent_is_counted_once_however_much_and_often(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_ledger._Totals, "_UNSETTLED", 100)
    job = store.create_job(REQUEST)
    one = Charge(job.job_id, "t1", "build", "ok", 1.0, 2.0, 0.0, host="near")
    for joules in (None, 4.0, None):
        store.charge_all([one, replace(one, stage="measure", outcome="", host="far", joules=joules)] * 51)
        store.charge_all([replace(one, modelled=True)])
        assert store.ledger_by_host()["near"].count % 52 == 0
    expected = {"near": (156, 312.0), "far": (153, 306.0)}
    assert {host: (sums.count, sums.core_s) for host, sums in store.ledger_by_host().items()} == expected
    sums = [(one.stage, one.outcome, one.count, one.joules, one.modelled) for one in store.ledger_sums()]
    assert sums == [("build", "ok", 156, None, True), ("measure", "", 153, 204.0, False)]


def test_a_late_result_of_an_owner_that_lost_its_job_is_kept_marked_and_never_the_best(url: str) -> None:
    of = task()
    with open_store(url) as old, open_store(url) as new:
        job_id = old.create_job({"model": "m"}).job_id
        assert old.acquire_job(job_id)
        old.add_record(of, record(of, "in-time", 3e-3, job_id=job_id))
        silent = encode(replace(lease.this_process(), host="another"))
        old.write(lambda c: c.execute(sa.update(schema.jobs).values(owner=silent, heartbeat_at=0.0)))
        assert new.acquire_job(job_id)
        assert new.claims.take(of.key, HERE, ["late"], job_id) == {"late"}
        old.add_record(of, record(of, "late", 1e-3, job_id=job_id))
        assert "late" not in new.measured_keys(of.key, HERE), "its own job still measures it"
        assert new.claims.take(of.key, HERE, ["late"], job_id) == {"late"}
        new.add_record(of, record(of, "next", 2e-3, job_id=job_id))
        new.release_job(job_id, JobState.DONE)
        old.add_record(of, record(of, "later", 1e-3, job_id=job_id))
        assert [one.candidate.key for one in new.best(of.key, HERE, limit=None)] == ["next", "in-time"]
        marked = {one.candidate.key for one in new.records(of.key) if one.measurement.context.get("late")}
        assert marked == {"late", "later"}


def test_who_has_lost_a_job_claims_nothing_for_it_and_does_not_change_it(url: str) -> None:
    of = task()
    with open_store(url) as old, open_store(url) as new:
        lost, other = (new.create_job({"model": name}).job_id for name in ("m", "n"))
        assert old.acquire_job(lost)
        assert old.claims.take(of.key, HERE, ["before"], lost) == {"before"}
        silent = encode(replace(lease.this_process(), host="another"))
        taken = sa.update(schema.jobs).where(schema.jobs.c.job_id == lost).values(owner=silent, heartbeat_at=0.0)
        old.write(lambda c: c.execute(taken))
        assert new.acquire_job(lost)
        assert new.acquire_job(other)
        assert old.claims.take(of.key, HERE, ["late"], lost) == set()
        with pytest.raises(LostJobError):
            old.specify_job(lost, {"model": "another"})
        with pytest.raises(LostJobError):
            old.events.append("compiled", {}, lost)
        assert new.events.append("compiled", {}, lost) == new.events.last()
        assert new.claims.take(of.key, HERE, ["before", "late"], other) == {"before", "late"}
        assert new.job(lost).request["model"] == "m"


def test_a_job_says_why_it_waits_once_and_only_while_it_waits(store: Store) -> None:
    job = store.create_job(REQUEST).job_id
    store.explain_job(job, "its host is away")
    store.explain_job(job, "another reason")
    assert store.job(job).message == "its host is away"
    assert store.take_out_job(job, JobState.PAUSED)
    store.explain_job(job, "its host is away")
    assert store.job(job).message == ""
    at_work = store.create_job({**REQUEST, "seed": 7}).job_id
    assert store.acquire_job(at_work)
    store.explain_job(at_work, "its host is away")
    assert store.job(at_work).message == ""


def test_two_versions_do_not_work_on_one_store(url: str) -> None:
    with open_store(url) as old, open_store(url) as new:
        job, waits = (old.create_job({**REQUEST, "seed": seed}).job_id for seed in range(2))
        assert old.acquire_job(job)
        old.check_version()
        earlier = encode(replace(lease.this_process(), version="0.0.1"))
        taken = sa.update(schema.jobs).where(schema.jobs.c.job_id == job)
        old.write(lambda connection: connection.execute(taken.values(owner=earlier)))
        for ask in (new.check_version, lambda: new.acquire_job(waits)):
            with pytest.raises(OtherVersionError, match=rf"tunery 0\.0\.1 .* works on job {job}.*end that one first"):
                ask()
        old.write(lambda connection: connection.execute(taken.values(owner=sa.null())))
        assert new.acquire_job(waits)
