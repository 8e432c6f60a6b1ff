"""A compiled network that is slower than ONNX Runtime is not delivered, however noisy the machine is."""

import asyncio
from collections.abc import Callable
from random import Random
from statistics import median
from typing import Any, cast

import pytest

from tunery.delivery.comparing.compare import Contestants
from tunery.delivery.placing.judging import Turn, is_slower, time_in_turns

NOISE: dict[str, Callable[[Random], float]] = {
    "quiet": lambda rng: 1 + abs(rng.gauss(0, 0.01)),
    "busy": lambda rng: (1 + abs(rng.gauss(0, 0.1))) * (1 + (rng.random() < 0.4) * rng.expovariate(1.0)),
}


class Scripted:
    """A compiled network and ONNX Runtime, by what a run of each takes."""

    def __init__(self, ours: float, noise: Callable[[Random], float], seed: int) -> None:
        self._taken = {"tunery": ours, "onnxruntime": 1.0}
        self._noise, self._rng = noise, Random(seed)

    async def ask(self, label: str, *_: Any) -> list[float]:
        return [self._taken[label] * self._noise(self._rng)]


def turns_of(ours: float, noise: str, seed: int) -> list[Turn]:
    return asyncio.run(time_in_turns(cast("Contestants", Scripted(ours, NOISE[noise], seed))))


def share_handed_over(ours: float, noise: str) -> float:
    return sum(is_slower(turns_of(ours, noise, seed)) for seed in range(200)) / 200


@pytest.mark.parametrize("noise", NOISE)
def test_what_is_slower_is_handed_over_though_single_turns_look_faster(noise: str) -> None:
    assert share_handed_over(1.25, noise) > 0.95
    assert share_handed_over(2.3, noise) == 1


@pytest.mark.parametrize("noise", NOISE)
def test_what_is_faster_is_delivered(noise: str) -> None:
    assert share_handed_over(0.7, noise) < 0.03


def test_more_turns_are_taken_only_where_it_is_not_clear() -> None:
    assert len(turns_of(0.5, "quiet", 1)) == 3
    counts = {ours: median(len(turns_of(ours, "busy", seed)) for seed in range(50)) for ours in (0.5, 1.0)}
    assert counts[0.5] < counts[1.0] <= 24
    assert median(len(turns_of(1.0, "quiet", seed)) for seed in range(50)) < 10
