"""Predicts how long a stage will run, from the stages that ran before it."""

from bisect import insort
from collections import deque
from dataclasses import dataclass, field

_WINDOW = 32
_PRIOR_S = 1.0


@dataclass(slots=True)
class _Recent:
    """The last durations per unit of one sort of stage, in order of age and of length."""

    by_age: deque[float] = field(default_factory=deque)
    by_length: list[float] = field(default_factory=list)

    def add(self, unit_s: float) -> None:
        if len(self.by_age) == _WINDOW:
            self.by_length.remove(self.by_age.popleft())
        self.by_age.append(unit_s)
        insort(self.by_length, unit_s)

    def quantile(self, q: float) -> float:
        # Linear between ranks. 32 values: a single straggler moves the median by one rank at most.
        position = q * (len(self.by_length) - 1)
        low = int(position)
        high = min(low + 1, len(self.by_length) - 1)
        return self.by_length[low] + (position - low) * (self.by_length[high] - self.by_length[low])


class Durations:
    """Running quantiles of seconds per unit of work, by (kind, sort) and by kind; a sort is a task kind on a device.
    The own sort's observations answer; without any those of other sorts, then one second. Windows are short, so a
    machine that slows down is followed."""

    def __init__(self) -> None:
        self._recent: dict[tuple[str, str] | tuple[str], _Recent] = {}

    def observe(self, kind: str, sort: str, size: int, duration_s: float) -> None:
        unit_s = max(0.0, duration_s) / max(1, size)
        for key in ((kind, sort), (kind,)):
            recent = self._recent.get(key)
            if recent is None:
                recent = self._recent[key] = _Recent()
            recent.add(unit_s)

    def predict(self, kind: str, sort: str, size: int, q: float = 0.5) -> float:
        recent = self._recent.get((kind, sort)) or self._recent.get((kind,))
        return recent.quantile(q) * max(1, size) if recent else _PRIOR_S
