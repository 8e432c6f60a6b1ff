import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunery._errors import BudgetError, UsageError
from tunery.budgets import Meter, plan
from tunery.budgets.meter import EFFORTS, Plan
from tunery.domain import Budget

GOOD = {
    "10min": (600.0, None),
    "90s": (90.0, None),
    "1.5h": (5400.0, None),
    ".5h": (1800.0, None),
    "2.min": (120.0, None),
    " 10 min ": (600.0, None),
    "2 Minutes": (120.0, None),
    "1sec": (1.0, None),
    "3HOURS": (10800.0, None),
    "500trials": (None, 500),
    "1 trial": (None, 1),
    "10min,500trials": (600.0, 500),
    "500trials+10min": (600.0, 500),
    "2.0trials": (None, 2),
}
BAD = [
    "", " ", "min", "10", "-5min", "0s", "0.0h", "0trials", "1.5trials", "10min,5s", "5trials+6trials", "10min,",
    ",10min",
    "10 fortnights", "1e3s", "nan min", "inf h", "10min 5trials", "$2", "50kJ", "ten min", "10mins!", "--", "10ss",
    "9" * 400 + "trials", "9" * 400 + "s",
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), GOOD.items())
def test_budgets_are_read(text: str, expected: tuple[float | None, int | None]) -> None:
    assert Budget.parse(text) == Budget(*expected)


@pytest.mark.parametrize("text", BAD)
def test_malformed_budgets_are_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(BudgetError) as caught:
        Budget.parse(text)
    assert repr(text) in str(caught.value)
    assert "\n" not in str(caught.value)


budgets = st.builds(
    Budget,
    st.none() | st.integers(1, 10**7).map(float) | st.floats(1e-3, 1e12),
    st.none() | st.integers(1, 10**12),
).filter(lambda b: b.seconds is not None or b.trials is not None)


@given(budgets)
def test_a_budget_reads_back_what_it_shows(budget: Budget) -> None:
    again = Budget.parse(str(budget))
    assert again.trials == budget.trials
    assert again.seconds == (None if budget.seconds is None else pytest.approx(budget.seconds, rel=1e-5))


@given(st.text(max_size=20))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        budget = Budget.parse(text)
    except BudgetError:
        return
    assert budget.seconds is None or 0 < budget.seconds < float("inf")
    assert budget.trials is None or budget.trials > 0


def test_effort_decides_where_there_is_no_budget() -> None:
    for effort, each in EFFORTS.items():
        assert plan(Budget(), effort, 5).trials == 5 * each
        assert plan(Budget(seconds=60.0), effort, 5).trials is None
        assert plan(Budget(trials=7), effort, 5).trials == 7
    with pytest.raises(UsageError, match="quick, standard, full"):
        plan(Budget(), "heroic", 5)


@given(st.integers(1, 10**6), st.integers(0, 10**4))
def test_a_batch_leaves_each_task_a_second_turn(trials: int, tunable: int) -> None:
    limits = plan(Budget(trials=trials), "standard", tunable)
    assert 1 <= limits.batch <= 32
    assert limits.batch == 1 or 2 * limits.batch * max(tunable, 1) <= trials


@given(st.integers(0, 100), st.integers(0, 100), st.integers(0, 100))
def test_trials_in_flight_are_not_given_out_twice(limit: int, used: int, in_flight: int) -> None:
    left = Meter(Plan(None, limit, 8), used_trials=used).trials_left(in_flight)
    assert left == max(limit - used - in_flight, 0)


def test_earlier_runs_count() -> None:
    meter = Meter(Plan(100.0, None, 8), used_s=30.0, used_trials=5)
    assert (meter.seconds_left(50.0), meter.total_s(50.0), meter.trials) == (20.0, 80.0, 5)
    assert meter.trials_left(10**9) is None
    assert Meter(Plan(None, 1, 8)).seconds_left(1e9) is None
