"""What is left of a host's cores while others use them: a pure rule over successive looks."""

from collections import deque
from dataclasses import dataclass

_ENTER, _LEAVE = 0.5, 0.25
_REFILL = 0.1
_SPANS = 64


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
