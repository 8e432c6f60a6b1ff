from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunery._errors import BudgetError, UsageError
from tunery.accounting.meter import EFFORTS, Plan, plan
from tunery.accounting.prices import Prices, load_prices
from tunery.domain import Budget, Spend
from tunery.tuning.account import RunBudget

GOOD = {
    "10min": (600.0, None),
    "90s": (90.0, None),
    "1.5h": (5400.0, None),
    ".5h": (1800.0, None),
    "2.min": (120.0, None),
    " 10 min ": (600.0, None),
    "2 Minutes": (120.0, None),
    "2sec": (2.0, None),
    "3HOURS": (10800.0, None),
    "500trials": (None, 500),
    "1 trial": (None, 1),
    "10min,500trials": (600.0, 500),
    "500trials+10min": (600.0, 500),
    "2.0trials": (None, 2),
}
SPENT = {
    "$2": Budget(money=2.0, currency="USD"),
    "$ 0.05": Budget(money=0.05, currency="USD"),
    "2USD": Budget(money=2.0, currency="USD"),
    "2$": Budget(money=2.0, currency="USD"),
    "2.5 €": Budget(money=2.5, currency="EUR"),
    "1.5 eur": Budget(money=1.5, currency="EUR"),
    "€3": Budget(money=3.0, currency="EUR"),
    "50kJ": Budget(joules=5e4),
    "2.5 Wh": Budget(joules=9e3),
    "10min,$2,50kJ,500trials": Budget(600.0, 500, 2.0, "USD", 5e4),
}
BAD = [
    "", " ", "min", "10", "-5min", "0s", "0.0h", "0trials", "1.5trials", "10min,5s", "5trials+6trials", "10min,",
    ",10min",
    "10 fortnights", "1e3s", "nan min", "inf h", "10min 5trials", "ten min", "$", "$0", "$-2", "-$2", "-2$", "¤5", "5¤",
    "5 zorkmid",
    "$2,€3", "$2,$3", "0kJ", "50kJ,1Wh",
    "0.001s", "1s", "0.1J", "9J", "0.002Wh", "10mins!", "--", "10ss",
    "9" * 400 + "trials", "9" * 400 + "s",
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), GOOD.items())
def test_budgets_are_read(text: str, expected: tuple[float | None, int | None]) -> None:
    assert Budget.parse(text) == Budget(*expected)


@pytest.mark.parametrize(("text", "expected"), SPENT.items())
def test_budgets_of_money_and_energy_are_read(text: str, expected: Budget) -> None:
    assert Budget.parse(text) == expected


def test_a_budget_in_several_texts_is_one() -> None:
    assert Budget.parse(["10min", "$2,500trials"]) == Budget(600.0, 500, 2.0, "USD")
    with pytest.raises(BudgetError, match="one kind"):
        Budget.parse(["10min", "5min"])


@pytest.mark.parametrize("text", BAD)
def test_malformed_budgets_are_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(BudgetError) as caught:
        Budget.parse(text)
    assert repr(text)[:60] in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "500trials" in str(caught.value), "it shows a right one"


budgets = st.builds(
    Budget,
    st.none() | st.integers(2, 10**7).map(float) | st.floats(2.0, 9e8),
    st.none() | st.integers(1, 10**9),
    st.just(0.25) | st.floats(1e-4, 9e8),
    st.sampled_from(["USD", "CHF"]),
    st.none() | st.floats(10.0, 9e14),
)


@given(budgets)
def test_a_budget_reads_back_what_it_shows(budget: Budget) -> None:
    again = Budget.parse(str(budget))
    assert again.trials == budget.trials
    assert again.currency == budget.currency
    for kind in ("seconds", "money", "joules"):
        amount = getattr(budget, kind)
        assert getattr(again, kind) == (None if amount is None else pytest.approx(amount, rel=1e-5))


@given(st.text(max_size=20))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        budget = Budget.parse(text)
    except BudgetError:
        return
    assert budget.seconds is None or 0 < budget.seconds < float("inf")
    assert budget.trials is None or budget.trials > 0
    assert budget.money is None or budget.money > 0


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


FRESH = Spend()


class Used:
    """Stands in for the account of a run: what it has used."""

    power = SimpleNamespace(modelled=False)

    def __init__(self, joules: float = 0.0, machine_s: float = 0.0) -> None:
        self.prices = Prices("m", "USD", machine_hour=3.6, cores=2, kwh=0.36, source="", date="2025-01-01")
        self.joules, self.machine_s, self.core_s = (lambda: joules), (lambda: machine_s), (lambda: 0.0)


