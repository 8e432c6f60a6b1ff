import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tunery.measuring.degree import BOUND, Degree


def batches(degree: Degree, sharing: dict[int, float], count: int = 40, seed: int = 0) -> list[int]:
    """The degrees of successive batches on a device where `sharing[d]` is the deviation at degree d."""
    random = np.random.default_rng(seed)
    taken = []
    for _ in range(count):
        taken.append(degree.degree)
        noise = 0.01 * random.standard_normal(degree.audits(16))
        degree.observe([sharing.get(degree.degree, 0.0) + float(one) for one in noise])
    return taken


def test_harmless_sharing_is_raised_to_all_slots() -> None:
    assert batches(Degree(8, 2), {})[-1] == 8


def test_a_task_that_suffers_is_cut_to_where_it_does_not() -> None:
    sharing = {d: 0.04 * (d - 1) for d in range(1, 9)}  # one neighbour is bearable, two are not
    degree = Degree(8, 8)
    taken = batches(degree, sharing, 200)
    assert taken[0] == 8
    assert max(taken[150:]) <= 3
    assert sum(d > 2 for d in taken[100:]) <= 12, "it is tried again, ever more rarely"


def test_two_slots_that_share_a_core_end_at_one_and_are_tried_again() -> None:
    taken = batches(Degree(2, 2), {2: 0.4}, 60)
    assert taken[:2] == [2, 1]
    assert 2 in taken[2:], "the disturbance may have gone"
    assert sum(d == 2 for d in taken) <= 6


def test_a_disturbance_that_goes_is_forgotten() -> None:
    degree = Degree(2, 2)
    batches(degree, {2: 0.4}, 10)
    assert batches(degree, {}, 40)[-1] == 2


def test_failures_beside_others_cut_at_once() -> None:
    degree = Degree(4, 4)
    assert degree.observe([0.0], failures=1) == 3


def test_what_is_forgiven_is_what_was_seen() -> None:
    degree = Degree(4, 4)
    assert degree.deviation == BOUND, "nothing was seen yet"
    degree.observe([0.02, 0.03, 0.02, 0.01])
    assert degree.deviation == 0.02
    assert Degree(1, 1).deviation == 0.0
    assert Degree(1, 5).audits(16) == 0


@given(st.integers(1, 32), st.integers(0, 40), st.lists(st.lists(st.floats(-0.1, 1.0), max_size=5), max_size=40))
def test_the_degree_stays_between_one_and_the_slots(slots: int, start: int, looks: list[list[float]]) -> None:
    degree = Degree(slots, start)
    for look in looks:
        assert 1 <= degree.observe(look) <= slots
        assert 0.0 <= degree.deviation <= degree.bound
        assert degree.audits(8) <= 8
