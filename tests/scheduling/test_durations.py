"""Predictions from the first observation on, and not fooled by one straggler."""

import pytest

from tunery.scheduling import Durations


def test_own_observations_then_those_of_other_sorts():
    durations = Durations()
    assert durations.predict("build", "conv", 4) == 1.0
    durations.observe("build", "conv", 4, 2.0)
    assert durations.predict("build", "conv", 8) == 4.0
    assert durations.predict("build", "dense", 2) == 1.0


def test_a_straggler_does_not_move_the_median_and_a_slower_machine_does():
    durations = Durations()
    for n in range(20):
        durations.observe("measure", "conv", 1, 1000.0 if n == 7 else 1.0)
    assert durations.predict("measure", "conv", 1) == 1.0
    assert durations.predict("measure", "conv", 1, q=1.0) == 1000.0
    for _ in range(32):
        durations.observe("measure", "conv", 1, 3.0)
    assert durations.predict("measure", "conv", 1, q=0.9) == pytest.approx(3.0)