def run_budget(
    limits: Plan, before: Spend = FRESH, elapsed_s: float = 0.0, joules: float = 0.0, machine_s: float = 0.0
) -> RunBudget:
    """A run on four cores that has ended after so many seconds."""
    budget = RunBudget(limits, before, Used(joules, machine_s), 4, 0.0)  # type: ignore[arg-type]
    budget._ended = elapsed_s or 1e-9
    return budget


@given(st.integers(0, 100), st.integers(0, 100), st.integers(0, 100))
def test_trials_in_flight_are_not_given_out_twice(limit: int, used: int, in_flight: int) -> None:
    left = run_budget(Plan(None, limit, 8), Spend(trials=used)).trials_left(in_flight)
    assert left == max(limit - used - in_flight, 0)


def test_earlier_runs_count() -> None:
    budget = run_budget(Plan(100.0, None, 8), Spend(wall_s=30.0, trials=5), 50.0)
    assert (budget.left_s(), budget.spend().wall_s, budget.trials) == (20.0, 80.0, 5)
    assert budget.trials_left(10**9) is None
    assert run_budget(Plan(None, 1, 8), elapsed_s=1e9).left_s() is None


def test_money_and_energy_are_limits_too() -> None:
    # Four cores of a sheet for two: 7.2 an hour, 0.002 a second; 10 W of electricity are 0.000001 a second.
    limits = Plan(None, None, 8, money=1.0)
    budget = run_budget(limits, elapsed_s=100.0, joules=1000.0, machine_s=100.0)
    assert budget.spend().money == pytest.approx(0.2 + 0.0001)
    assert budget.left_s() == pytest.approx((1.0 - 0.2001) / 0.002001)
    half = run_budget(limits, elapsed_s=100.0, joules=1000.0, machine_s=50.0)
    assert half.spend().money == pytest.approx(0.1001), "others have paid half of the machine"
    energy = run_budget(Plan(1e6, None, 8, joules=5000.0), Spend(wall_s=100.0, joules=1000.0), 100.0, 1000.0, 100.0)
    assert energy.left_s() == pytest.approx(300.0)
    assert energy.remaining() == {"seconds": 1e6 - 200.0, "joules": 3000.0}
    assert energy.whole_s() == pytest.approx(500.0)


def test_the_shipped_sheet_names_a_machine_a_source_and_a_date() -> None:
    prices = load_prices()
    assert prices.machine_hour > 0
    assert prices.source.startswith("https://")
    assert prices.date >= "2025"
    assert "c7a.large" in prices.machine
    assert prices.of_machine(3600.0 * prices.cores) == pytest.approx(prices.machine_hour)


SHEET = """
machine = "my own"
currency = "CHF"
machine_hour = 0
cores = 8
kwh = 0.27
source = "the bill"
date = 2025-06-30
"""


def test_a_users_sheet_is_read_from_the_option_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(SHEET)
    assert load_prices(str(path)).of_energy(3.6e6) == pytest.approx(0.27)
    monkeypatch.setenv("TUNERY_PRICES", str(path))
    assert load_prices().currency == "CHF"
    load_prices().check(Budget.parse("2CHF"))
    with pytest.raises(BudgetError, match="2CHF"):
        load_prices().check(Budget.parse("$2"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("kwh = 0.27", ""), ("kwh = 0.27", "kwh = -1"), ("kwh = 0.27", "kwh = nan"), ("kwh = 0.27", 'kwh = "0.27"'),
        ('"CHF"', '"zorkmid"'), ("cores = 8", "cores = 0"), ("date = 2025-06-30", 'date = "June"'),
        ("cores = 8", "cores = 8\nspeed = 3"), ("machine_hour", "machine hour"), ('"my own"', "7"),
    ],
)  # fmt: skip
def test_a_sheet_that_cannot_be_right_is_refused(tmp_path: Path, old: str, new: str) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(SHEET.replace(old, new))
    with pytest.raises(BudgetError, match="price"):
        load_prices(str(path))


def test_a_sheet_on_which_all_is_free_limits_nothing(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(SHEET.replace("0.27", "0"))
    with pytest.raises(BudgetError, match="free"):
        load_prices(str(path)).check(Budget.parse("2CHF"))
    with pytest.raises(BudgetError, match="cannot be read"):
        load_prices(str(tmp_path / "none.toml"))


def test_money_that_does_not_pay_the_start_of_a_job_is_refused_by_its_price() -> None:
    prices = load_prices()
    prices.check(Budget.parse("$0.0001"))
    with pytest.raises(BudgetError, match=r"before its first measurement.*2USD"):
        prices.check(Budget.parse("$0.00001"))


def test_other_times_than_a_jobs_may_be_short() -> None:
    assert Budget.parse("0.1s", least={}).seconds == 0.1
