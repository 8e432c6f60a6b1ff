"""How many measurements of a task may share the device: raised while sharing is harmless, cut when it is not. The idea
is DOPpler's (IEEE TPDS 2023): grow towards a ceiling, fall back and lower it when the deviation between shared and
isolated timings passes a bound. Here the deviation comes from re-timing a random share of what was timed beside others
alone; nothing is corrected by it but how much a candidate is forgiven before it is given up."""

from collections import deque
from collections.abc import Sequence
from statistics import median

BOUND = 0.05
"""The deviation of shared from isolated timings, in the median over kernels, that a degree may show."""
_FIRST_SHARE, _LATER_SHARE = 0.25, 0.1
_TRUSTED = 12
_LEAST = 3
_CUT = 0.8
_PATIENCE = 4


class Degree:
    """One task's degree, between 1 and `slots`, starting from what calibration allows. `observe` hears, after each
    batch, by which share candidates took longer beside others than alone. A median over `bound` cuts the degree to 0.8
    times (by one at least) and keeps the ceiling under what failed; every clean look raises it by half the way to the
    ceiling. After a few clean batches the ceiling itself is tried one higher, and the batches it takes double with
    every failure, so a task whose kernels disturb one another settles."""

    def __init__(self, slots: int, start: int, bound: float = BOUND) -> None:
        self.slots, self.bound = max(1, slots), bound
        self.degree = max(1, min(start, self.slots))
        self._ceiling = self.degree
        self._seen: deque[float] = deque(maxlen=_TRUSTED)
        self._looks = 0
        self._clean = 0
        self._patience = _PATIENCE

    @property
    def deviation(self) -> float:
        if self.degree == 1:
            return 0.0
        return min(max(median(self._seen), 0.0), self.bound) if len(self._seen) >= _LEAST else self.bound

    def audits(self, measured: int) -> int:
        if self.degree == 1 or not measured:
            return 0
        share = _FIRST_SHARE if self._looks < _TRUSTED else _LATER_SHARE
        return max(1, round(share * measured))

    def observe(self, deviations: Sequence[float], failures: int = 0) -> int:
        """Take in a batch's audits and return the degree for the next one. `failures` are candidates that failed beside
        others and ran alone. A batch at degree 1 has no audits."""
        self._seen.extend(deviations)
        self._looks += len(deviations)
        if failures or (len(self._seen) >= _LEAST and median(self._seen) > self.bound):
            self._cut()
        elif self.degree == 1 or deviations:
            self._raise()
        return self.degree

    def _cut(self) -> None:
        self._ceiling = max(1, self.degree - 1)
        self.degree = max(1, min(int(self.degree * _CUT), self.degree - 1))
        self._seen.clear()  # it was seen at another degree
        self._clean, self._patience = 0, 2 * self._patience

    def _raise(self) -> None:
        self._clean += 1
        if self._clean >= self._patience and self._ceiling < self.slots:
            self._ceiling, self._clean = self._ceiling + 1, 0
        wanted = self.degree + (self._ceiling - self.degree + 1) // 2
        if wanted != self.degree:
            self.degree = wanted
            self._seen.clear()
