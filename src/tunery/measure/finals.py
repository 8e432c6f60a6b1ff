"""The last word on a task: its finalists, timed alone and in turn, so that drift and bursts hit all of them alike."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from tunery.domain import Measurement, Mode, Outcome, Verification
from tunery.measure.load import Watch
from tunery.measure.sampling import Sample, Sampler
from tunery.measure.settings import Settings

_STEADY = 0.02
_STEADY_RUN = 3


@dataclass(slots=True)
class Finalist:
    """One finalist's state: `sampler` is None once it is out of the running.

    `settled` is a sample from before the rounds; `beaten` says that this was far slower than the fastest, and is its
    only sample. `verify` completes the verification of one that is slow, if it may yet win; `rotate` lets its weights
    come from memory once it has settled. `disturbed` are the samples of contaminated rounds that were not repeated,
    `contaminated` those that do not count.
    """

    sampler: Sampler | None = None
    verification: Verification | None = None
    samples: list[float] = field(default_factory=list)
    disturbed: list[float] = field(default_factory=list)
    contaminated: list[float] = field(default_factory=list)
    spent_s: float = 0.0
    measure_s: float = 0.0
    forced: bool = False
    settled: Sample | None = None
    beaten: bool = False
    verify: Callable[[], Verification] | None = None
    rotate: Callable[[], None] | None = None
    error: str = ""
    traits: Mapping[str, Any] = field(default_factory=dict)

    def fail(self, error: Exception) -> None:
        """Take it out of the running."""
        self.error = f"{type(error).__name__}: {error}"[:500]
        self.sampler = None

    @property
    def wrong(self) -> bool:
        """Whether it computed something else than the reference."""
        return self.verification is not None and not self.verification.passed

    def wants_more(self, rounds: int, settings: Settings, fastest_s: float = 0.0) -> bool:
        """Whether it takes part in the next round: slow and hopeless ones stop early."""
        taken = len(self.samples) + len(self.disturbed)
        if self.sampler is None or self.wrong or self.beaten or taken >= rounds:
            return False
        if len(self.samples) >= settings.final_least and min(self.samples) > settings.hopeless * fastest_s > 0:
            return False
        return self.spent_s < settings.final_s or taken < settings.final_least

    def close(self, settings: Settings) -> None:
        """Count disturbed samples where too few others are left, and say so."""
        self.forced = bool(self.disturbed) and len(self.samples) < settings.final_least
        (self.samples if self.forced else self.contaminated).extend(self.disturbed)

    def measurement(self, context: Mapping[str, Any]) -> Measurement:
        """Return the result."""
        outcome, detail = Outcome.OK, ""
        if self.error:
            outcome, detail = Outcome.RUN_FAILED, self.error
        elif self.wrong and self.verification is not None:
            outcome, detail = Outcome.WRONG_RESULT, self.verification.detail
        own = {
            **self.traits,
            "calls": self.sampler.calls if self.sampler else 0,
            "contaminated": self.forced,
            "contaminated_s": list(self.contaminated),
        }
        samples = () if outcome is not Outcome.OK else tuple(self.samples)
        return Measurement(
            outcome, samples, Mode.FINAL, detail, {**context, **own}, self.verification, measure_s=self.measure_s
        )


def run_finals(finalists: Sequence[Finalist], rounds: int, settings: Settings, watch: Watch) -> int:
    """Time the finalists in rounds, in a new (seeded) order each, and return how many rounds were repeated.

    A round in which any sample was contaminated is put aside as a whole and repeated, at most `settings.retries` times.
    After that contaminated rounds take a clean one's place; they count, and the measurements say so, where fewer than
    `settings.final_least` clean samples were taken.
    """
    order = random.Random(settings.seed)  # noqa: S311 - shuffles, keeps no secret
    for finalist in finalists:
        if finalist.wants_more(rounds, settings) and finalist.settled is None:
            finalist.settled = _guarded(finalist, settle, settings)
    _leave_out_far_slower(finalists, settings)
    for finalist in finalists:
        if finalist.rotate is not None:
            finalist.rotate()
    repeats = 0
    while running := _running(finalists, rounds, settings):
        order.shuffle(running)
        mark = watch.mark(full=True)
        taken = [(finalist, sample) for finalist in running if (sample := _guarded(finalist, _sample, settings))]
        dirty = bool(watch.since(mark).contaminated) or any(sample.load.contaminated for _, sample in taken)
        repeat = dirty and repeats < settings.retries
        repeats += repeat
        for finalist, sample in taken:
            kept = finalist.disturbed if dirty else finalist.samples
            (finalist.contaminated if repeat else kept).append(sample.seconds)
    for finalist in finalists:
        finalist.close(settings)
    return repeats


def _leave_out_far_slower(finalists: Sequence[Finalist], settings: Settings) -> None:
    """Let those go that no noise can bring near the fastest, and verify the slow ones that stay."""
    staying = [(f, f.settled) for f in finalists if f.sampler is not None and f.settled is not None and not f.wrong]
    fastest_s = min((settled.seconds for _, settled in staying), default=0.0)
    for finalist, settled in staying:
        if settled.bare_s >= settings.far * fastest_s and settled.bare_s - fastest_s >= settings.far_s:
            finalist.samples, finalist.beaten = [settled.seconds], True
        elif finalist.verify is not None:
            try:
                finalist.verification = finalist.verify()
            except Exception as error:  # noqa: BLE001 - whatever a candidate raises is its outcome
                finalist.fail(error)


def _running(finalists: Sequence[Finalist], rounds: int, settings: Settings) -> list[Finalist]:
    fastest_s = min((min(f.samples) for f in finalists if f.samples and not f.wrong), default=0.0)
    return [finalist for finalist in finalists if finalist.wants_more(rounds, settings, fastest_s)]


def settle(sampler: Sampler, settings: Settings) -> Sample:
    """Choose the loop count, run until the last three samples agree within 2 %, or for `settle_s` seconds.

    Returns the shortest sample: others may be at work meanwhile.
    """
    sample = fastest = sampler.calibrate()
    recent, spent_s = [sample.seconds], sample.spent_s
    while spent_s < settings.settle_s:
        sample = sampler.sample()
        spent_s += sample.spent_s
        fastest = min(fastest, sample, key=lambda one: one.seconds)
        recent = [*recent[-_STEADY_RUN + 1 :], sample.seconds]
        if len(recent) == _STEADY_RUN and max(recent) - min(recent) <= _STEADY * median(recent):
            break
    return fastest


def _sample(sampler: Sampler, settings: Settings) -> Sample:
    """Take a sample; a short kernel runs once before, for the others have used the caches since its last turn."""
    if sampler.last_s < settings.untimed_below_s:
        sampler.warm_up()
    return sampler.sample()


def _guarded(finalist: Finalist, act: Callable[[Sampler, Settings], Sample], settings: Settings) -> Sample | None:
    if finalist.sampler is None:
        return None
    try:
        sample = act(finalist.sampler, settings)
    except Exception as error:  # noqa: BLE001 - whatever a candidate raises is its outcome
        finalist.fail(error)
        return None
    finalist.spent_s += sample.spent_s
    finalist.measure_s += sample.spent_s
    return sample
