import random
from statistics import median

import pytest

from tunery._errors import UsageError
from tunery.domain import Candidate, Measurement, Mode, Outcome, Verification, paced
from tunery.measuring.hygiene import Repeats, drift, identical, pace
from tunery.measuring.selection import winner
from tunery.measuring.settings import MeasuringSettings


def test_the_very_times_of_another_candidate_are_noticed() -> None:
    repeats = Repeats()
    assert repeats.check("t", "a", [1.0, 2.0, 3.0, 4.0]) == ""
    assert repeats.check("t", "a", [1.0, 2.0, 3.0, 4.0]) == "", "a candidate may repeat itself"
    assert repeats.check("t", "b", [1.0, 2.0, 3.1]) == ""
    assert repeats.check("other", "b", [1.0, 2.0, 3.0]) == ""
    assert repeats.check("t", "b", [1.0, 2.0, 3.0, 9.0]) == "a"


def test_a_single_equal_sample_may_be_an_accident_four_are_not() -> None:
    repeats = Repeats()
    assert [repeats.check("t", key, [1.0]) for key in "abcd"] == ["", "", "", "a"]


def test_what_is_remembered_is_bounded() -> None:
    repeats = Repeats()
    for i in range(5000):
        repeats.check("t", "a", [float(i)])
    assert len(repeats._seen) <= 2048


def test_finalists_with_the_same_times_are_found() -> None:
    assert identical({0: [1.0, 2.0, 3.0], 1: [1.0, 2.0, 3.0], 2: [1.0, 2.0, 3.1], 3: [1.0], 4: [1.0]}) == {0, 1}


def test_drift_is_what_the_last_third_took_more_than_the_first() -> None:
    assert drift([[1.0] * 4 + [1.1] * 4, [2.0] * 4 + [2.2] * 4, [5.0]]) == pytest.approx(0.1)
    assert drift([[1.0] * 5]) is None


def test_the_cache_mode_is_part_of_what_names_a_timing() -> None:
    assert len({MeasuringSettings(cache=mode).key for mode in ("network", "warm", "cold")}) == 3
    assert MeasuringSettings(cache="network") == MeasuringSettings()
    with pytest.raises(UsageError, match="warm or cold"):
        MeasuringSettings(cache="lukewarm")


def test_the_pace_is_what_all_that_take_turns_share() -> None:
    one = {0: 1.0, 1: 2.0, 3: 1.0}
    assert pace([one, {0: 3.0, 1: 6.0, 3: 3.0}, {0: 9.0}]) == one
    assert pace([one, {0: 9.0}]) == {}
    assert pace([one, {0: 1.0, 1: 2.0, 2: 1.0}]) == {}, "they took part in different rounds"
    assert pace([]) == {}
    assert pace([{0: 0.0, 1: 0.0}, {0: 1.0, 1: 1.0}]) == {}


@pytest.mark.parametrize("wrong", [[1.0], ["1", "1"], [0.0, 1.0], [-1.0, 1.0], [float("nan"), 1.0], "11", None])
def test_a_pace_that_is_none_leaves_samples_as_they_are(wrong: object) -> None:
    assert paced([2.0, 3.0], {"pace": wrong}) == (2.0, 3.0)
    assert paced([2.0, 3.0], {"pace": [2.0, 1.0]}) == (1.0, 3.0)


def test_a_machine_whose_speed_moves_names_the_faster_all_the_same() -> None:
    """Between rounds its speed moves by half, now and then within one; candidates are 3 % apart, and names mislead."""
    keys = [Candidate(key, "t", "") for key in ("c", "b", "a")]
    lost = {True: 0, False: 0}
    for seed in range(100):
        chance = random.Random(seed)
        speeds = [chance.choice((1.0, 1.5)) for _ in range(40)]
        taken = [
            [level * (2.5 - speed if chance.random() < 0.15 else speed) * chance.gauss(1, 0.01) for speed in speeds]
            for level in (1.0, 1.03, 1.06)
        ]
        for with_pace in lost:
            context = {"pace": list(pace([dict(enumerate(one)) for one in taken]).values())} if with_pace else {}
            checked = Verification("", Verification.FULL, 0.0, passed=True)
            results = [Measurement(Outcome.OK, tuple(one), Mode.FINAL, "", context, checked) for one in taken]
            lost[with_pace] += winner(keys, results) != 0
            assert results[0].latency_s == median(taken[0]), "what is reported is what was measured"
    assert lost[True] <= 3
    assert lost[False] >= 20, "without it the machine decides too often"
