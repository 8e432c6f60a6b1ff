from hypothesis import given
from hypothesis import strategies as st

from tunery.budgets import Allocator, Standing


def standing(key: str, *best: float | None, weight: int = 1, flop: float = 1e6, batch_s: float = 1.0) -> Standing:
    return Standing(key, weight, flop, list(best), [batch_s] * len(best))


def test_each_task_first_gets_one_batch_in_the_given_order() -> None:
    standings = [standing(key) for key in "cab"]
    allocator = Allocator(standings)
    order = []
    for _ in range(3):
        chosen = allocator.next()
        assert chosen is not None
        order.append(chosen.task_key)
        chosen.best_s.append(1e-3)
        chosen.batch_s.append(1.0)
    assert order == ["c", "a", "b"]


def test_a_fresh_task_is_not_given_a_second_batch_before_its_first_ended() -> None:
    fresh = standing("a")
    fresh.in_flight = 1
    assert Allocator([fresh]).next() is None


def test_a_second_batch_is_given_only_where_no_other_task_is_free() -> None:
    busy, free = standing("busy", 1e-3, weight=100), standing("free", 1e-3)
    busy.in_flight = 1
    allocator = Allocator([busy, free])
    assert allocator.next() is free
    free.exhausted = True
    assert allocator.next() is busy
    busy.in_flight = 2
    assert allocator.next() is None


def test_exhausted_tasks_get_nothing() -> None:
    done = standing("a", 1e-3)
    done.exhausted = True
    assert Allocator([done]).next() is None
    assert Allocator([]).next() is None


def test_a_task_at_the_peak_gets_nothing_while_others_can_gain() -> None:
    # Both run 1e9 operations; `peak` does so at the highest rate seen, `slow` at a tenth of it.
    peak = standing("peak", 2e-3, 1.5e-3, 1e-3, weight=5, flop=1e9)
    slow = standing("slow", 1e-2, 1e-2, 1e-2, weight=1, flop=1e9)
    assert Allocator([peak, slow]).next() is slow


def test_gain_counts_weight_and_cost() -> None:
    rate = 1e30
    allocator = Allocator([])
    light, heavy = standing("a", 1e-3), standing("b", 1e-3, weight=7)
    assert allocator.gain_per_second(heavy, rate) == 7 * allocator.gain_per_second(light, rate)
    dear = standing("c", 1e-3, batch_s=4.0)
    assert allocator.gain_per_second(dear, rate) == allocator.gain_per_second(light, rate) / 4
    stuck, falling = standing("d", 1e-3, 1e-3, 1e-3), standing("e", 3e-3, 2e-3, 1e-3)
    assert allocator.gain_per_second(falling, rate) > allocator.gain_per_second(stuck, rate)


def test_a_task_without_anything_valid_is_not_forgotten_and_not_preferred() -> None:
    allocator = Allocator([])
    nothing = standing("a", None, None)
    assert 0 < allocator.gain_per_second(nothing, 1e9) < allocator.gain_per_second(standing("b", 1e-3), 1e9)
    assert Allocator([nothing]).next() is nothing


latencies = st.none() | st.floats(1e-9, 1e3)


@st.composite
def standings(draw: st.DrawFn) -> list[Standing]:
    made = []
    for number in range(draw(st.integers(0, 6))):
        best = draw(st.lists(latencies, max_size=6))
        one = standing(
            str(number), *best, weight=draw(st.integers(1, 50)), flop=draw(st.sampled_from([0.0, 1e3, 1e12]))
        )
        one.batch_s = [draw(st.floats(1e-3, 1e3)) for _ in best]
        one.in_flight, one.exhausted = draw(st.integers(0, 2)), draw(st.booleans())
        made.append(one)
    return made


@given(standings())
def test_the_choice_is_always_eligible_and_given_whenever_there_is_one(given_standings: list[Standing]) -> None:
    allocator = Allocator(given_standings)
    chosen = allocator.next()
    alive = [s for s in given_standings if not s.exhausted]
    free = [s for s in alive if not s.in_flight]
    second = [s for s in alive if s.batches and s.in_flight < 2]
    assert (chosen is None) == (not free and not second)
    if chosen is not None:
        assert chosen in (free or second)
        assert allocator.next() is chosen, "asking changes nothing"
        if any(not s.batches for s in free):
            assert not chosen.batches
        assert allocator.gain_per_second(chosen, allocator.peak_rate()) >= 0
