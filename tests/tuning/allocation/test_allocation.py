from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunery.accounting.prices import load_prices
from tunery.tuning.allocation.allocator import Allocator, Cost, RoundRobin, TaskProgress, Unit


def standing(key: str, *best: float | None, weight: int = 1, flop: float = 1e6, batch_s: float = 1.0) -> TaskProgress:
    return TaskProgress(key, weight, flop, list(best), [8] * len(best), [Cost(batch_s)] * len(best))


MEAN_S = 1 / 8
"""What a trial takes in `standing`."""
MORE = (1e30, 8, MEAN_S)
"""The highest rate, so that nothing is near it, the trials of a batch, and what one takes."""


def test_one_slow_build_does_not_make_a_task_look_dear_for_ever() -> None:
    allocator = Allocator([standing(key, 1e-3) for key in "abc"])
    unlucky = TaskProgress("d", 1, 1e6, [1e-3], [4], [Cost(4.0)])
    assert allocator.trial_cost(unlucky, MEAN_S) < 0.5
    unlucky.ended(1e-3, 60, Cost(60.0))
    assert allocator.trial_cost(unlucky, MEAN_S) > 0.8, "where it is dear again and again, it is"


def test_each_task_first_gets_one_batch_in_the_given_order() -> None:
    standings = [standing(key) for key in "cab"]
    allocator = Allocator(standings)
    order = []
    for _ in range(3):
        chosen = allocator.next(8)
        assert chosen is not None
        order.append(chosen.task_key)
        chosen.ended(1e-3, 8, Cost(1.0))
    assert order == ["c", "a", "b"]


def test_a_fresh_task_is_not_given_a_second_batch_before_its_first_ended() -> None:
    fresh = standing("a")
    fresh.in_flight = 1
    assert Allocator([fresh]).next(8) is None


def test_a_second_batch_is_given_only_where_no_other_task_that_pays_is_free() -> None:
    busy, free = standing("busy", 1e-3, weight=2), standing("free", 1e-3)
    busy.in_flight = 1
    allocator = Allocator([busy, free])
    assert allocator.next(8) is free
    free.exhausted = True
    assert allocator.next(8) is busy
    busy.in_flight = 2
    assert allocator.next(8) is None


def test_exhausted_tasks_get_nothing() -> None:
    done = standing("a", 1e-3)
    done.exhausted = True
    assert Allocator([done]).next(8) is None
    assert Allocator([]).next(8) is None


def test_a_task_at_the_peak_gets_nothing_while_others_can_gain() -> None:
    # Both run 1e9 operations; `peak` does so at the highest rate seen, `slow` at a tenth of it.
    peak = standing("peak", 2e-3, 1.5e-3, 1e-3, weight=5, flop=1e9)
    slow = standing("slow", 1e-2, 1e-2, 1e-2, weight=1, flop=1e9)
    assert Allocator([peak, slow]).next(8) is slow


def test_gain_counts_weight_and_cost() -> None:
    allocator = Allocator([])
    light, heavy = standing("a", 1e-3), standing("b", 1e-3, weight=7)
    assert allocator.gain_per_cost(heavy, *MORE) == pytest.approx(7 * allocator.gain_per_cost(light, *MORE))
    dear = standing("c", 1e-3, batch_s=4.0)
    part = allocator.gain_per_cost(dear, *MORE) / allocator.gain_per_cost(light, *MORE)
    assert part == pytest.approx(2 / (4 + 1)), "after eight trials half of what is believed of its cost is its own"
    stuck, falling = standing("d", 1e-3, 1e-3, 1e-3), standing("e", 3e-3, 2e-3, 1e-3)
    assert allocator.gain_per_cost(falling, *MORE) > allocator.gain_per_cost(stuck, *MORE)


def test_a_task_without_anything_valid_is_not_forgotten_and_not_preferred() -> None:
    allocator = Allocator([])
    nothing = standing("a", None, None)
    assert 0 < allocator.gain_per_cost(nothing, *MORE) < allocator.gain_per_cost(standing("b", 1e-3), *MORE)
    assert Allocator([nothing]).next(8) is nothing


latencies = st.none() | st.floats(1e-9, 1e3)


@st.composite
def standings(draw: st.DrawFn) -> list[TaskProgress]:
    made = []
    for number in range(draw(st.integers(0, 6))):
        best = draw(st.lists(latencies, max_size=6))
        one = standing(
            str(number), *best, weight=draw(st.integers(1, 50)), flop=draw(st.sampled_from([0.0, 1e3, 1e12]))
        )
        one.costs = [Cost(draw(st.floats(1e-3, 1e3))) for _ in best]
        one.in_flight, one.exhausted = draw(st.integers(0, 2)), draw(st.booleans())
        made.append(one)
    return made


@given(standings())
def test_the_choice_is_eligible_pays_and_does_not_change_by_asking(given_standings: list[TaskProgress]) -> None:
    allocator = Allocator(given_standings)
    chosen = allocator.next(8)
    alive = [s for s in given_standings if not s.exhausted]
    fresh = [s for s in alive if not s.batches and not s.in_flight]
    if fresh:
        assert chosen is fresh[0]
    if not any(s.in_flight for s in alive):
        assert (chosen is None) == (not alive), "whatever pays most is never preempted"
    if chosen is not None:
        assert chosen in alive
        assert chosen.in_flight < 2
        assert chosen.task_key not in allocator.preempted(8)
        assert allocator.next(8) is chosen, "asking changes nothing"
        assert allocator.gain_per_cost(chosen, allocator.peak_rate(), 8, allocator.mean_cost()) >= 0


def test_a_task_that_no_longer_pays_is_preempted_even_while_the_others_are_busy_and_comes_back() -> None:
    paying, spent = standing("paying", 8e-3, weight=20), standing("spent", *[1e-3] * 12)
    paying.in_flight = 2
    allocator = Allocator([paying, spent])
    assert allocator.preempted(8) == {"spent"}
    assert allocator.next(8) is None, "the machine waits rather than work where nothing is to be won"
    paying.in_flight = 0
    for _ in range(40):
        paying.ended(4e-4, 8, Cost(1.0))
    assert allocator.preempted(8) == set()
    paying.in_flight = 1
    assert allocator.next(8) is spent


def test_gain_is_weighed_against_the_unit_of_the_users_budget() -> None:
    # One keeps the machine long and idle, the other briefly and hot.
    idle = TaskProgress("idle", 1, 1e6, [1e-3], [8], [Cost(held_core_s=4.0, joules=10.0)])
    hot = TaskProgress("hot", 1, 1e6, [1e-3], [8], [Cost(held_core_s=1.0, joules=40.0)])
    assert Allocator([idle, hot], Unit.TIME).next(8) is hot
    assert Allocator([idle, hot], Unit.ENERGY).next(8) is idle
    prices = load_prices()
    assert Allocator([idle, hot], Unit.MONEY, prices).next(8) is hot, "the machine is paid by the hour"
    dear_power = replace(prices, kwh=1e3)
    assert Allocator([idle, hot], Unit.MONEY, dear_power).next(8) is idle


def test_round_robin_gives_all_tasks_the_same() -> None:
    standings = [standing(key) for key in "abc"]
    robin, given_to = RoundRobin(standings), []
    for _ in range(9):
        chosen = robin.next(8)
        assert chosen is not None
        given_to.append(chosen.task_key)
        chosen.ended(1e-3 if chosen.task_key == "a" else None, 8, Cost(1.0))
    assert sorted(given_to) == [*"aaabbbccc"]
