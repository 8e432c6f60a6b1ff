"""Times that cannot be, and what the machine did to all that were timed in turn."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from statistics import median

_TELLING = 3
"""Equal samples in a row that no two kernels show by chance at a clock's full resolution; fewer may be an accident."""
_ACCIDENTS = 3
_KEPT = 2048


class Repeats:
    """Remembers what was timed, and notices when another candidate shows the very same times: the clock is broken. Two
    different kernels agree in three samples down to the last digit, or four of them in their only sample, if nobody has
    measured anything."""

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[str, tuple[float, ...]], set[str]] = OrderedDict()

    def check(self, task_key: str, candidate_key: str, samples: Sequence[float]) -> str:
        head = tuple(samples[:_TELLING])
        owners = self._seen.setdefault((task_key, head), set())
        others = sorted(owners - {candidate_key})
        owners.add(candidate_key)
        while len(self._seen) > _KEPT:
            self._seen.popitem(last=False)
        return others[0] if len(others) >= (1 if len(head) == _TELLING else _ACCIDENTS) else ""


def identical(samples: Mapping[int, Sequence[float]]) -> set[int]:
    groups: dict[tuple[float, ...], list[int]] = {}
    for index, taken in samples.items():
        if len(taken) >= _TELLING:
            groups.setdefault(tuple(taken), []).append(index)
    return {index for group in groups.values() if len(group) > 1 for index in group}


def drift(samples: Sequence[Sequence[float]]) -> float | None:
    """Return by which share several kernels' samples, taken in turn, rose from their first third to their last. The
    median over the kernels; None where none has six samples."""
    moved = []
    for taken in samples:
        third = len(taken) // 3
        if third >= 2 and median(taken[:third]) > 0:
            moved.append(median(taken[-third:]) / median(taken[:third]) - 1)
    return median(moved) if moved else None


def pace(samples: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """Return how slow the machine was in each round in which kernels took turns; 1 is as usual. `samples` are each
    kernel's, by round. The median over the kernels of what each took over its own median, of those that took part in
    every round; empty where these are fewer than two. Ranking by samples over their round's pace compares pairs taken
    at the same time, which a machine that others use needs: between rounds its speed moves by more than finalists
    differ."""
    rounds = max(samples, key=len, default={}).keys()
    usual = [(taken, median(taken.values())) for taken in samples if taken.keys() == rounds and len(rounds) > 1]
    if len(usual) < 2 or not all(middle > 0 for _, middle in usual):
        return {}
    return {i: median(taken[i] / middle for taken, middle in usual) for i in rounds}
