"""A task's races on a device whose slots disturb one another: the degree follows, and nobody is lost by it."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from tunery.domain import (
    Artifact,
    Calibration,
    Candidate,
    Measurement,
    Mode,
    Outcome,
    Target,
    Task,
    TensorSpec,
    Workload,
)
from tunery.runtime.runtime import Reservation
from tunery.tuning.calls import BuiltCandidate, Context
from tunery.tuning.search import races
from tunery.tuning.search.races import Races

ARRAY = TensorSpec("x", (8,), "float32")
TASK = Task(Workload("w", "w", "dense", "", (ARRAY, ARRAY), 1, 8.0), Target("fake", {"kind": "cpu"}, 1))
TWO = Calibration("f", "fake", 1, 2, (), {}, {"compute": 2, "memory": 2}, 1.0, 1.0, 0.0)


class Board:
    """Remembers what was recorded; candidates take `latency_s`, so many times longer beside others."""

    def __init__(self, sharing: Mapping[int, float]) -> None:
        self.sharing = sharing
        self.baseline_s = None
        self.best_s = 1.0
        self.recorded: list[tuple[str, Measurement]] = []
        pools = SimpleNamespace(slots=((0,), (1,)))
        holds = SimpleNamespace(release=lambda _: None)
        runtime: Any = SimpleNamespace(pools=pools, calibration=TWO, foreign=None, holds=holds)
        account: Any = SimpleNamespace(settle_deferred=lambda _: None)
        none: Any = None
        self.context = Context("job", runtime, none, none, 0, account, none)

    def fastest_s(self) -> float | None:
        return self.best_s

    def helps(self, outcome: Outcome, latency_s: float | None) -> bool:
        return False

    async def record(self, payer: object, candidate: Candidate, measurement: Measurement, bills: object) -> None:
        self.recorded.append((candidate.key, measurement))


@pytest.fixture
def boards(monkeypatch: pytest.MonkeyPatch) -> type[Board]:
    async def race(
        context: object, task: Task, worker: str, entrant: Any, reference: Artifact,
        *, incumbent_s: float | None, baseline_s: float | None, degree: int, deviation: float,
    ) -> Measurement:  # fmt: skip
        await asyncio.sleep(0)
        latency_s = float(entrant[0].body) * board.sharing.get(degree, 1.0)
        lost = incumbent_s is not None and latency_s > incumbent_s * (1.01 + deviation)
        mode = Mode.RACE if degree == 1 else Mode.SHARED
        return Measurement(
            Outcome.ABANDONED if lost else Outcome.OK, (latency_s,) * 3, mode, context={"degree": degree}
        )

    @asynccontextmanager
    async def stage(*_: object, **__: object) -> AsyncIterator[Reservation]:
        yield Reservation("worker")

    board: Any = None

    class Bound(Board):
        def __init__(self, sharing: Mapping[int, float]) -> None:
            nonlocal board
            super().__init__(sharing)
            board = self

    monkeypatch.setattr(races, "race", race)
    monkeypatch.setattr(races, "stage", stage)
    return Bound


def batch(number: int, latencies: Sequence[float]) -> list[BuiltCandidate]:
    return [
        BuiltCandidate(
            Candidate(f"{number}-{i}", TASK.key, str(latency)),
            Artifact(f"{number}-{i}", "p", 1),
            Reservation("builder"),
        )
        for i, latency in enumerate(latencies)
    ]


def degrees(board: Board, batches: int, seen: list[int] | None = None) -> list[int]:
    """Run batches of the same candidates, and return the degree that each began with."""

    async def main() -> list[int]:
        task_races, taken = Races(TASK, board, board.record, board.record), []
        for number in range(batches):
            if seen is not None and number == 10:
                board.sharing = {}
            taken.append(task_races._sharing(board.context).degree)
            entrants = batch(number, [1.0 + 0.001 * i for i in range(16)])
            await task_races.run(board.context, entrants, Artifact("r", "r", 1))
        return taken

    return asyncio.run(main())


def test_two_slots_that_disturb_each_other_are_given_up_and_tried_again_ever_more_rarely(boards: type[Board]) -> None:
    taken = degrees(boards({2: 1.4}), 60)
    assert taken[:2] == [2, 1]
    assert 2 in taken[2:], "the disturbance may have gone"
    assert sum(degree == 2 for degree in taken) <= 6


def test_a_disturbance_that_goes_is_forgotten(boards: type[Board]) -> None:
    assert degrees(boards({2: 1.4}), 60, seen=[])[-10:] == [2] * 10


def test_who_was_given_up_at_a_degree_that_proves_too_high_is_raced_again_alone(boards: type[Board]) -> None:
    board = boards({2: 1.4})
    taken = batch(0, [0.9, *[1.2 + 0.01 * i for i in range(15)]])
    asyncio.run(Races(TASK, board, board.record, board.record).run(board.context, taken, Artifact("r", "r", 1)))
    winner = [measurement for key, measurement in board.recorded if key == "0-0"]
    assert winner[0].outcome is Outcome.ABANDONED
    assert (winner[-1].outcome, winner[-1].mode) == (Outcome.OK, Mode.RACE)
    again = [key for key, measurement in board.recorded if measurement.mode is Mode.RACE]
    assert max(again.count(key) for key in again) <= 2, "once, and once as an audit"


def test_where_neighbours_disturb_nothing_nothing_is_raced_again(boards: type[Board]) -> None:
    board = boards({})
    entrants = batch(0, [1.2 + 0.01 * i for i in range(16)])
    asyncio.run(Races(TASK, board, board.record, board.record).run(board.context, entrants, Artifact("r", "r", 1)))
    assert sum(measurement.mode is Mode.SHARED for _, measurement in board.recorded) == 16
    assert sum(measurement.mode is Mode.RACE for _, measurement in board.recorded) == 4, "a quarter, to know"
