"""What the zero-shot study knows of one network: how it was delivered, how it was tuned, and how these compare.

Two tunings are compared by their trials, and by winners that were timed in the same rounds.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from studies._judged import Way
from studies.stock_sides import Side
from tunery.domain.request import Latency

WITH, WITHOUT = "with", "without"
OWN, STOCK = "own", "stock"
_WITHIN = 1.01
"""Quality counts as equal within 1 %: two timings of the same kernels differ by as much."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of everything: networks, trials of a tuning, starts of the command, tasks and candidates to rank.

    Without `trials` a network is tuned with the effort `standard`.
    """

    networks: tuple[str, ...]
    trials: int | None
    starts: int
    tasks: int
    per_task: int


def model_of(network: str) -> str:
    """Return a network as `tune` takes it; a bare name is one of the zoo.

    >>> model_of("resnet18"), model_of("zoo:resnet18@8"), model_of("some/net.onnx")
    ('zoo:resnet18', 'zoo:resnet18@8', 'some/net.onnx')
    """
    return network if ":" in network or network.endswith((".onnx", ".pt2")) else f"zoo:{network}"


def label_of(network: str) -> str:
    """Return a network's name for a table.

    >>> label_of("zoo:resnet18@8"), label_of("some/net.onnx")
    ('resnet18@8', 'net')
    """
    return network.removeprefix("zoo:") if model_of(network).startswith("zoo:") else Path(network).stem


@dataclass(frozen=True, slots=True)
class Arm:
    """One tuning of a network: its seconds, its trials, and each task's way with its winner's key.

    `worth` is by task what its winner takes, in seconds, as timed beside the other arm's.
    """

    seconds: float
    trials: int
    ways: tuple[Way, ...]
    worth: Mapping[str, float]

    @property
    def curve(self) -> tuple[tuple[int, float], ...]:
        """The network's latency, in seconds, after so many trials: its tasks' by their weights, by what they are worth.

        It begins with what the compiler's defaults take, after no trial.
        """
        factors = {way.task_key: self.worth.get(way.task_key, way.final_s) / way.final_s for way in self.ways}
        moments = sorted({0, *(trials for way in self.ways for trials, _ in way.steps)})
        return tuple(
            (trials, sum(way.weight * way.at(trials) * factors[way.task_key] for way in self.ways))
            for trials in moments
        )

    def reached(self, goal_s: float) -> int | None:
        """Return after how many trials the network was as fast as that, None if it never was."""
        return next((trials for trials, latency_s in self.curve if latency_s <= goal_s), None)


@dataclass(frozen=True, slots=True)
class Result:
    """One network: what each way of delivery took, and what it gave.

    Seconds of zero-shot, one for each start on a cold store and a cold cache, and of few-shot are those of the command.
    `unpredicted` are those of its `tunable` tasks without a prediction, with the reason. `latency_s` holds, by way, a
    spread for each round; `arms` the tunings `with` the model, which is what counts as fully tuned, and `without`.
    `stock` is how stock tuned the network, where its study has finished that. `learned` counts the tunable tasks whose
    workloads the model has learned from; None where its card does not list them.
    """

    network: str
    zero_shots_s: tuple[float, ...]
    few_shot_s: float
    tunable: int
    unpredicted: Mapping[str, str]
    latency_s: Mapping[str, tuple[Latency, ...]]
    arms: Mapping[str, Arm]
    stock: Side | None = None
    learned: int | None = None

    @property
    def zero_shot_s(self) -> float:
        """Seconds of the command in the median."""
        return statistics.median(self.zero_shots_s)

    def median_s(self, way: str) -> float:
        """Return the network's latency over all rounds."""
        return statistics.median(spread.median for spread in self.latency_s[way])

    @property
    def spread(self) -> float:
        """By which share the rounds of a way differ, at most."""
        rounds = [[spread.median for spread in found] for found in self.latency_s.values()]
        return max(max(each) / min(each) - 1 for each in rounds)

    def speed(self, way: str) -> float:
        """Return the speed relative to fully tuned."""
        return self.median_s("tuned") / self.median_s(way)

    @property
    def goals_s(self) -> dict[str, float]:
        """Sums of tasks to reach: what the tuning without the model ends with, and stock's end where it is known.

        Stock's network is as much slower than ours as its file is: its own sums were timed by other rules.
        """
        goals = {OWN: _WITHIN * self.arms[WITHOUT].curve[-1][1]}
        if self.stock:
            beside = self.median_s("stock") / self.median_s("tuned")
            goals[STOCK] = _WITHIN * beside * self.arms[WITH].curve[-1][1]
        return goals

    @property
    def untried_is_enough(self) -> bool:
        """Whether what is delivered without a trial is as fast as stock's network, timed in turns with it."""
        return "stock" in self.latency_s and self.median_s("zero-shot") <= _WITHIN * self.median_s("stock")

    def fewer(self, goal: str) -> float | None:
        """Return how many times fewer trials a tuning takes with what ships; None if neither gets there.

        An arm that never gets there counts with all the trials that it had: at most, or at least, so many times.
        """
        goal_s = self.goals_s[goal]
        first, second = (self.arms[arm].reached(goal_s) for arm in (WITH, WITHOUT))
        if first is None and second is None:
            return None
        without = self.arms[WITHOUT].trials if second is None else second
        taught = max(self.arms[WITH].trials, without) if first is None else first
        return max(without, 1) / max(taught, 1)

    @property
    def stock_took(self) -> tuple[float, bool] | None:
        """When stock's network first was as fast as zero-shot's, in seconds, and whether it ever was.

        It is not known before each of its tasks has a latency. If it never was as fast, it is the time of stock's end.
        """
        known = [(p.wall_s, p.latency_s) for p in self.stock.curve if p.latency_s] if self.stock else []
        if self.stock is None or not known:
            return None
        factor, goal_s = self.median_s("stock") / known[-1][1], self.median_s("zero-shot")
        first = next((wall_s for wall_s, latency_s in known if factor * latency_s <= goal_s), None)
        return (self.stock.wall_s, False) if first is None else (first, True)

    @property
    def stock_times(self) -> float | None:
        """How many times zero-shot's seconds stock took to a network as fast, at least."""
        return self.stock_took[0] / self.zero_shot_s if self.stock_took else None


