"""The finals on machines that disturb them: nobody is left out for what others did."""

from collections.abc import Callable
from typing import Any

import pytest

from tunery.domain import Candidate, Outcome, Verification
from tunery.measuring.selection import winner
from tunery.testing.fake_measuring import gaussian

BenchMaker = Callable[..., Any]
FAST, SLOW = {"latency_s": 0.95e-3, "noise": gaussian(0.01)}, {"latency_s": 1e-3, "noise": gaussian(0.01)}
NAMES = [Candidate("fast", "t", ""), Candidate("slow", "t", "")]
ROUNDS_FROM_S = 0.11


@pytest.mark.parametrize(("end_s", "times_slower"), [(0.2, 10.0), (0.3, 20.0), (0.4, 40.0)])
def test_a_winner_that_others_disturbed_while_it_settled_is_timed_all_the_same(
    bench: BenchMaker, end_s: float, times_slower: float
) -> None:
    results = bench(interference=[(0.1, end_s, times_slower)]).finals(fast=FAST, slow=SLOW)
    assert winner(NAMES, results) == 0
    assert [len(result.samples_s) for result in results] == [12, 12]


def test_a_finalist_is_not_hopeless_for_rounds_in_which_only_it_was_disturbed(bench: BenchMaker) -> None:
    """The load ends somewhere in a round: of those that come after, samples are four times shorter."""
    for end_ms in range(130, 230, 10):
        machine = bench(interference=[(0.1, 0.1 + end_ms * 1e-3, 4.0)], seed=end_ms)
        results = machine.finals(fast=FAST, slow=SLOW)
        assert [result.outcome for result in results] == [Outcome.OK, Outcome.OK]
        assert len({len(result.samples_s) for result in results}) == 1, "one of them stopped before the other"


def test_rounds_that_nobody_disturbed_decide_where_there_are_enough(bench: BenchMaker) -> None:
    results = bench(interference=[(ROUNDS_FROM_S, ROUNDS_FROM_S + 0.14, 3.0)]).finals(fast=FAST, slow=SLOW)
    assert winner(NAMES, results) == 0
    for result, latency_s in zip(results, (0.95e-3, 1e-3), strict=True):
        assert result.context["repeated_rounds"] == 5
        assert len(result.context["contaminated_s"]) > 5
        assert result.context["contaminated"] is False
        assert result.latency_s == pytest.approx(latency_s, rel=0.02)


def test_those_that_are_behind_leave_early_and_those_that_are_near_stay(bench: BenchMaker) -> None:
    levels = {"best": 1e-3, "near": 1.002e-3, **{f"far{i}": (1.05 + 0.02 * i) * 1e-3 for i in range(10)}}
    scripts = {name: {"latency_s": level, "noise": gaussian(0.01)} for name, level in levels.items()}
    results = bench().finals(rounds=40, **scripts)
    taken = {name: len(result.samples_s) for name, result in zip(scripts, results, strict=True)}
    assert taken["best"] == taken["near"] == 40
    assert all(taken[name] <= 16 for name in taken if name.startswith("far"))
    assert [len(result.context["pace"]) for result in results] == list(taken.values()), "each has its own rounds' pace"
    named = [Candidate(name, "t", "") for name in scripts]
    assert winner(named, results) in {0, 1}


def test_where_one_is_left_it_need_not_run_on_alone(bench: BenchMaker) -> None:
    fast, slow = bench().finals(rounds=100, fast=FAST, slow={**SLOW, "latency_s": 1.1e-3})
    assert len(fast.samples_s) == len(slow.samples_s) == 40
    near = {**SLOW, "latency_s": 0.95e-3}
    assert [len(result.samples_s) for result in bench().finals(rounds=100, fast=FAST, near=near)] == [100, 100]


@pytest.mark.parametrize("seed", range(20))
def test_none_of_those_that_are_equal_is_left_behind_often(bench: BenchMaker, seed: int) -> None:
    scripts = {f"{i}": {"latency_s": 1e-3, "noise": gaussian(0.03)} for i in range(8)}
    results = bench(seed=seed).finals(rounds=40, **scripts)
    assert sum(len(result.samples_s) == 40 for result in results) >= 6


def test_who_leaves_early_need_not_be_verified_on_all_inputs_and_a_wrong_one_cannot_win(bench: BenchMaker) -> None:
    calls: list[int] = []

    def turns_wrong(inputs: list[Any]) -> list[Any]:
        calls.append(1)
        return [inputs[0] * (2 if len(calls) == 1 else 3)]

    wrong = {"latency_s": 0.8e-3, "noise": gaussian(0.01), "compute": turns_wrong}
    slow = {"latency_s": 1.3e-3, "noise": gaussian(0.01)}
    results = bench().finals(rounds=40, wrong=wrong, fast=FAST, near=SLOW, slow=slow)
    assert [result.outcome for result in results][:2] == [Outcome.WRONG_RESULT, Outcome.OK]
    full = Verification.FULL
    inputs = [result.verification.inputs for result in results]
    assert inputs == [1, full, full, 1], "who leaves, or is wrong, need not be checked further"
    assert winner([Candidate(name, "t", "") for name in ("wrong", "fast", "near", "slow")], results) == 1
