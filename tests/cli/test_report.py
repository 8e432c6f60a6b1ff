"""Numbers as people and as programs read them."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunery._report import duration, milliseconds, plain, ratio, total
from tunery.domain import Budget, JobState, TaskState


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1.62, "1620"), (0.0163, "16.3"), (0.0085, "8.50"), (0.00052, "0.520"), (9.43e-6, "0.00943"), (0.0, "0"),
     (None, "-"), (math.inf, "-"), (math.nan, "-")],
)  # fmt: skip
def test_latencies_have_three_significant_digits(seconds: float | None, text: str) -> None:
    assert milliseconds(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0s"), (9.94, "9.9s"), (59.0, "59s"), (61.2, "1min 01s"), (7500.0, "2h 05min")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_ratios_and_totals_need_both_sides() -> None:
    assert ratio(2.0, 1.0) == "2.00x"
    assert ratio(None, 1.0) == ratio(1.0, None) == ratio(1.0, 0.0) == "-"
    tasks = [TaskState("a", "w", "a", "dense", 2, tunable=True, best_s=0.5),
             TaskState("b", "w", "b", "dense", 3, tunable=True, best_s=1.0, baseline_s=2.0)]  # fmt: skip
    assert total(tasks, "best_s") == 4.0
    assert total(tasks, "baseline_s") is None


def test_records_become_plain_data() -> None:
    value = {JobState.DONE: Budget(math.inf, 3), "path": Path("a/b"), "pair": (1, math.nan), "flag": True, "none": None}
    assert plain(value) == {
        "done": {"seconds": None, "trials": 3, "money": None, "currency": "", "joules": None},
        "path": "a/b", "pair": [1, None], "flag": True, "none": None,
    }  # fmt: skip


@given(st.recursive(st.floats() | st.text() | st.integers() | st.booleans() | st.none(),
                    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))  # fmt: skip
def test_whatever_is_plain_is_json(value: object) -> None:
    json.dumps(plain(value), allow_nan=False)
