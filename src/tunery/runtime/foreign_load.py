"""Watches what others do on our cores, for as long as the event loop runs."""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from tunery._settings import settings
from tunery.devices import Watch
from tunery.devices.cpu.foreign import Foreign, Share, taken_cores
from tunery.devices.cpu.load import LoadWatch, Mark
from tunery.domain import Measurement

VARIABLE = "TUNERY_LOAD_WATCH"
_EVERY_S = 0.5  # 50 ticks of the kernel's clock: half a core shows as 25
_LEAST_S = 0.1


class ForeignWatch:
    """Looks at the machine twice a second and says what is left of it; times are `time.monotonic()`.

    `taken` of a look may be replaced to test without disturbing others.
    """

    def __init__(
        self,
        cores: Sequence[int],
        foreign: Foreign | None = None,
        watch: Watch[Mark] | None = None,
        taken: Callable[[Mark, Mark], float] = taken_cores,
    ) -> None:
        self.foreign = foreign or Foreign(len(cores))
        self._watch = watch or LoadWatch(cores, root_pid=os.getpid())
        self._taken = taken
        self._mark: Mark | None = None
        self._looked_s = 0.0

    @property
    def share(self) -> Share:
        """What was left to us at the last look."""
        return self.foreign.share

    def look(self) -> Share:
        """Look now, unless the last look was just before: the kernel counts in ticks of 10 ms."""
        now_s = time.monotonic()
        if self._mark is None or now_s - self._looked_s >= _LEAST_S:
            mark = self._watch.mark(full=True)
            # The first look only begins the time that the next one is about.
            self.foreign.look(now_s, 0.0 if self._mark is None else self._taken(self._mark, mark))
            self._mark, self._looked_s = mark, now_s
        return self.share

    def disturbed(self, began_s: float, ended_s: float) -> bool:
        """Say whether others were at work between these times; it looks once more if the end was not seen yet."""
        if ended_s > self._looked_s:
            self.look()
        dirty_s = self.foreign.dirty_since(began_s)
        return dirty_s is not None and dirty_s < ended_s

    async def run(self, changed: Callable[[Share], None]) -> None:
        """Look for ever, and hand over what is left whenever that changes."""
        last = self.share
        while True:
            share = self.look()
            if share != last:
                changed(share)
                last = share
            await asyncio.sleep(_EVERY_S)


def marked(measurement: Measurement, foreign: ForeignWatch | None) -> Measurement:
    """Return a measurement with what others took of our cores; contaminated where they were at work."""
    if foreign is None:
        return measurement
    context = {**measurement.context, "foreign_cores": round(foreign.foreign.taken, 2)}
    if foreign.share.disturbed:
        context["contaminated"] = True
    return replace(measurement, context=context)


def lenient(incumbent_s: float | None, foreign: ForeignWatch | None) -> float | None:
    """Return what a candidate is raced against: under load the incumbent would take longer too, up to twice."""
    return incumbent_s * 2 if incumbent_s and foreign and foreign.share.disturbed else incumbent_s


def watch_for(cores: Sequence[int]) -> ForeignWatch | None:
    """Return a watch on these cores, None where the environment turns it off."""
    return ForeignWatch(cores) if settings().load_watch else None
