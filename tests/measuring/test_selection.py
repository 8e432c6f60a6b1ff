import itertools
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tunery.domain import (
    Candidate,
    Measurement,
    Mode,
    Origin,
    Outcome,
    Provenance,
    Record,
    Verification,
)
from tunery.measuring.selection import finalists, winner
from tunery.store.records.ranking import Entry, ranked
from tunery.store.records.rows import record_row

FULL = Verification("reference", Verification.FULL, 0.1, passed=True)


def candidate(key: str, origin: Origin = Origin.SEARCH) -> Candidate:
    return Candidate(key, "t", "{}", origin)


def spread(level: float, width: float = 0.005, n: int = 11) -> tuple[float, ...]:
    return tuple(level * (1 + width * (2 * i / (n - 1) - 1)) for i in range(n))


def record(key: str, samples: Sequence[float], outcome: Outcome = Outcome.OK, mode: Mode = Mode.RACE) -> Record:
    measurement = Measurement(outcome, tuple(samples), mode)
    return Record(candidate(key), measurement, Provenance("d", "c", "m", "s"))


def final(
    level: float, width: float = 0.005, verification: Verification | None = FULL, **changes: object
) -> Measurement:
    return Measurement(
        **{
            "outcome": Outcome.OK,
            "samples_s": spread(level, width),
            "mode": Mode.FINAL,
            "verification": verification,
            **changes,
        }
    )


def keys(chosen: Sequence[Candidate]) -> list[str]:
    return [one.key for one in chosen]


def test_those_that_are_separated_from_the_best_stay_out() -> None:
    records = [
        record("a", spread(1.0)),
        record("b", spread(1.01)),
        record("c", spread(1.2)),
        record("d", [1.1, 0.9, 1.4]),
    ]
    assert keys(finalists(records, 10)) == ["a", "b", "d"]
    assert keys(finalists(records, 2)) == ["a", "b"]
    assert keys(finalists(records, 10, drift=0.3)) == ["a", "b", "d", "c"]


def test_only_races_count() -> None:
    records = [
        record("b", spread(0.5), Outcome.WRONG_RESULT),
        record("c", spread(0.5), mode=Mode.FINAL),
        record("d", spread(2.0)),
        record("e", ()),
    ]
    assert keys(finalists(records, 10)) == ["d"]
    assert finalists([], 3) == []


def test_one_that_was_given_up_by_less_than_the_machine_drifts_is_a_finalist() -> None:
    near, far = record("a", [1.09, 1.08], Outcome.ABANDONED), record("b", [1.2], Outcome.ABANDONED)
    assert keys(finalists([near, far, record("c", spread(1.0))], 10)) == ["c", "a"]
    assert finalists([near, far], 10) == [], "nobody lasted that they were given up for"


def test_several_races_of_a_candidate_count_as_one() -> None:
    records = [record("a", spread(1.0)), record("b", spread(1.01)), record("a", spread(1.0))]
    assert keys(finalists(records, 10)) == ["a", "b"]


def test_a_contaminated_race_does_not_keep_a_candidate_out() -> None:
    slowed = record("b", [2.0] * 9 + [1.01])
    assert keys(finalists([record("a", spread(1.0)), slowed], 10)) == ["a"]
    confessed = replace(slowed, measurement=replace(slowed.measurement, context={"contaminated": True}))
    assert keys(finalists([record("a", spread(1.0)), confessed], 10)) == ["a", "b"]


def test_the_choice_does_not_depend_on_the_order() -> None:
    records = [record(key, spread(level)) for key, level in (("c", 1.0), ("a", 1.0), ("b", 1.002), ("x", 1.5))]
    measured = [(candidate(key), final(level)) for key, level in (("c", 1.0), ("b", 1.002), ("a", 1.001), ("x", 1.5))]
    assert {tuple(keys(finalists(order, 3))) for order in itertools.permutations(records)} == {("a", "c", "b")}
    chosen = set()
    for order in itertools.permutations(measured):
        index = winner([one for one, _ in order], [one for _, one in order])
        assert index is not None
        chosen.add(order[index][0].key)
    assert chosen == {"a"}


