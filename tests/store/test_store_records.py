import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from store_samples import CHECKED, HALF_CHECKED, HERE, WRONG, multiply, record, records_of, task

from tunery._errors import NothingFoundError, StoreError, UsageError
from tunery.domain import Mode, Outcome, Provenance, Record
from tunery.store import Charge, Skipped, Store, open_store
from tunery.store.database import connection as connection_module

CONV = task()


@pytest.fixture(scope="module")
def one_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with open_store(str(tmp_path_factory.mktemp("records") / "store.db")) as store:
        yield store


@given(stored=records_of(CONV))
@settings(max_examples=150, deadline=None)
def test_a_record_of_any_content_comes_back_exactly(one_store: Store, stored: Record) -> None:
    one_store.add_record(CONV, stored)
    back = one_store.records(CONV.key, limit=1)
    assert repr(back) == repr([stored])  # repr tells -0.0 from 0.0 and finds NaN equal to itself


def test_records_and_tasks_survive_reopening(url: str) -> None:
    with open_store(url) as store:
        numbers = [store.add_record(CONV, record(CONV, f"c{n}", 0.1 / (n + 3))) for n in range(3)]
    assert numbers == sorted(set(numbers))
    with open_store(url) as store:
        assert [r.candidate.key for r in store.records(CONV.key)] == ["c0", "c1", "c2"]
        assert store.records(CONV.key)[1].measurement.samples_s == (0.1 / 4,) * 3
        assert store.task(CONV.key) == CONV
        assert store.tasks() == [CONV]


def test_the_weight_is_not_the_tasks_business(store: Store) -> None:
    store.add_record(replace(CONV, weight=7), record(CONV))
    assert store.task(CONV.key).weight == 1


def test_an_unknown_task_is_named(store: Store) -> None:
    with pytest.raises(NothingFoundError, match="no task abc"):
        store.task("abc")


def test_tasks_are_found_by_workload_and_kind(store: Store) -> None:
    dense, elsewhere = task("mm", kind="dense"), task(target="gpu")
    for each in (CONV, dense, elsewhere):
        store.add_record(each, record(each))
    assert {t.key for t in store.tasks(workload_key=CONV.workload.key)} == {CONV.key, elsewhere.key}
    assert store.tasks(kind="dense") == [dense]


def test_tasks_are_found_by_the_start_of_a_key_that_means_only_one(store: Store) -> None:
    for number, each in enumerate((CONV, task("mm", kind="dense"))):
        store.add_record(each, record(each, f"c{number}"))
    assert store.tasks_like(CONV.key[:6]) == store.tasks_like(CONV.key) == [CONV]
    assert store.tasks_like(CONV.workload.key) == [CONV]
    with pytest.raises(NothingFoundError, match="extract its network"):
        store.tasks_like("zzzz")
    with pytest.raises(UsageError, match=f"is the key of a candidate; give that of its task, {CONV.key}"):
        store.tasks_like(record(CONV).candidate.key)
    with pytest.raises(UsageError, match="give more of the one you mean"):
        store.tasks_like("")
    with pytest.raises(NothingFoundError):
        store.tasks_like("%")


def test_a_record_of_another_task_is_refused(store: Store) -> None:
    with pytest.raises(StoreError, match="cannot be stored under task"):
        store.add_record(task("other"), record(CONV))
    assert store.records() == []


def test_filters_agree_with_everything_given(store: Store) -> None:
    elsewhere = replace(HERE, device="device-b", compiler="fake-2")
    store.add_record(CONV, record(CONV, "a", job_id="j1"))
    store.add_record(CONV, record(CONV, "b", mode=Mode.FINAL))
    store.add_record(CONV, record(CONV, "c", None, outcome=Outcome.TIMEOUT, verification=None))
    store.add_record(CONV, record(CONV, "d", provenance=elsewhere))

    def keys(**wanted: object) -> str:
        return "".join(r.candidate.key for r in store.records(CONV.key, **wanted))  # type: ignore[arg-type]

    assert keys() == "abcd"
    assert keys(limit=2) == "cd"
    assert keys(provenance=HERE) == "abc"
    assert keys(provenance=elsewhere) == "d"
    assert keys(device="device-b") == "d"
    assert keys(compiler="fake-1") == "abc"
    assert keys(modes=[Mode.FINAL]) == "b"
    assert keys(outcomes=[Outcome.TIMEOUT, Outcome.CRASHED]) == "c"
    assert keys(job_id="j1") == "a"
    assert keys(outcomes=[]) == ""


def test_two_targets_of_one_workload_are_never_cross_served(store: Store) -> None:
    gpu, wide = task(target="gpu"), task(threads=4)
    assert len({CONV.key, gpu.key, wide.key}) == 3
    store.add_record(gpu, record(gpu, "c0"))
    for other in (CONV, wide):
        assert store.best(other.key, HERE) == []
        assert store.records(other.key) == []
        assert store.measured_keys(other.key, HERE) == set()
        assert store.skipped([other], HERE)[other.key] == [Skipped("target", gpu.target.key, 1)]
    assert len(store.best(gpu.key, HERE)) == 1


@pytest.mark.parametrize("field", ["dialect", "compiler", "device", "settings"])
def test_records_of_other_provenance_are_kept_but_not_served(store: Store, field: str) -> None:
    other: Provenance = replace(HERE, **{field: "another"})
    foreign = record(CONV, provenance=other)
    store.add_record(CONV, foreign)
    assert store.best(CONV.key, HERE) == []
    assert store.measured_keys(CONV.key, HERE) == set()
    assert store.best(CONV.key, other) == [foreign]
    (skipped,) = store.skipped([CONV], HERE)[CONV.key]
    assert skipped == Skipped(field, "another", 1)
    assert "another" in str(skipped)


