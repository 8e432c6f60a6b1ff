"""A store that commit ad59553 wrote (`assets/make_ad59553.py`): its records are found and its job goes on."""

import gzip
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from job_tools import raced

from tunery.devices import open_device
from tunery.domain import Budget, JobState, Mode, Origin, Outcome
from tunery.domain.request import Request
from tunery.service.session import Session, tune
from tunery.store import open_store

WRITTEN = Path(__file__).parent / "assets" / "ad59553.sql.gz"
FAKE = "fake:old?tasks=2&ops=matmul,elementwise"
TARGET = '{"kind": "llvm", "mcpu": "x86-64"}'


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """The store, as if it had been written on a machine of this type."""
    text = gzip.decompress(WRITTEN.read_bytes()).decode().replace("@DEVICE@", open_device("cpu").describe().fingerprint)
    path = tmp_path / "store.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(text)
    connection.close()
    return path


def test_it_opens_with_its_jobs_its_records_and_what_they_cost(old: Path) -> None:
    with open_store(str(old)) as store:
        store.check()
        jobs = {job.request["dialect"]: job for job in store.jobs()}
        assert {name: (job.state, job.spend.trials) for name, job in jobs.items()} == {
            "fake": (JobState.STOPPED, 8), "metaschedule": (JobState.DONE, 4),
        }  # fmt: skip
        for job in jobs.values():
            paid = [charge for charge in store.ledger(job.job_id) if charge.stage == "measure"]
            assert sum(charge.core_s for charge in paid) > 0
            assert all(task.best_s is not None and task.baseline_s is not None for task in job.tasks)
        records = store.records()
        assert {store.task(record.candidate.task_key).target.dialect for record in records} == set(jobs)
        assert {record.job_id for record in records} == {job.job_id for job in jobs.values()}
        assert all(record.candidate.body for record in records if record.candidate.origin is Origin.SEARCH)


@pytest.mark.jobs
def test_its_unfinished_job_goes_on_and_measures_nothing_twice(old: Path) -> None:
    before = raced(old.parent)
    with open_store(str(old)) as store:
        [job] = [job for job in store.jobs() if job.state is JobState.STOPPED]
    request = Request(FAKE, dialect="fake", threads=1, store=str(old), budget=Budget.parse("24trials"))
    report = tune(request)
    assert (report.job.job_id, report.resumed, report.job.state) == (job.job_id, True, JobState.DONE)
    assert report.job.spend.trials == 24
    assert report.job.spend.wall_s > job.spend.wall_s
    after = raced(old.parent)
    assert set(before) < set(after)
    mine = {task.key for task in report.tasks}
    assert {count for (task, _), count in after.items() if task in mine} == {1}


@pytest.mark.tvm
def test_what_it_measured_is_found_and_compiled(old: Path, tmp_path: Path) -> None:
    with open_store(str(old)) as store:
        [job] = [job for job in store.jobs() if job.state is JobState.DONE]
        measured = {task.task_key for task in job.tasks}
        good = {
            record.candidate.key for record in store.records(modes=(Mode.FINAL,))
            if record.candidate.task_key in measured and record.measurement.outcome is Outcome.OK
        }  # fmt: skip
    request = Request("zoo:mlp-mnist", target=TARGET, threads=1, store=str(old))
    with Session(str(old)) as session:
        answer = session.query(request)
        assert {choice.task_key for choice in answer.choices} == measured
        report, _ = session.compile(request, tmp_path / "net.tunery")
    assert {key for _, key in report.coverage.values()} <= good