def test_a_clear_winner_wins_and_a_tie_goes_to_the_baseline_if_it_is_in_it() -> None:
    candidates = [candidate("z"), candidate("a"), candidate("y", Origin.BASELINE)]
    assert winner(candidates, [final(1.0), final(1.1), final(1.2)]) == 0
    assert winner(candidates, [final(1.0), final(1.001), final(1.2)]) == 1
    assert winner(candidates, [final(1.0), final(1.001), final(1.003)]) == 2
    assert winner(candidates, [final(1.0), final(1.1), final(0.9)]) == 2


def test_nothing_unverified_wrong_or_raced_wins() -> None:
    two_inputs = Verification("reference", 2, 0.0, passed=True)
    wrong = Verification("reference", Verification.FULL, 9.0, passed=False)
    candidates = [candidate(key) for key in "abcdef"]
    measurements = [
        final(0.1, verification=None),
        final(0.1, verification=two_inputs),
        final(0.1, verification=wrong),
        final(0.1, mode=Mode.RACE),
        final(0.1, outcome=Outcome.RUN_FAILED),
        final(1.0),
    ]
    assert winner(candidates, measurements) == 5
    assert winner(candidates[:5], measurements[:5]) is None
    assert winner([], []) is None


def test_where_a_candidate_was_raced_alone_its_shared_samples_do_not_count() -> None:
    records = [record("a", spread(1.0)), record("b", spread(0.9), mode=Mode.SHARED), record("b", spread(1.2))]
    assert keys(finalists(records, 10)) == ["a"]


def test_a_shared_timing_is_allowed_the_deviation_that_sharing_was_seen_to_cause() -> None:
    shared = record("b", spread(1.08), mode=Mode.SHARED)
    allowed = replace(shared, measurement=replace(shared.measurement, context={"deviation": 0.06}))
    assert keys(finalists([record("a", spread(1.0)), shared], 10, drift=0.03)) == ["a"]
    assert keys(finalists([record("a", spread(1.0)), allowed], 10, drift=0.03)) == ["a", "b"]


@given(
    st.lists(st.lists(st.floats(0.9, 1.1), min_size=1, max_size=15).map(tuple), min_size=1, max_size=6),
    st.integers(-1, 5),
)
def test_a_store_names_the_same_best_as_the_finals(samples: list[tuple[float, ...]], baseline: int) -> None:
    contenders = [candidate(f"k{i}", Origin.BASELINE if i == baseline else Origin.SEARCH) for i in range(len(samples))]
    measurements = [final(1.0, samples_s=taken) for taken in samples]
    provenance = Provenance("d", "c", "m", "s")
    rows = [record_row(Record(c, m, provenance), 0.0) for c, m in zip(contenders, measurements, strict=True)]
    entries = [
        Entry(i, **{name: row[name] for name in Entry.__slots__ if name in row}, samples_s=measurements[i].samples_s)
        for i, row in enumerate(rows)
    ]
    chosen = winner(contenders, measurements)
    assert chosen is not None
    assert ranked(entries)[0].candidate_key == contenders[chosen].key


def test_a_noisy_final_does_not_let_the_key_choose_a_much_slower_kernel() -> None:
    fast, slow = final(1.0, width=0.5), final(1.2, width=0.5)
    assert winner([candidate("b"), candidate("a")], [fast, slow]) == 0
    assert winner([candidate("b"), candidate("a", Origin.BASELINE)], [fast, slow]) == 1, "the baseline still wins a tie"
    slower = final(1.4, width=0.5)
    assert winner([candidate("b"), candidate("a", Origin.BASELINE)], [fast, slower]) == 0
