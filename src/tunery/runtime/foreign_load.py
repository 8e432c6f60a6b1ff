"""Watches what others do on our cores, for as long as the event loop runs."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from tunery._settings import settings
from tunery.devices import ForeignLoad, device_class
from tunery.domain import Measurement
from tunery.runtime.foreign import Foreign, Share

VARIABLE = "TUNERY_LOAD_WATCH"
_EVERY_S = 0.5


class ForeignWatch:
    """Looks at the load twice a second and says what is left of the cores; times are `time.monotonic()`."""

    def __init__(self, load: ForeignLoad, foreign: Foreign) -> None:
        self._load, self.foreign = load, foreign
        self._looked_s: float | None = None

    @property
    def share(self) -> Share:
        """What was left to us at the last look."""
        return self.foreign.share

    def look(self) -> Share:
        """Look now, unless the last look was just before."""
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


def watch_for(cores: Sequence[int], device: str = "cpu") -> ForeignWatch | None:
    """Return a watch on these cores for a kind of device, None where the environment turns it off."""
    if not settings().load_watch:
        return None
    return ForeignWatch(device_class(device).foreign_load(cores), Foreign(len(cores)))
