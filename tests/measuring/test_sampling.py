import itertools
import math
import time
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tunery.dialects import Array
from tunery.measuring.racing import RaceVerdict, Rule
from tunery.measuring.sampling import BadTimeError, Race, Sampler, clock_overhead, run_race
from tunery.measuring.settings import MeasuringSettings
from tunery.testing.fake_device import FakeDevice
from tunery.testing.fake_measuring import FakeKernel, NoiseScript, gaussian


def nothing(inputs: Sequence[Array]) -> list[Array]:
    return []


def sampler(
    machine: FakeDevice,
    latency_s: float,
    overhead_s: float = 0.0,
    times: Sequence[float] = (),
    noise: NoiseScript | None = None,
    flush: Callable[[], None] | None = None,
) -> Sampler:
    kernel = FakeKernel(machine, latency_s, nothing, times=times, noise=noise)
    return Sampler(kernel, machine.watch(), MeasuringSettings(), overhead_s, machine.clock, flush)


def test_short_kernels_are_looped_until_the_clock_can_tell() -> None:
    fast = sampler(FakeDevice(), 1e-6)
    sample = fast.calibrate()
    assert fast.calls >= 100
    assert sample.spent_s >= MeasuringSettings().least_sample_s
    assert sample.seconds == pytest.approx(1e-6)
    machine = FakeDevice()
    far = FakeKernel(machine, 1e-6, nothing)
    far.least_sample_s = 0.01
    looped = Sampler(far, machine.watch(), MeasuringSettings(), 0.0, machine.clock, None)
    assert looped.calibrate().spent_s >= far.least_sample_s
    slow = sampler(FakeDevice(), 1e-3)
    slow.calibrate()
    assert slow.calls == 1
    coarse = sampler(FakeDevice(), 1e-3, overhead_s=1e-3)
    coarse.calibrate()
    assert coarse.calls >= 20


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
def test_an_impossible_time_is_refused(bad: float) -> None:
    with pytest.raises(BadTimeError):
        sampler(FakeDevice(), 1e-3, times=[bad]).calibrate()
    late = sampler(FakeDevice(), 1e-3, times=[1e-3, bad])
    late.calibrate()
    with pytest.raises(BadTimeError):
        late.sample()


def test_a_clock_that_stands_still_is_refused() -> None:
    with pytest.raises(BadTimeError):
        sampler(FakeDevice(), 0.0).calibrate()


def test_the_overhead_of_a_clock_is_its_least_step() -> None:
    ticks = itertools.count(step=0.5)
    assert clock_overhead(lambda: next(ticks)) == 0.5
    assert clock_overhead(lambda: 1.0) == 0.0
    assert 0 < clock_overhead(time.perf_counter) < 1e-3


def race(machine: FakeDevice, incumbent_s: float | None = None, retries: int = 5) -> Race:
    return run_race(sampler(machine, 1e-3, noise=gaussian(0.05)), incumbent_s, Rule(), retries)


def test_samples_under_interference_are_put_aside_and_repeated() -> None:
    result = race(FakeDevice(interference=[(2e-3, 5e-3, 3.0)]))
    assert 1 <= len(result.contaminated) <= 3
    assert not result.forced
    assert max(result.samples) < 1.5e-3
    assert min(result.contaminated) > 2e-3
    assert result.flags == {"waited"}


def test_interference_does_not_abandon_a_winner() -> None:
    result = race(FakeDevice(interference=[(0.0, 3e-3, 4.0)]), incumbent_s=1.1e-3)
    assert result.verdict is RaceVerdict.ENOUGH
    assert np.median(result.samples) < 1.1e-3


def test_a_loser_is_not_repeated_for_being_contaminated() -> None:
    result = race(FakeDevice(interference=[(0.0, 1e9, 3.0)]), incumbent_s=0.5e-3)
    assert result.verdict is RaceVerdict.ABANDON
    assert len(result.samples) == 1
    assert result.forced


def test_a_machine_that_is_always_loaded_still_finishes_and_says_so() -> None:
    result = race(FakeDevice(interference=[(0.0, 1e9, 1.2)]))
    assert result.forced
    assert result.verdict is RaceVerdict.ENOUGH
    assert len(result.samples) == Rule().max_samples


def test_when_load_sets_in_the_clean_samples_are_enough() -> None:
    result = race(FakeDevice(interference=[(4.5e-3, 1e9, 2.0)]), retries=3)
    assert not result.forced
    assert result.verdict is RaceVerdict.ENOUGH
    assert len(result.contaminated) == 4
    assert max(result.samples) < 1.5e-3


def test_a_sample_taken_while_the_processor_was_slowed_for_its_heat_is_repeated() -> None:
    result = race(FakeDevice(throttled=[(2e-3, 4e-3, 2.0)]))
    assert len(result.contaminated) == 1
    assert result.flags == {"throttled"}
    assert not result.forced


def test_with_cold_caches_every_call_is_flushed_and_timed_by_itself() -> None:
    flushes: list[int] = []
    cold = sampler(FakeDevice(), 1e-5, overhead_s=1e-6, flush=lambda: flushes.append(1))
    sample = cold.calibrate()
    assert cold.calls * 1e-5 >= 20e-6
    assert sample.seconds == pytest.approx(9e-6)  # the clock's overhead counts for each call, and is taken off
    taken = len(flushes)
    cold.sample()
    assert len(flushes) - taken == cold.calls


def test_a_winner_is_not_given_up_for_what_the_heat_took() -> None:
    machine = FakeDevice(throttled=[(start * 1e-3, start * 1e-3 + 2e-3, 4.0) for start in range(0, 40, 5)])
    result = race(machine, incumbent_s=1.1e-3)
    assert result.verdict is RaceVerdict.ENOUGH
    assert result.contaminated
    assert np.median(result.samples) < 1.1e-3


def test_with_cold_caches_the_load_is_that_of_the_calls_alone() -> None:
    """A flush takes a hundred times as long as a short kernel: beside it, waiting would hardly show."""
    machine = FakeDevice()

    def flush() -> None:
        machine.now_s += 20e-3

    cold = sampler(machine, 1e-4, flush=flush)
    cold.calibrate()
    machine.interference = [(machine.now_s + 20e-3, 1e9, 4.0)]
    sample = cold.sample()
    assert sample.load.contaminated == ("waited",)
    assert sample.bare_s == pytest.approx(1e-4)
