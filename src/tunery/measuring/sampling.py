"""Timing one loaded kernel: warm-up, loop count, samples, and the race that decides how many."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tunery.devices import Load, Watch
from tunery.dialects import Kernel
from tunery.measuring.racing import RaceVerdict, Rule, decide
from tunery.measuring.settings import MeasuringSettings

Clock = Callable[[], float]

_CALIBRATIONS = 6


class BadTimeError(Exception):
    """A clock gave a time that cannot be: zero, negative, NaN or infinite."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Seconds for one execution, the seconds that the whole loop took, and the load meanwhile."""

    seconds: float
    spent_s: float
    load: Load

    @property
    def bare_s(self) -> float:
        """Seconds for one execution without what others took of a contaminated one: a lower bound. 0 where nobody knows
        how much that was: the time waited is counted, not what a throttled processor lost."""
        if not self.load.contaminated:
            return self.seconds
        if self.load.waited is None or self.load.throttles:
            return 0.0
        return self.seconds * max(0.0, 1 - self.load.waited)


@dataclass(slots=True)
class Race:
    """A candidate's samples so far: `samples` count, `contaminated` were repeated, `running` is the latter's bare time.
    `forced` says that contaminated samples were counted after all."""

    samples: list[float] = field(default_factory=list)
    contaminated: list[float] = field(default_factory=list)
    running: list[float] = field(default_factory=list)
    spent_s: float = 0.0
    forced: bool = False
    verdict: RaceVerdict = RaceVerdict.CONTINUE
    flags: set[str] = field(default_factory=set)


def clock_overhead(clock: Clock, looks: int = 200) -> float:
    """Return the least time two successive looks at the clock lie apart, or its resolution where that is more."""
    apart = [-(clock() - clock()) for _ in range(looks)]
    steps = [step for step in apart if step > 0]
    return min(steps) if steps else 0.0


class Sampler:
    """Times one kernel, in loops long enough for the clock; `flush` empties the caches before each call."""

    def __init__(  # noqa: PLR0917 - the clock and the flush are the tests' and the cold mode's
        self,
        kernel: Kernel,
        watch: Watch[Any],
        settings: MeasuringSettings,
        overhead_s: float,
        clock: Clock,
        flush: Callable[[], None] | None = None,
    ) -> None:
        self._kernel = kernel
        self._watch = watch
        self._settings = settings
        self._flush = flush
        self._overhead_s = overhead_s
        # With cold caches each call is timed by itself: it need only outlast the clock.
        self._least_s = settings.overhead_factor * overhead_s
        if flush is None:
            self._least_s = max(settings.least_sample_s, kernel.least_sample_s, self._least_s)
        self._clock = clock
        self.calls = 1
        self.last_s = 0.0

    def warm_up(self) -> float:
        start = self._clock()
        self._kernel.run()
        return self._clock() - start

    def first_run(self) -> Sample:
        mark = self._watch.mark()
        seconds = self.warm_up()
        return Sample(seconds, seconds, self._watch.since(mark))

    def calibrate(self) -> Sample:
        for _ in range(_CALIBRATIONS):
            sample = self._take()
            if sample.spent_s >= self._least_s or self.calls >= self._settings.max_calls:
                break
            wanted = self.calls * self._least_s / sample.spent_s * 1.2 if sample.spent_s > 0 else math.inf
            self.calls = int(min(self._settings.max_calls, max(2 * self.calls, min(wanted, 100 * self.calls))))
        if sample.seconds <= 0:
            raise BadTimeError(f"{self.calls} calls took {sample.spent_s} s by the device's clock")
        return sample

    def sample(self) -> Sample:
        sample = self._take()
        if sample.seconds <= 0:
            raise BadTimeError(f"{self.calls} calls took {sample.spent_s} s by the device's clock")
        return sample

    def _take(self) -> Sample:
        spent_s, load = self._timed(self.calls) if self._flush is None else self._cold(self._flush)
        if not math.isfinite(spent_s) or spent_s < 0:
            raise BadTimeError(f"{self.calls} calls took {spent_s} s by the device's clock")
        self.last_s = spent_s
        return Sample(spent_s / self.calls, spent_s, load)

    def _timed(self, calls: int) -> tuple[float, Load]:
        mark = self._watch.mark()
        spent_s = self._kernel.time(calls)
        return spent_s, self._watch.since(mark)

    def _cold(self, flush: Callable[[], None]) -> tuple[float, Load]:
        """Time calls one by one; the worst load stands for all. Flushing takes far longer, and nobody times that."""
        spent_s, loads = 0.0, []
        for _ in range(self.calls):
            flush()
            seconds, load = self._timed(1)
            spent_s += seconds - self._overhead_s
            loads.append(load)
        return spent_s, max(loads, key=lambda load: (bool(load.contaminated), load.waited or 0.0))


def run_race(
    sampler: Sampler, incumbent_s: float | None, rule: Rule, retries: int, warm_up_s: float | None = None
) -> Race:
    """Sample until the rule decides. A contaminated sample is put aside and repeated, at most `retries` times. When
    they are used up the race ends with the clean samples if there are enough of them; else all samples count and the
    race says so (`forced`). A loser need not be repeated: one whose bare running time is too long already is abandoned
    on contaminated samples too. `warm_up_s` is what the run before took, None if it is no evidence."""
    race = Race()
    sample = sampler.calibrate()
    while True:
        race.spent_s += sample.spent_s
        race.flags.update(sample.load.contaminated)
        if not sample.load.contaminated or race.forced:
            race.samples.append(sample.seconds)
        else:
            race.contaminated.append(sample.seconds)
            race.running.append(sample.bare_s)
            if decide(race.samples + race.running, incumbent_s, rule, 0.0, warm_up_s) is RaceVerdict.ABANDON:
                _count_all(race)
                race.verdict = RaceVerdict.ABANDON
            elif len(race.contaminated) > retries:
                _use_up(race, rule)
        if race.verdict is RaceVerdict.CONTINUE:
            race.verdict = decide(race.samples, incumbent_s, rule, race.spent_s, warm_up_s)
        if race.verdict is not RaceVerdict.CONTINUE:
            return race
        sample = sampler.sample()


def _use_up(race: Race, rule: Rule) -> None:
    if len(race.samples) >= rule.min_samples:
        race.verdict = RaceVerdict.ENOUGH
        return
    _count_all(race)


def _count_all(race: Race) -> None:
    race.forced = True
    race.samples += race.contaminated
    race.contaminated.clear()
