"""What others take of our cores while a job runs, and what follows from it: a pure rule over looks at the machine."""

from collections import deque
from dataclasses import dataclass

from tunery.devices.cpu.load import Mark

_ENTER, _LEAVE = 0.5, 0.25
_REFILL = 0.1
_SPANS = 64


def taken_cores(before: Mark, after: Mark) -> float:
    """Return how many of the watched cores others used between two full marks, stolen time included; 0 if not known.

    Time pressure (PSI) says nothing here: we press ourselves as soon as there are more stages than cores.
    """
    wall_s = max(after.wall_s - before.wall_s, 1e-9)
    marks = (before.cores_busy_s, after.cores_busy_s, before.tree_cpu_s, after.tree_cpu_s)
    if any(value is None for value in marks):
        return 0.0
    busy_before, busy_after, tree_before, tree_after = (value or 0.0 for value in marks)
    foreign_s = busy_after - busy_before - (tree_after - tree_before)
    stolen_s = (after.cores_steal_s or 0.0) - (before.cores_steal_s or 0.0)
    return (max(0.0, foreign_s) + max(0.0, stolen_s)) / wall_s


@dataclass(frozen=True, slots=True)
class Share:
    """What is left to us: `cores` for builds and proposals, and whether measuring is to wait.

    `disturbed` says that others are at work now: what is measured all the same is marked.
    """

    cores: int
    waiting: bool
    disturbed: bool


class Foreign:
    """Turns looks at the machine into what is left of it.

    Others are at work from half a core on, until they take less than a quarter. Measuring then waits, but for
    `patience_s` seconds at most: the patience comes back at a tenth of the quiet time, so in the long run no more than
    a tenth of a job is spent on waiting. After that it goes on, and is marked.
    """

    def __init__(self, cores: int, patience_s: float = 30.0, enter: float = _ENTER) -> None:
        self._cores, self._patience_s, self._enter = cores, patience_s, enter
        self._left_s = patience_s
        self._seen_s: float | None = None
        self._spans: deque[tuple[float, float]] = deque(maxlen=_SPANS)
        self.taken = 0.0
        self.disturbed = False

    def look(self, at_s: float, taken: float) -> None:
        """Take in how many cores others took since the last look."""
        since_s = at_s if self._seen_s is None else self._seen_s
        self._seen_s, self.taken = at_s, taken
        self.disturbed = taken >= self._enter * (_LEAVE / _ENTER if self.disturbed else 1.0)
        if self.disturbed:
            self._left_s = max(0.0, self._left_s - (at_s - since_s))
            self._spans.append((since_s, at_s))
        else:
            self._left_s = min(self._patience_s, self._left_s + _REFILL * (at_s - since_s))

    def hurry(self, patience_s: float) -> None:
        """Wait no longer than this until quiet time has brought more patience: a short job has no time to give."""
        self._left_s = min(self._left_s, max(patience_s, 0.0))

    @property
    def share(self) -> Share:
        """What is left to us after the last look."""
        left = self._cores - round(self.taken) if self.disturbed else self._cores
        return Share(max(1, left), self.disturbed and self._left_s > 0, self.disturbed)

    def dirty_since(self, at_s: float) -> float | None:
        """Return from when on others were at work, of the time since `at_s`; None if they were not."""
        return next((max(start, at_s) for start, end in self._spans if end > at_s), None)
