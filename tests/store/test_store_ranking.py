from collections.abc import Sequence
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_samples import CHECKED, HALF_CHECKED, HERE, WRONG, multiply, record, task

from tunery.domain import Mode, Origin, Outcome, Record, Task
from tunery.store import Standing, Store, open_store
from tunery.store.records.entries import entries as stored_entries
from tunery.store.records.ranking import Entry, kept, ranked


def entry(row_id: int, key: str, latency_s: float | None = 1.0, **more: object) -> Entry:
    given_ = {"origin": "search", "mode": "race", "outcome": "ok", "deliverable": True, "rejected": False, **more}
    return Entry(row_id, key, latency_s=latency_s, **given_)  # type: ignore[arg-type]


_entries = st.lists(
    st.builds(
        entry,
        st.just(0),
        st.sampled_from("abcde"),
        st.none() | st.floats(1e-9, 1.0),
        origin=st.sampled_from([o.value for o in Origin]),
        mode=st.sampled_from([m.value for m in Mode]),
        outcome=st.sampled_from([o.value for o in Outcome]),
        deliverable=st.booleans(),
        rejected=st.booleans(),
    ),
    max_size=12,
).map(lambda found: [entry(i, e.candidate_key, e.latency_s, origin=e.origin, mode=e.mode, outcome=e.outcome,
                           deliverable=e.deliverable, rejected=e.rejected) for i, e in enumerate(found)])  # fmt: skip


def place(entry: Entry) -> tuple[object, ...]:
    final = entry.mode == "final"
    tie = final and entry.origin != "baseline"  # one sample each: only equal ones are tied, and the baseline wins
    return not final, entry.mode == "shared", entry.latency_s, tie, entry.candidate_key


@given(_entries)
def test_the_order_holds_for_all_histories(entries: list[Entry]) -> None:
    order = ranked(entries)
    assert len({e.candidate_key for e in order}) == len(order)
    assert all(e.outcome == "ok" and e.deliverable and not e.rejected and e.latency_s for e in order)
    for first, second in pairwise(order):
        assert place(first) < place(second)


@given(_entries, st.integers(0, 6))
def test_pruning_keeps_the_answer_the_baselines_and_the_wrong_results(entries: list[Entry], keep: int) -> None:
    survivors = kept(entries, keep)
    left = [e for e in entries if e.row_id in survivors]
    must = {e.row_id for e in entries if e.origin == "baseline" or e.rejected}
    assert must <= survivors
    baselines = {e.candidate_key for e in entries if e.origin == "baseline"}
    assert len({e.candidate_key for e in left if not e.rejected} - baselines) <= keep
    assert ranked(left)[:keep] == ranked(entries)[:keep]
    assert kept(left, keep) == survivors  # pruning again removes nothing
    assert {e.candidate_key for e in ranked(left)} <= {e.candidate_key for e in ranked(entries)}  # none comes back


def test_ties_go_to_the_smaller_key() -> None:
    assert [e.candidate_key for e in ranked([entry(1, "b"), entry(2, "a")])] == ["a", "b"]


def test_a_tie_of_finals_goes_to_the_baseline_then_to_the_smaller_key() -> None:
    def final(row_id: int, key: str, level: float, **more: object) -> Entry:
        samples = tuple(level * (0.99 + 0.002 * i) for i in range(11))
        return entry(row_id, key, level, mode="final", samples_s=samples, **more)

    close = [final(1, "c", 1.0), final(2, "b", 1.001), final(3, "z", 1.1, origin="baseline")]
    assert [e.candidate_key for e in ranked(close)] == ["b", "c", "z"]
    equal = [final(1, "c", 1.0), final(2, "b", 1.001), final(3, "z", 1.002, origin="baseline")]
    assert [e.candidate_key for e in ranked(equal)] == ["z", "b", "c"]
    assert kept(equal, 1) == {1, 3}, "the fastest stays: without it others would be tied"


def test_what_was_timed_beside_others_ranks_behind_what_was_timed_alone() -> None:
    order = ranked([entry(1, "shared", 0.5, mode="shared"), entry(2, "alone", 1.0), entry(3, "fin", 2.0, mode="final")])
    assert [e.candidate_key for e in order] == ["fin", "alone", "shared"]


def test_an_unverified_final_does_not_hide_a_verified_one() -> None:
    order = ranked([entry(1, "a", 2.0, mode="final"), entry(2, "a", 1.0, mode="final", deliverable=False)])
    assert [e.row_id for e in order] == [1]


def test_unverified_candidates_survive_only_where_verified_ones_leave_room() -> None:
    entries = [entry(1, "slow", 3.0), entry(2, "quick-unchecked", 1.0, deliverable=False), entry(3, "slower", 4.0)]
    assert kept(entries, 2) == {1, 3}
    assert kept(entries, 3) == {1, 2, 3}


def test_a_known_wrong_candidate_does_not_come_back_by_pruning() -> None:
    entries = [entry(1, "wrong", 1.0), entry(2, "wrong", outcome="wrong-result", rejected=True), entry(3, "right", 2.0)]
    assert kept(entries, 0) == {2}
    assert kept(entries, 1) == {2, 3}


