"""Where a run of a job is: any order of events that may happen keeps the state whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunery.tuning.reporting import Phase, RunState

KEYS = st.sampled_from("abcd")


@given(st.lists(st.tuples(st.sampled_from(list(Phase)), KEYS, st.booleans()), max_size=40))
def test_any_order_of_phases_and_finals_keeps_a_run_whole(events: list[tuple[Phase, str, bool]]) -> None:
    state, entered, open_ = RunState(tried_before=3), [Phase.IMPORTING], set[str]()
    for at_s, (phase, key, fits) in enumerate(events, 1):
        before = state
        try:
            state = state.enter(phase, float(at_s))
        except ValueError:
            assert state == before, "what is refused changes nothing"
        else:
            entered.append(phase)
        if state.phase is Phase.FINALS:
            state = state.prove(key, float(at_s)) if fits else state.leave_unproven(key)
            (open_.discard if fits else open_.add)(key)
        assert state.unproven == open_
        assert state.served == (entered == [Phase.IMPORTING])
        assert before.finals_at_s <= state.finals_at_s <= at_s
        assert state.tried_before == 3
    order = [list(Phase).index(phase) for phase in entered]
    assert order[:3] == [0, 1, 2][: len(order)]
    assert not {0, 1} & set(order[2:]), "nothing is imported or timed untuned once more"


@pytest.mark.parametrize(("phase", "after"), [("search", "importing"), ("finals", "importing"), ("finals", "baseline")])
def test_what_comes_too_early_is_refused(phase: str, after: str) -> None:
    with pytest.raises(ValueError, match=phase):
        RunState(Phase(after)).enter(Phase(phase), 0.0)


def test_finals_that_cost_much_of_the_time_since_the_last_ones_do_not_pay() -> None:
    state = RunState(Phase.SEARCH, finals_at_s=100.0)
    assert state.look_pays(1.9, 110.0)
    assert not state.look_pays(2.1, 110.0)
    assert not state.look_pays(0.0, 110.0), "none is due"
