"""The finals on machines that disturb them: nobody is left out for what others did."""

from collections.abc import Callable
from typing import Any

import pytest

from tunery.domain import Candidate, Outcome
from tunery.measure import winner
from tunery.measure.fake import gaussian

BenchMaker = Callable[..., Any]
FAST, SLOW = {"latency_s": 0.95e-3, "noise": gaussian(0.01)}, {"latency_s": 1e-3, "noise": gaussian(0.01)}
NAMES = [Candidate("fast", "t", ""), Candidate("slow", "t", "")]
ROUNDS_FROM_S = 0.33


@pytest.mark.parametrize(("end_s", "times_slower"), [(0.4, 10.0), (0.5, 20.0), (0.6, 40.0)])
def test_a_winner_that_others_disturbed_while_it_settled_is_timed_all_the_same(
    bench: BenchMaker, end_s: float, times_slower: float
) -> None:
    results = bench(interference=[(0.3, end_s, times_slower)]).finals(fast=FAST, slow=SLOW)
    assert winner(NAMES, results) == 0
    assert [len(result.samples_s) for result in results] == [12, 12]


def test_a_finalist_is_not_hopeless_for_rounds_in_which_only_it_was_disturbed(bench: BenchMaker) -> None:
    """The load ends somewhere in a round: of those that come after, samples are four times shorter."""
    for end_ms in range(130, 230, 10):
        machine = bench(interference=[(0.3, 0.3 + end_ms * 1e-3, 4.0)], seed=end_ms)
        results = machine.finals(fast=FAST, slow=SLOW)
        assert [result.outcome for result in results] == [Outcome.OK, Outcome.OK]
        assert len({len(result.samples_s) for result in results}) == 1, "one of them stopped before the other"


def test_rounds_that_nobody_disturbed_decide_where_there_are_enough(bench: BenchMaker) -> None:
    results = bench(interference=[(ROUNDS_FROM_S, 0.47, 3.0)]).finals(fast=FAST, slow=SLOW)
    assert winner(NAMES, results) == 0
    for result, latency_s in zip(results, (0.95e-3, 1e-3), strict=True):
        assert result.context["repeated_rounds"] == 5
        assert len(result.context["contaminated_s"]) > 5
        assert result.context["contaminated"] is False
        assert result.latency_s == pytest.approx(latency_s, rel=0.02)
