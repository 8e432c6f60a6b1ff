import numpy as np
import pytest

from tunery.measuring.noise import Noise
from tunery.measuring.racing import Rule
from tunery.testing.fake_measuring import NoiseScript, bursts, gaussian, heavy_tailed


def after(races: int, script: NoiseScript) -> Rule:
    noise = Noise()
    for race in script(np.random.default_rng(0), races * 10).reshape(races, 10):
        noise.learn(race.tolist())
    return noise.rule(Rule())


def test_what_is_not_known_is_the_prior() -> None:
    noise = Noise()
    noise.learn([1.0, 2.0, 3.0])  # too short to say anything
    assert noise.rule(Rule()) == Rule()


def test_few_samples_only_widen_the_prior() -> None:
    assert after(2, gaussian(0.001)).noise == Rule().noise
    assert after(4, gaussian(0.3)).noise > Rule().noise


def test_a_quiet_machine_narrows_the_margin_and_a_noisy_one_widens_it() -> None:
    assert after(50, gaussian(0.005)).noise < Rule().noise < after(50, heavy_tailed(1.0, 0.05)).noise


def test_bursts_show_as_persistence() -> None:
    assert after(100, bursts(0.1, 6.0)).persistence > after(100, heavy_tailed()).persistence


def test_old_races_are_forgotten() -> None:
    noise = Noise()
    for race in gaussian(0.2)(np.random.default_rng(0), 500).reshape(50, 10):
        noise.learn(race.tolist())
    wide = noise.rule(Rule()).noise
    for race in gaussian(0.01)(np.random.default_rng(1), 1000).reshape(100, 10):
        noise.learn(race.tolist())
    assert noise.rule(Rule()).noise < wide / 4


def cold(races: int, warm_up: float, slower: float = 1.0, incumbent_s: float | None = None) -> Noise:
    noise = Noise()
    for i in range(races):
        samples = [slower * (1.2 + i % 3 / 100), slower, slower * 1.001, slower]
        noise.learn_cold("task", slower + warm_up - 1 + i % 3 / 100, samples, incumbent_s)
    return noise


def test_cold_runs_are_learned_for_each_task() -> None:
    noise = cold(50, 1.5)
    rule = noise.rule(Rule(), "task")
    assert rule.warm_up is not None
    assert rule.warm_up.shift == pytest.approx(0.51, abs=0.005)
    assert rule.first is not None
    assert rule.first.shift == pytest.approx(0.21, abs=0.005)
    assert rule.first.noise >= rule.noise, "rare bursts hit few cold runs"
    assert noise.rule(Rule(), "another") == Rule()


def test_few_cold_runs_say_nothing_and_some_more_little() -> None:
    assert cold(15, 1.5).rule(Rule(), "task").warm_up is None
    some = cold(16, 1.5).rule(Rule(), "task").warm_up
    assert some is not None
    assert some.noise >= 0.05


def test_slow_candidates_do_not_teach_what_a_cold_run_adds() -> None:
    assert cold(50, 1.5, slower=3.0, incumbent_s=1.0).rule(Rule(), "task").warm_up is None
