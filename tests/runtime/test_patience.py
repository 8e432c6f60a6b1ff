"""How long we wait for others to leave our cores."""

from hypothesis import given
from hypothesis import strategies as st

from tunery.runtime.foreign_load import Foreign


def test_measuring_waits_no_longer_than_the_patience_and_goes_on_marked() -> None:
    foreign = Foreign(2, patience_s=3.0)
    foreign.look(0.0, 0.0)
    assert foreign.share == foreign.share.__class__(cores=2, waiting=False, disturbed=False)
    for at_s in (1.0, 2.0):
        foreign.look(at_s, 1.0)
        assert (foreign.share.cores, foreign.share.waiting, foreign.share.disturbed) == (1, True, True)
    foreign.look(3.0, 1.0)
    assert (foreign.share.cores, foreign.share.waiting, foreign.share.disturbed) == (1, False, True)
    foreign.look(4.0, 0.3)  # not yet quiet
    assert foreign.share.disturbed
    foreign.look(5.0, 0.1)
    assert (foreign.share.cores, foreign.share.waiting, foreign.share.disturbed) == (2, False, False)
    foreign.look(5.5, 0.3)
    assert not foreign.share.disturbed
    foreign.look(6.0, 1.0)
    assert not foreign.share.waiting, "half a quiet second gives a twentieth of patience"
    foreign.look(106.0, 0.0)
    foreign.look(107.0, 1.0)
    assert foreign.share.waiting


def test_who_is_in_a_hurry_waits_less() -> None:
    foreign = Foreign(2, patience_s=30.0)
    foreign.limit_patience(1.5)
    for at_s, waiting in ((0.0, True), (1.0, True), (2.0, False)):
        foreign.look(at_s, 1.0)
        assert foreign.share.waiting == waiting
    foreign.limit_patience(10.0)
    foreign.look(3.0, 1.0)
    assert not foreign.share.waiting, "more time brings no patience back"
    foreign.look(103.0, 0.0)
    foreign.look(104.0, 1.0)
    assert foreign.share.waiting


def test_the_first_disturbed_look_covers_the_time_since_the_one_before() -> None:
    foreign = Foreign(2)
    for at_s, taken in ((1.0, 0.0), (2.0, 0.0), (3.0, 1.5), (4.0, 0.0)):
        foreign.look(at_s, taken)
    assert foreign.dirty_since(0.0) == 2.0
    assert foreign.dirty_since(2.5) == 2.5
    assert foreign.dirty_since(3.0) is None


@given(looks=st.lists(st.tuples(st.floats(0.01, 5.0), st.floats(0.0, 4.0)), max_size=60))
def test_the_wait_is_bounded_and_a_core_is_always_left(looks: list[tuple[float, float]]) -> None:
    foreign, at_s, waited_s = Foreign(2, patience_s=10.0), 0.0, 0.0
    for step_s, taken in looks:
        waiting = foreign.share.waiting
        at_s += step_s
        foreign.look(at_s, taken)
        waited_s += step_s if waiting and foreign.share.waiting else 0.0
        assert 1 <= foreign.share.cores <= 2
    assert waited_s <= 10.0 + 0.1 * at_s + 1e-9
