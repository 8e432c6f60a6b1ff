import pytest

from tunery._errors import UsageError
from tunery.measure import Settings
from tunery.measure.hygiene import Flush, Repeats, drift, identical


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


def test_flushing_writes_more_than_the_caches_hold() -> None:
    flush = Flush(40 * 2**20)
    flush()
    assert flush._filler.nbytes >= 80 * 2**20
    assert flush._filler.min() == 1


def test_the_cache_mode_is_part_of_what_names_a_timing() -> None:
    assert len({Settings(cache=mode).key for mode in ("network", "warm", "cold")}) == 3
    assert Settings(cache="network") == Settings()
    with pytest.raises(UsageError, match="warm or cold"):
        Settings(cache="lukewarm")
