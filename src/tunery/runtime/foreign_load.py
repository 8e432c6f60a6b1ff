"""What is left of a host's cores while others use them: a pure rule over successive looks, and what looks."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tunery._settings import settings
from tunery.devices import ForeignLoad, device_class
from tunery.domain import Measurement

VARIABLE = "TUNERY_LOAD_WATCH"
_EVERY_S = 0.5
_ENTER, _LEAVE = 0.5, 0.25
_REFILL = 0.1
_SPANS = 64


@dataclass(frozen=True, slots=True)
class Share:
    """What is left to us: `cores` for builds and proposals, and whether measuring is to wait. `disturbed` says that
    others are at work now: what is measured all the same is marked."""

    cores: int
    waiting: bool
    disturbed: bool


class Foreign:
    """Turns looks at the machine into what is left of it. Others are at work from half a core on, until they take less
    than a quarter. Measuring then waits, but for `patience_s` seconds at most: the patience comes back at a tenth of
    the quiet time, so in the long run no more than a tenth of a job is spent on waiting. After that it goes on, and is
    marked."""

    def __init__(self, cores: int, patience_s: float = 30.0, enter: float = _ENTER) -> None:
        self._cores, self._patience_s, self._enter = cores, patience_s, enter
        self._left_s = patience_s
        self._seen_s: float | None = None
        self._spans: deque[tuple[float, float]] = deque(maxlen=_SPANS)
        self.taken = 0.0
        self.disturbed = False

    def look(self, at_s: float, taken: float) -> None:
        since_s = at_s if self._seen_s is None else self._seen_s
        self._seen_s, self.taken = at_s, taken
        self.disturbed = taken >= self._enter * (_LEAVE / _ENTER if self.disturbed else 1.0)
        if self.disturbed:
            self._left_s = max(0.0, self._left_s - (at_s - since_s))
            self._spans.append((since_s, at_s))
        else:
            self._left_s = min(self._patience_s, self._left_s + _REFILL * (at_s - since_s))

    def limit_patience(self, patience_s: float) -> None:
        """Wait no longer than this until quiet time has brought more patience: a short job has no time to give."""
        self._left_s = min(self._left_s, max(patience_s, 0.0))

    @property
    def share(self) -> Share:
        left = self._cores - round(self.taken) if self.disturbed else self._cores
        return Share(max(1, left), self.disturbed and self._left_s > 0, self.disturbed)

    def dirty_since(self, at_s: float) -> float | None:
        """Return from when on others were at work, of the time since `at_s`; None if they were not."""
        return next((max(start, at_s) for start, end in self._spans if end > at_s), None)


class ForeignWatch:
    """Looks at the load twice a second and says what is left of the cores; times are `time.monotonic()`."""

    def __init__(self, load: ForeignLoad, foreign: Foreign) -> None:
        self._load, self.foreign = load, foreign
        self._looked_s: float | None = None

    @property
    def share(self) -> Share:
        return self.foreign.share

    def look(self) -> Share:
        now_s = time.monotonic()
        if self._looked_s is None or now_s - self._looked_s >= self._load.least_s:
            self.foreign.look(now_s, self._load.taken())
            self._looked_s = now_s
        return self.share

    def disturbed(self, began_s: float, ended_s: float) -> bool:
        """Say whether others were at work between these times; it looks once more if the end was not seen yet."""
        if self._looked_s is None or ended_s > self._looked_s:
            self.look()
        dirty_s = self.foreign.dirty_since(began_s)
        return dirty_s is not None and dirty_s < ended_s

    async def run(self, changed: Callable[[Share], None]) -> None:
        last = self.share
        while True:
            share = self.look()
            if share != last:
                changed(share)
                last = share
            await asyncio.sleep(_EVERY_S)


class DeviceWaits:
    """Counts the seconds in which a measurement waited for others to measure, one that waits now included."""

    def __init__(self) -> None:
        self._waiting, self._since_s, self._over_s = 0, 0.0, 0.0

    @property
    def seconds(self) -> float:
        return self._over_s + (time.monotonic() - self._since_s if self._waiting else 0.0)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        if not self._waiting:
            self._since_s = time.monotonic()
        self._waiting += 1
        try:
            yield
        finally:
            self._over_s, self._since_s = self.seconds, time.monotonic()
            self._waiting -= 1


def marked(measurement: Measurement, foreign: ForeignWatch | None) -> Measurement:
    """Return a measurement with what others took of our cores; contaminated where they were at work."""
    if foreign is None:
        return measurement
    context = {**measurement.context, "foreign_cores": round(foreign.foreign.taken, 2)}
    if foreign.share.disturbed:
        context["contaminated"] = True
    return replace(measurement, context=context)


def relaxed_incumbent_s(incumbent_s: float | None, foreign: ForeignWatch | None) -> float | None:
    """Return what a candidate is raced against: under load the incumbent would take longer too, up to twice."""
    return incumbent_s * 2 if incumbent_s and foreign and foreign.share.disturbed else incumbent_s


def watch_for(cores: Sequence[int], kind: str = "cpu") -> ForeignWatch | None:
    if not settings().load_watch:
        return None
    return ForeignWatch(device_class(kind).foreign_load(cores), Foreign(len(cores)))
