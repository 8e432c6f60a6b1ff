from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tunery.domain import Mode, Origin, Outcome
from tunery.store._ranking import Entry, kept, ranked


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
