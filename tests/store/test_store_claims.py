import pytest
from store_samples import HERE, record, task

from tunery.domain import JobState, Outcome
from tunery.store import Store, open_store
from tunery.store._claims import end_claims
from tunery.store.database import connection as connection_module

TASK = task()


def job(store: Store) -> str:
    """Return a job that the store works on."""
    job_id = store.create_job({"model": "fake:x"}).job_id
    assert store.acquire_job(job_id)
    return job_id


def take(store: Store, job_id: str, *keys: str) -> set[str]:
    return store.claims.take(TASK.key, HERE, keys, job_id)


def test_what_a_live_job_has_claimed_is_no_other_jobs(url: str) -> None:
    with open_store(url) as one, open_store(url) as other:
        first, second = job(one), job(other)
        assert take(one, first, "a", "b") == {"a", "b"}
        assert take(other, second, "b", "c") == {"c"}
        assert take(one, first, "a", "b", "c") == {"a", "b"}


def test_a_claim_goes_with_its_record(url: str) -> None:
    with open_store(url) as one, open_store(url) as other:
        first, second = job(one), job(other)
        take(one, first, "a")
        one.add_record(TASK, record(TASK, "a", job_id=first))
        assert take(other, second, "a") == set()  # measured
        assert take(one, first, "a") == set()


def test_what_a_filter_dropped_was_not_measured(store: Store) -> None:
    first = job(store)
    store.add_record(TASK, record(TASK, "a", None, outcome=Outcome.FILTERED, verification=None))
    assert take(store, first, "a") == {"a"}


def test_a_claim_that_is_given_up_is_anybodys(url: str) -> None:
    with open_store(url) as one, open_store(url) as other:
        first, second = job(one), job(other)
        take(one, first, "a", "b")
        one.claims.give_up(TASK.key, HERE, ["a"], first)
        assert take(other, second, "a", "b") == {"a"}


@pytest.mark.parametrize("state", [JobState.STOPPED, JobState.DONE, JobState.PAUSED])
def test_a_job_that_is_no_longer_at_work_claims_nothing(url: str, state: JobState) -> None:
    with open_store(url) as one, open_store(url) as other:
        first, second = job(one), job(other)
        take(one, first, "a")
        one.release_job(first, state)
        assert take(other, second, "a") == {"a"}


def test_claims_are_of_one_task_under_the_same_conditions(url: str) -> None:
    with open_store(url) as one, open_store(url) as other:
        first, second = job(one), job(other)
        take(one, first, "a")
        elsewhere = type(HERE)(HERE.dialect, HERE.compiler, "device-b", HERE.settings)
        assert other.claims.take(TASK.key, elsewhere, ["a"], second) == {"a"}
        assert other.claims.take(task("dense").key, HERE, ["a"], second) == {"a"}


@pytest.mark.jobs
def test_more_claims_than_a_query_takes_values(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "_MOST_VALUES", 100)
    first = job(store)
    keys = [f"c{number}" for number in range(250)]
    assert take(store, first, *keys) == set(keys)


def test_a_query_takes_the_longest_list_that_is_given_to_one(store: Store) -> None:
    ended = [record(TASK, f"c{number}") for number in range(connection_module._MOST_VALUES + 1)]
    store.write(lambda connection: end_claims(connection, ended))
