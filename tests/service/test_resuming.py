"""Going on with one job by its id: that very job, or a sentence why not."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from job_tools import request_in, run_in

from tunery._errors import NothingFoundError, UsageError
from tunery._settings import cache_directory
from tunery.domain import JobState, JobStatus
from tunery.domain.request import Progress
from tunery.service import stored_jobs
from tunery.service.codec import request_data, request_of
from tunery.service.session import tune
from tunery.store import open_store

pytestmark = [pytest.mark.jobs, pytest.mark.usefixtures("inline_workers")]

SOURCE = "fake:again?tasks=1&build_s=0.01"


def stopped(directory: Path, source: str = SOURCE) -> JobStatus:
    stop = threading.Event()

    def watch(progress: Progress) -> None:
        if progress.trials >= 4:
            stop.set()

    status = run_in(directory, source, "20trials", on_progress=watch, stop=stop).job
    assert status.state is JobState.STOPPED
    return status


def resume(directory: Path, job_id: str) -> JobStatus:
    store = str(directory / "store.db")
    with open_store(store) as opened:
        request = request_of(opened.job(job_id), store)
    return tune(request, job_id=job_id).job


def test_the_job_that_was_named_goes_on_not_the_latest_like_it(tmp_path: Path) -> None:
    first = stopped(tmp_path)
    with open_store(str(tmp_path / "store.db")) as store:
        twin = store.create_job(first.request)
    done = resume(tmp_path, first.job_id)
    assert (done.job_id, done.state, done.spend.trials) == (first.job_id, JobState.DONE, 20)
    with open_store(str(tmp_path / "store.db")) as store:
        assert store.job(twin.job_id).state is JobState.QUEUED


@pytest.mark.parametrize(("part", "word"), [("network", "model has changed"), ("target_key", "target means another")])
def test_a_job_whose_words_mean_something_else_now_is_refused(tmp_path: Path, part: str, word: str) -> None:
    request = {**stopped(tmp_path).request, part: "0" * 16}
    with open_store(str(tmp_path / "store.db")) as store:
        old = store.create_job(request)
    with pytest.raises(UsageError, match=word):
        resume(tmp_path, old.job_id)
    with open_store(str(tmp_path / "store.db")) as store:
        assert store.job(old.job_id).state is JobState.QUEUED


def test_an_unknown_job_and_an_unknown_effort_start_nothing(tmp_path: Path) -> None:
    request = request_in(tmp_path, SOURCE)
    with pytest.raises(NothingFoundError, match="tunery jobs list"):
        tune(request, job_id="nonsense")
    with pytest.raises(UsageError, match="quick"):
        tune(replace(request, effort="heroic"))
    with open_store(request.store) as store:
        assert store.jobs() == []
    assert not list(cache_directory().glob("run-*"))


def test_a_job_that_is_acquired_says_no_more_why_it_waited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_store(str(tmp_path / "store.db")) as store:
        job_id = store.create_job(request_data(request_in(tmp_path, SOURCE))).job_id
        acquire_job = store.acquire_job

        def told_at_the_last_moment(job_id: str) -> bool:
            with open_store(str(tmp_path / "store.db")) as theirs:
                theirs.explain_job(job_id, "waits for another")
            return acquire_job(job_id)

        monkeypatch.setattr(store, "acquire_job", told_at_the_last_moment)
        assert stored_jobs.acquire(store, job_id)
        assert (store.job(job_id).state, store.job(job_id).message) == (JobState.RUNNING, "")
