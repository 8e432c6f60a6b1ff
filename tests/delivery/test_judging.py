"""A compiled network that is slower than ONNX Runtime is not delivered, however noisy or busy the machine is."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from itertools import chain, count, repeat
from random import Random
from statistics import median
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tunery._errors import (
    BlobError,
    BlobNotFoundError,
    CrashError,
    DeadlineError,
    LostWorkerError,
    RemoteError,
    TemporaryDirectoryError,
    TuneryError,
    UsageError,
)
from tunery.delivery import judging
from tunery.delivery.comparing.compare import Contestants, Expected, Pair
from tunery.delivery.judging import Judged, is_right, is_slower, judge, judge_again, judge_once, time_in_turns
from tunery.delivery.linking import LinkedNetwork
from tunery.domain import Network
from tunery.domain.request import CompileReport
from tunery.testing.fake_blobs import FakeBlobs

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


def turns_of(ours: float, noise: str, seed: int) -> list[Pair]:
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
    assert median(len(turns_of(0.95, "quiet", seed)) for seed in range(50)) == 3, "they agree, though by little"
    counts = {ours: median(len(turns_of(ours, "busy", seed)) for seed in range(50)) for ours in (0.5, 1.0)}
    assert counts[0.5] < counts[1.0] <= 24
    assert median(len(turns_of(1.0, "quiet", seed)) for seed in range(50)) < 10


class Machine:
    """A machine that others use in some turns: with two threads they slow down our kernels more than ONNX Runtime.

    `ours` is what our kernels take, ONNX Runtime's take 1; `unfit` is what ours fails with. `turns` counts those taken.
    """

    def __init__(self, ours: float, busy: Iterable[bool], unfit: TuneryError | None = None) -> None:
        self._unfit = unfit
        self._ours, self._busy = ours, iter(busy)
        self._now, self._rng, self._asked, self.turns = False, Random(7), 0, 0
        self.threads, self.foreign, self.spec = 2, self, SimpleNamespace(device="cpu")
        self.host_facts = None
        self.until = 0.0  # its budget has ended: nobody is waited for longer than need be

    @property
    def runtime(self) -> "Machine":
        return self

    @asynccontextmanager
    async def stage(self, *_: object) -> AsyncIterator[None]:
        yield

    def limit_patience(self, _: float) -> None:
        """Nobody waits here."""

    def disturbed(self, *_: float) -> bool:
        return self._now

    def start(self, *_: object) -> "Machine":
        return self

    def close(self) -> None:
        """Nothing was started."""

    async def profile(self, _: str) -> dict[str, float]:
        return {}

    async def ask(self, label: str, method: str, *_: object) -> list[Any]:
        if method == "outputs":
            if self._unfit:
                raise self._unfit
            return []
        if self._asked % 2 == 0:  # a turn begins
            self._now = next(self._busy)
            self.turns += 1
        self._asked += 1
        taken = (self._ours if label == "tunery" else 1.0) * NOISE["quiet"](self._rng)
        return [taken * ((self._rng.uniform(2, 5) if label == "tunery" else 1.3) if self._now else 1.0)]


def compiled(machine: Machine, monkeypatch: pytest.MonkeyPatch, weights: str = "") -> LinkedNetwork:
    monkeypatch.setattr(judging, "Contestants", machine)
    network = Network("n", "n.onnx", "d", "", (), (), 0, "n.onnx", weights=weights)
    return LinkedNetwork(CompileReport("n", "", 0, {}), network, "b")


def judged(machine: Machine, monkeypatch: pytest.MonkeyPatch, weights: str = "") -> Judged:
    return asyncio.run(judge(cast("Any", machine), compiled(machine, monkeypatch, weights), Expected()))


def found_right(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> bool:
    return asyncio.run(is_right(cast("Any", machine), compiled(machine, monkeypatch), Expected()))


@pytest.mark.parametrize(
    "error", [UsageError("it is damaged"), CrashError("SIGSEGV"), RemoteError("it raised"), DeadlineError("it hangs")]
)
def test_what_cannot_be_loaded_or_fails_is_wrong(error: TuneryError, monkeypatch: pytest.MonkeyPatch) -> None:
    assert str(error) in judged(Machine(0.7, repeat(False), unfit=error), monkeypatch).wrong
    assert not found_right(Machine(0.7, repeat(False), unfit=error), monkeypatch)


@pytest.mark.parametrize(
    "error",
    [
        LostWorkerError("away"),
        CrashError("killed", out_of_memory=True),
        RemoteError("std::bad_alloc"),
        UsageError("it cannot be loaded (out of memory)"),
        BlobError("the disk is full"),
        BlobNotFoundError("it is not there"),
        TemporaryDirectoryError("it is full"),
    ],
    ids=lambda error: f"{type(error).__name__}: {error}",
)
def test_what_the_host_is_at_fault_for_says_nothing_of_the_network(
    error: TuneryError, monkeypatch: pytest.MonkeyPatch
) -> None:
    for ask in (judged, found_right):
        with pytest.raises(type(error)) as caught:
            ask(Machine(0.7, repeat(False), unfit=error), monkeypatch)
        assert caught.value is error


def changing() -> Iterator[bool]:
    rng = Random(3)
    while True:
        yield rng.random() < 0.6


@pytest.mark.parametrize(("ours", "slower"), [(0.7, False), (1.5, True)])
def test_others_on_the_machine_at_times_do_not_decide_who_is_slower(
    ours: float, slower: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = judged(Machine(ours, changing()), monkeypatch)
    assert bool(found.slower) == slower
    assert not found.busy
    assert found.speed is not None
    assert found.speed.low <= found.speed.ratio <= found.speed.high
    assert found.speed.ratio == pytest.approx(1 / ours, rel=0.05)


@pytest.mark.parametrize("ours", [0.7, 1.05, 1.5])
def test_on_a_busy_machine_nothing_is_judged_and_kernels_are_kept(ours: float, monkeypatch: pytest.MonkeyPatch) -> None:
    found = judged(Machine(ours, repeat(True)), monkeypatch)
    assert (found.busy, found.speed, found.ours_s, found.slower, found.wrong) == (True, None, None, False, "")


def test_once_others_have_left_both_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(0.9, chain(repeat(True, 10), repeat(False)))
    found = judged(machine, monkeypatch)
    assert not found.busy
    assert not found.slower


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("ours", [0.7, 1.5])
def test_long_calls_get_more_turns_for_a_disturbed_one_but_not_without_end(
    ours: float, clean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging, "time", SimpleNamespace(monotonic=count(0.0, 5.0).__next__))
    machine = Machine(ours, chain([False, True, False, not clean], repeat(not clean)))
    found = judged(machine, monkeypatch, weights="w")
    assert (machine.turns, found.busy, bool(found.slower)) == (4 if clean else 6, not clean, clean and ours > 1)


class Moments(Machine):
    """A machine on which our kernels take another time at each judgement."""

    def __init__(self, *ours: float) -> None:
        super().__init__(ours[0], repeat(False))
        self._left = iter(ours)

    def start(self, *_: object) -> "Machine":
        self._ours = next(self._left)
        return self


@pytest.mark.parametrize(
    ("ours", "slower"), [((1.5, 1.4), True), ((1.5, 0.8, 0.9), False), ((1.5, 0.8, 1.4), True)], ids=str
)
def test_all_of_a_network_is_handed_over_only_if_two_moments_agree(
    ours: tuple[float, ...], slower: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Moments(*ours)
    made = compiled(machine, monkeypatch)
    first = asyncio.run(judge(cast("Any", machine), made, Expected()))
    found = asyncio.run(judge_again(cast("Any", machine), made, Expected(), first))
    assert (found.slower, bool(found.reason), found.busy) == (slower, slower, False)
    assert found.speed is not None
    assert (found.speed.ratio < 1) == slower


def test_a_busy_second_moment_leaves_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(1.5, chain(repeat(False, 3), repeat(True)))
    made = compiled(machine, monkeypatch)
    first = asyncio.run(judge(cast("Any", machine), made, Expected()))
    assert first.slower
    found = asyncio.run(judge_again(cast("Any", machine), made, Expected(), first))
    assert (found.busy, found.speed, found.slower, found.reason) == (True, None, False, "")


@pytest.mark.parametrize(("verdict", "again"), [((1.0, 2.0), 1), ((2.0, 1.0), 2), (None, 2)], ids=str)
def test_the_same_file_is_not_judged_again_unless_it_was_slower_or_the_machine_busy(
    verdict: Pair | None, again: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    async def counted(*_: object) -> Judged:
        seen.append(1)
        turns = [verdict] * 3 if verdict else []
        return Judged(0.0, turns, 2, slower=bool(verdict) and verdict[0] > verdict[1], busy=not verdict)

    async def device() -> Any:
        return SimpleNamespace(fingerprint="f")

    monkeypatch.setattr(judging, "judge", counted)
    runtime = SimpleNamespace(blobs=FakeBlobs(), device=device, threads=2)
    made = LinkedNetwork(CompileReport("n", "", 0, {}), Network("n", "n.onnx", "d", "", (), (), 0, "b"), "f" * 64)
    found = [asyncio.run(judge_once(cast("Any", SimpleNamespace(runtime=runtime)), made, Expected())) for _ in "ab"]
    assert len(seen) == again
    assert found[0].speed == found[1].speed