CONV = task()
_numbers = count()
# Near one another, so that there are ties, and far.
_levels = st.sampled_from([1e-3, 1.002e-3, 1.004e-3, 1.1e-3, 2e-3]) | st.floats(1e-6, 1e-2)


@st.composite
def _stored(draw: st.DrawFn) -> Record:
    mode, level = draw(st.sampled_from(Mode)), draw(_levels)
    found = record(
        CONV,
        draw(st.sampled_from([*"abcdefgh", "ä", "Z"])),
        level,
        mode=mode,
        outcome=draw(st.sampled_from([Outcome.OK] * 4 + [Outcome.WRONG_RESULT, Outcome.CRASHED, Outcome.ABANDONED])),
        verification=draw(st.sampled_from([CHECKED] * 5 + [HALF_CHECKED, WRONG, None])),
        origin=draw(st.sampled_from(Origin)),
    )
    samples = tuple(level * one for one in draw(st.lists(st.floats(0.9, 1.1), max_size=13)))
    pace = draw(st.none() | st.just([draw(st.floats(0.5, 2.0))] * len(samples)))
    return replace(found, measurement=replace(found.measurement, samples_s=samples, context={"pace": pace}))


@pytest.mark.jobs
@given(st.lists(_stored(), max_size=24))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_store_ranks_as_the_rule_does(store: Store, stored: Sequence[Record]) -> None:
    one = replace(CONV, workload=replace(CONV.workload, key=f"workload-{next(_numbers)}"))
    store.add_records(one, [replace(r, candidate=replace(r.candidate, task_key=one.key)) for r in stored])
    rule = store.read(lambda connection: ranked(stored_entries(connection, one.key, HERE)))
    for origin in (None, *Origin):
        expected = [e.candidate_key for e in ranked(e for e in rule if origin in {None, e.origin})]
        for limit in (None, 1, 3):
            best = store.best(one.key, HERE, limit=limit, origin=origin)
            assert [r.candidate.key for r in best] == expected[:limit]
    standing = store.standings([one.key, "another task"], HERE)
    assert [standing[one.key].best] == (store.best(one.key, HERE) or [None])
    assert [standing[one.key].baseline] == (store.best(one.key, HERE, origin=Origin.BASELINE) or [None])
    assert standing["another task"] == Standing(None, None)


def test_what_is_known_of_many_tasks_takes_as_many_queries_as_of_one(store: Store) -> None:
    every = [task(f"op{number}") for number in range(12)]
    for one in every:
        store.add_records(one, [record(one, "base", 5e-3, origin=Origin.BASELINE), record(one, "fast", 1e-3)])
        store.add_records(one, [record(one, key, at, mode=Mode.FINAL) for key, at in (("fast", 2e-3), ("f", 2.001e-3))])
    queries = list[str]()

    def count_query(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        queries.append(statement)

    def asked(tasks: Sequence[Task]) -> int:
        queries.clear()
        found = store.standings([one.key for one in tasks], HERE)
        assert [found[one.key].best.candidate.key for one in tasks] == ["fast"] * len(tasks)
        assert all(found[one.key].searched for one in tasks)
        return len(queries)

    sa.event.listen(sa.Engine, "before_cursor_execute", count_query)
    try:
        assert asked(every) == asked(every[:1])
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", count_query)


def test_a_default_that_lost_the_finals_is_known_as_it_was_timed_in_them(store: Store) -> None:
    store.add_record(CONV, record(CONV, "base", 1e-3, origin=Origin.BASELINE))
    assert not store.standings([CONV.key], HERE)[CONV.key].searched
    store.add_record(CONV, record(CONV, "fast", 2e-3))
    store.add_record(CONV, record(CONV, "fast", 2e-3, mode=Mode.FINAL))
    lost = record(CONV, "base", 5e-3, mode=Mode.FINAL, origin=Origin.BASELINE, verification=None)
    store.add_record(CONV, lost)
    known = store.standings([CONV.key], HERE)[CONV.key]
    assert known.best is not None
    assert (known.best.candidate.key, known.default_final_s, known.searched) == ("fast", 5e-3, True)


@pytest.mark.parametrize("mode", [Mode.RACE, Mode.FINAL])
def test_the_best_is_found_without_reading_the_others(tmp_path: Path, mode: Mode) -> None:
    with open_store(str(tmp_path / "store.db")) as store:
        store.add_record(CONV, record(CONV, "base", 5e-3, origin=Origin.BASELINE))
        store.add_record(CONV, record(CONV, "fast", mode=mode))
        multiply(store, 50)
        few = steps_of_best(store)
        multiply(store, 50)
        assert [r.candidate.key for r in store.best(CONV.key, HERE)] == ["fast"]
        assert steps_of_best(store) < 2 * few


def steps_of_best(store: Store) -> int:
    """Return how many tens of steps SQLite's machine takes for the best record."""
    steps = 0

    def count_step() -> None:
        nonlocal steps
        steps += 1

    def watch(on: bool) -> None:
        store.read(lambda c: c.connection.driver_connection.set_progress_handler(count_step if on else None, 10))

    watch(True)
    store.best(CONV.key, HERE)
    watch(False)
    return steps
