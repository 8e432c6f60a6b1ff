"""Timing side by side: in turns, so that drift, bursts and what another leaves in the caches hit all sides alike."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import mean, stdev
from typing import Generic, TypeVar

Side = TypeVar("Side")
Taken = TypeVar("Taken")


@dataclass(slots=True)
class Turn(Generic[Side, Taken]):
    """What each side took in one turn; `quiet` says that nobody disturbed it."""

    taken: dict[Side, Taken] = field(default_factory=dict)
    quiet: bool = True


def in_turns(
    turns: list[Turn[Side, Taken]],
    sides: Callable[[], Sequence[Side]],
    enough: Callable[[list[Turn[Side, Taken]]], bool],
    disturbed: Callable[[float, float], bool] = lambda _began_s, _ended_s: False,
) -> Iterator[tuple[Turn[Side, Taken], Side]]:
    """Yield whose turn it is, until `enough` of the `turns` or no `sides` are left; both are asked once per turn.

    The caller puts what the side took into the turn, which is added to `turns` when it is complete. Each turn begins
    with another side. `disturbed` is asked about the time between two moments of the monotonic clock.

    >>> turns: list[Turn[str, int]] = []
    >>> for turn, side in in_turns(turns, lambda: ["a", "b"], lambda turns: len(turns) == 2):
    ...     turn.taken[side] = len(turns)
    >>> [list(turn.taken) for turn in turns]
    [['a', 'b'], ['b', 'a']]
    """
    while names := sides():
        turn, began_s, first = Turn[Side, Taken](), time.monotonic(), len(turns) % len(names)
        for side in (*names[first:], *names[:first]):
            yield turn, side
        turn.quiet = not disturbed(began_s, time.monotonic())
        turns.append(turn)
        if enough(turns):
            return


def mean_interval(ratios: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Return the confidence interval of the geometric mean, by Student's t; it is unbounded for fewer than two.

    >>> [round(bound, 3) for bound in mean_interval([0.9, 0.91, 0.92])]
    [0.885, 0.935]
    """
    from scipy.special import stdtrit  # not in workers that only time

    if len(ratios) < 2:
        return 0.0, math.inf
    logs = [math.log(ratio) for ratio in ratios]
    reach = float(stdtrit(len(logs) - 1, (1 + confidence) / 2)) * stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean(logs) - reach), math.exp(mean(logs) + reach)
