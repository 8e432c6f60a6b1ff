"""What more trials would probably bring."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunery.accounting.prices import Prices
from tunery.tuning.allocation.allocator import Cost, TaskProgress, believe
from tunery.tuning.allocation.outlook import outlook, reaching

PRICES = Prices("m", "USD", machine_hour=3.6, cores=2, kwh=0.36, source="", date="2025-01-01")
latencies = st.lists(st.floats(1e-6, 1e-1), min_size=1, max_size=8)


def standing(key: str, *best_s: float | None, weight: int = 1) -> TaskProgress:
    return TaskProgress(key, weight, 1e6, list(best_s), [8] * len(best_s), [Cost(1.0, 8.0)] * len(best_s))


@given(latencies, st.floats(1.0, 1e4), st.floats(1.0, 1e4))
def test_more_trials_are_expected_to_win_more_but_each_less_than_the_one_before(
    best_s: list[float], more: float, further: float
) -> None:
    gain = believe([8] * len(best_s), best_s)
    assert gain is not None
    assert gain.expected_s(0.0) == 0.0
    first, second, both = (gain.expected_s(n) for n in (more, more + further, more + 2 * further))
    assert 0.0 < first <= second <= both <= gain.best_s
    assert both - second <= (second - first) * (1 + 1e-9)


@given(latencies)
def test_what_a_task_may_win_falls_with_the_trials_that_it_has_had(best_s: list[float]) -> None:
    brief, long = believe([8], [best_s[-1]]), believe([8, 64, 512], [best_s[-1]] * 3)
    assert brief is not None
    assert long is not None
    assert long.expected_s(32) < brief.expected_s(32)


@given(latencies, st.integers(1, 1000))
def test_draws_are_no_slower_than_now_and_no_faster_than_the_machine(best_s: list[float], more: int) -> None:
    floor_s = 0.5 * best_s[-1]
    gain = believe([8] * len(best_s), best_s, floor_s)
    assert gain is not None
    random = np.random.default_rng(0)
    drawn = gain.draw(more, 400, random)
    assert drawn.max() <= gain.best_s
    assert drawn.min() >= floor_s * 0.97, "2 % are always left"
    assert set(gain.draw(0, 3, random)) == {gain.best_s}
    shares = np.quantile(drawn, (0.1, 0.5, 0.9))
    assert list(shares) == sorted(shares)


def test_the_interval_covers_eight_of_ten_courses_that_the_model_would_see() -> None:
    random, inside = np.random.default_rng(1), 0
    peak = TaskProgress("peak", 1, 1e12, [1e-3], [8], [Cost(1.0)], exhausted=True)  # so that no limit is near
    gain = believe([8, 8], [1e-3, 1e-3])
    assert gain is not None
    for seed in range(200):
        prospect = outlook([standing("a", 1e-3, 1e-3), peak], 0.0, 2, PRICES, seed)[-1]
        end_s = 1e-3 + float(gain.draw(prospect.trials, 1, random)[0])
        inside += prospect.low_s <= end_s <= prospect.high_s
    assert 140 <= inside <= 180


def test_the_outlook_begins_where_the_finals_ended() -> None:
    # Races saw 1 ms where the finals saw 1.2 ms: that difference is nothing to be won.
    lucky = standing("a", 2e-3, 1e-3, weight=3)
    proven = reaching(lucky, 1.2e-3)
    assert proven.latency_s == pytest.approx(1.2e-3)
    assert proven.best_s[0] == pytest.approx(2.4e-3)
    now_s = 3 * 1.2e-3 + 5e-4
    curve = outlook([proven], 5e-4, 2, PRICES)
    assert curve[0].high_s <= now_s
    assert curve[0].high_s > 0.99 * now_s, "in some case of ten the first trials bring nothing"
    assert [p.median_s for p in curve] == sorted((p.median_s for p in curve), reverse=True)


def test_a_task_that_was_not_reached_has_its_untuned_latency_and_the_prior_gain() -> None:
    reached, missed = standing("a", 2e-3, 1e-3), standing("b")
    assert outlook([reached, missed], 0.0, 2, PRICES) == (), "nothing is known of it"
    curve = outlook([reached, reaching(missed, 5e-2)], 0.0, 2, PRICES)
    assert curve[0].high_s <= 1e-3 + 5e-2
    assert curve[-1].median_s < 5e-2, "the trials go where the most is to be won"
    assert curve[-1].seconds > 0
    left_out = reaching(standing("c", None, None), 5e-2)
    left_out.exhausted = True
    assert outlook([reached, left_out], 0.0, 2, PRICES)[-1].low_s > 5e-2, "what was given up stays as it is"
    assert outlook([left_out], 0.0, 2, PRICES) == ()


def test_where_the_machine_is_not_kept_busy_more_takes_longer_and_costs_more() -> None:
    tasks = [standing("a", 1e-3, 1e-3)]
    busy, slack = (outlook(tasks, 0.0, 2, PRICES, pace=pace)[-1] for pace in (1.0, 2.0))
    assert slack.seconds == pytest.approx(2.0 * busy.seconds)
    assert (slack.trials, slack.joules, slack.median_s) == (busy.trials, busy.joules, busy.median_s)
    assert slack.money > busy.money
