"""How one task's candidates share a device: a degree that follows what re-timing some of them alone shows."""

import random
from collections.abc import Sequence

from tunery.domain import Calibration, Measurement, Mode, Outcome, Task
from tunery.measuring.calibration import starting_degree
from tunery.measuring.degree import Degree
from tunery.tuning.calls import Entrant

Timed = tuple[Entrant, Measurement]

_TIMED = 3
_PERHAPS_SHARING = frozenset({Outcome.TIMEOUT, Outcome.CRASHED, Outcome.RUN_FAILED})


class MeasurementConcurrency:
    """One task's degree on a device with `slots` slots, and which of its measurements are repeated alone."""

    def __init__(self, task: Task, slots: int, calibration: Calibration | None, seed: int) -> None:
        self._degree = Degree(slots, min(starting_degree(task, calibration), slots))
        self._random = random.Random(f"{seed} {task.key}")  # noqa: S311 - a sample, no secret

    @property
    def degree(self) -> int:
        """How many of the task's measurements may share the device now."""
        return self._degree.degree

    @property
    def deviation(self) -> float:
        return self._degree.deviation

    def audits(self, timed: Sequence[Timed]) -> list[Timed]:
        """Return which of a batch's measurements to repeat alone: some that failed, and a random share of the others.

        Only those with a few samples tell a deviation; what was abandoned after one run has told enough.
        """
        count = self._degree.audits(len(timed))
        failed = [one for one in timed if one[1].outcome in _PERHAPS_SHARING][:count]
        whole = [one for one in timed if one[1].mode is Mode.SHARED and len(one[1].samples_s) >= _TIMED]
        return failed + self._random.sample(whole, min(count, len(whole)))

    def observe(self, pairs: Sequence[tuple[Measurement, Measurement]]) -> int:
        """Take in a batch's repeated measurements (beside others, then alone) and return the next degree."""
        both = [(shared.latency_s, alone.latency_s) for shared, alone in pairs if shared.latency_s]
        deviations = [shared_s / alone_s - 1 for shared_s, alone_s in both if shared_s and alone_s]
        failures = sum(not shared.latency_s and alone.outcome is Outcome.OK for shared, alone in pairs)
        return self._degree.observe(deviations, failures)