def arms(
    tunings: Mapping[str, tuple[float, int, Sequence[Way]]], worth: Mapping[str, Mapping[str, float]]
) -> dict[str, Arm]:
    """Return the arms by their seconds, trials and ways, and by what their winners are worth (seconds by task and arm).

    What cannot be tuned is the same kernel in all arms, so it takes the same. A task whose winners could not all be
    timed counts as each arm's own finals held it; one without a latency in one of the arms is left out of all of them.
    """
    finals: dict[str, list[float]] = {}
    for _, _, found in tunings.values():
        for way in found:
            finals.setdefault(way.task_key, []).append(way.final_s)
    known = {key: values for key, values in finals.items() if all(math.isfinite(value) for value in values)}
    timed = {
        key: by_arm
        for key, by_arm in worth.items()
        if by_arm.keys() >= tunings.keys() and all(math.isfinite(value) for value in by_arm.values())
    }
    made = {}
    for name, (seconds, trials, found) in tunings.items():
        mine = [way for way in found if way.task_key in known]
        values = {way.task_key: statistics.fmean(known[way.task_key]) for way in mine if not way.winner}
        values |= {way.task_key: timed[way.task_key][name] for way in mine if way.task_key in timed}
        slim = (replace(way, winner={"key": way.winner["key"]} if way.winner else {}) for way in mine)
        made[name] = Arm(seconds, trials, tuple(slim), values)
    return made


_RESULT = TypeAdapter(Result)


def result_of(data: Mapping[str, Any]) -> Result:
    """Return the result of which `data` is the plain form."""
    return _RESULT.validate_python(data)


def plain(result: Result) -> dict[str, Any]:
    """Return a result as plain data, with what follows from it."""
    return {
        **asdict(result),
        "zero_shot_s": result.zero_shot_s,
        "speed": {way: result.speed(way) for way in result.latency_s},
        "curves": {name: arm.curve for name, arm in result.arms.items()},
        "goals_s": result.goals_s,
        "trials": {
            goal: {name: arm.reached(goal_s) for name, arm in result.arms.items()} | {"fewer": result.fewer(goal)}
            for goal, goal_s in result.goals_s.items()
        },
        "untried_is_enough": result.untried_is_enough if result.stock else None,
        "stock_took_s": result.stock_took and result.stock_took[0],
        "stock_was_as_fast": result.stock_took and result.stock_took[1],
    }