def test_measured_keys_hold_every_outcome(store: Store) -> None:
    store.add_record(CONV, record(CONV, "good"))
    store.add_record(CONV, record(CONV, "good", mode=Mode.FINAL))
    store.add_record(CONV, record(CONV, "bad", None, outcome=Outcome.BUILD_FAILED, verification=None))
    assert store.measured_keys(CONV.key, HERE) == {"good", "bad"}


def test_best_is_the_fastest_not_the_slowest_and_counts_a_candidate_once(store: Store) -> None:
    for number in (5, 1, 4, 2, 3, 1):
        store.add_record(CONV, record(CONV, f"c{number}", number * 1e-3))
    assert [r.candidate.key for r in store.best(CONV.key, HERE, limit=3)] == ["c1", "c2", "c3"]
    assert len(store.best(CONV.key, HERE, limit=None)) == 5


def test_a_final_outranks_any_race(store: Store) -> None:
    store.add_record(CONV, record(CONV, "raced", 1e-9))
    store.add_record(CONV, record(CONV, "finalist", 1e-5))
    store.add_record(CONV, record(CONV, "finalist", 9e-3, mode=Mode.FINAL))
    store.add_record(CONV, record(CONV, "finalist", 2e-3, mode=Mode.FINAL))
    first, second = store.best(CONV.key, HERE, limit=2)
    assert (first.candidate.key, first.measurement.latency_s) == ("finalist", 2e-3)  # its latest final
    assert second.candidate.key == "raced"


def test_finals_are_ranked_by_what_was_timed_in_the_same_rounds(store: Store) -> None:
    """The slower one drew the fast rounds: only their pace tells."""
    for key, samples, pace in (("slower", (1.1e-3, 1.1e-3), (1.0, 1.0)), ("faster", (1.5e-3, 1.5e-3), (1.5, 1.5))):
        one = record(CONV, key, samples[0], mode=Mode.FINAL)
        store.add_record(CONV, replace(one, measurement=replace(
            one.measurement, samples_s=samples, context={**one.measurement.context, "pace": list(pace)}
        )))  # fmt: skip
    [best] = store.best(CONV.key, HERE, limit=1)
    assert best.candidate.key == "faster"
    assert best.measurement.latency_s == pytest.approx(1.5e-3), "what is reported is what was measured"


def test_nothing_unverified_wrong_failed_or_untimed_is_best(store: Store) -> None:
    refused = [
        record(CONV, "unchecked", 1e-9, verification=None),
        record(CONV, "half-checked", 1e-9, verification=HALF_CHECKED),
        record(CONV, "wrong", 1e-9, verification=WRONG, outcome=Outcome.WRONG_RESULT),
        record(CONV, "wrong-but-ok", 1e-9, verification=WRONG),
        record(CONV, "abandoned", 1e-9, outcome=Outcome.ABANDONED),
        record(CONV, "zero", 0.0),
        record(CONV, "nan", math.nan),
        record(CONV, "untimed", None),
        record(CONV, "fine-at-first", 1e-9),
        record(CONV, "fine-at-first", 1e-9, outcome=Outcome.WRONG_RESULT, verification=None),
        record(CONV, "fine-later", 1e-9, outcome=Outcome.WRONG_RESULT, verification=None),
        record(CONV, "fine-later", 1e-9, mode=Mode.FINAL),
        record(CONV, "failed-final", 1e-9),
        record(CONV, "failed-final", None, mode=Mode.FINAL, outcome=Outcome.CRASHED, verification=None),
    ]
    for each in refused:
        store.add_record(CONV, each)
    assert store.best(CONV.key, HERE, limit=None) == []
    reasons = {(s.reason, s.found): s.count for s in store.skipped([CONV], HERE)[CONV.key]}
    assert reasons[("failed", "wrong-result")] == 3
    assert reasons[("unverified", "")] == 3
    assert sum(reasons.values()) == len(refused)

    slow = record(CONV, "slow", 1.0, verification=CHECKED)
    store.add_record(CONV, slow)
    assert store.best(CONV.key, HERE, limit=None) == [slow]
    assert sum(s.count for s in store.skipped([CONV], HERE)[CONV.key]) == len(refused)


def test_a_task_has_more_candidates_than_a_query_takes_values(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "_MOST_VALUES", 100)
    store.add_record(CONV, record(CONV, "fast"))
    multiply(store, 700)
    assert store.skipped([CONV], HERE)[CONV.key] == []
    assert len(store.best(CONV.key, HERE, limit=650)) == 650


def test_record_and_charges_are_stored_together_or_not_at_all(store: Store) -> None:
    job = store.create_job({"model": "m"})
    good = Charge(job.job_id, CONV.key, "measure", "ok", 1.0, 2.0, 0.5)
    store.add_record(CONV, record(CONV, "paid"), [good])
    assert store.ledger(job.job_id) == [good]
    with pytest.raises(StoreError):
        store.add_record(CONV, record(CONV, "unpaid"), [good, replace(good, job_id="no such job")])
    assert store.measured_keys(CONV.key, HERE) == {"paid"}
    assert store.ledger(job.job_id) == [good]


def test_a_first_record_that_fails_does_not_hide_its_task(store: Store) -> None:
    charge = Charge("no such job", "", "build", "", 0, 0, 0)
    with pytest.raises(StoreError):
        store.add_record(CONV, record(CONV), [charge])
    assert store.tasks() == []
    store.add_record(CONV, record(CONV))
    assert store.tasks() == [CONV]


def test_context_that_is_no_plain_data_is_named(tmp_path: Path) -> None:
    with open_store(str(tmp_path / "s.db")) as store, pytest.raises(TypeError, match="no plain data"):
        store.add_record(CONV, record(CONV, context={"x": object()}))
