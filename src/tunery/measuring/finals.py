"""The last word on a task: its finalists, timed alone and in turn, so that drift and bursts hit all of them alike."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from tunery.devices import Watch
from tunery.domain import Measurement, Mode, Outcome, Verification, median_interval
from tunery.domain.measurement import CLOSE
from tunery.domain.turns import Turn, in_turns
from tunery.measuring.hygiene import pace
from tunery.measuring.sampling import Sample, Sampler
from tunery.measuring.settings import MeasuringSettings

LOOK = 8
"""After every so many rounds those leave that the best has clearly beaten."""
_ENOUGH = 40
"""Rounds after which nobody need stay beside the last one."""
_STEADY = 0.02
_STEADY_RUN = 3
_TAKES = 3
_FULL_FROM_S = 0.05


@dataclass(slots=True, eq=False)
class Finalist:
    """One finalist's state: `sampler` is None once it is out of the running. `samples` and `disturbed` are by round:
    the latter those of contaminated rounds that were not repeated; `contaminated` are samples that do not count.
    `settled` is one from before the rounds; `beaten` says that this was far slower than the fastest, and is its only
    sample; `behind`, that it lost the rounds it took part in. `verify` completes the verification, which those that
    left need not; `cool_constants` lets its weights come from memory once it has settled."""

    sampler: Sampler | None = None
    verification: Verification | None = None
    samples: dict[int, float] = field(default_factory=dict)
    disturbed: dict[int, float] = field(default_factory=dict)
    contaminated: list[float] = field(default_factory=list)
    spent_s: float = 0.0
    measure_s: float = 0.0
    forced: bool = False
    settled: Sample | None = None
    beaten: bool = False
    behind: bool = False
    verify: Callable[[], Verification] | None = None
    cool_constants: Callable[[], None] | None = None
    error: str = ""
    traits: Mapping[str, Any] = field(default_factory=dict)

    def fail(self, error: Exception) -> None:
        self.error = f"{type(error).__name__}: {error}"[:500]
        self.sampler = None

    @property
    def wrong(self) -> bool:
        """Whether it computed something else than the reference."""
        return self.verification is not None and not self.verification.passed

    def verified(self) -> bool:
        if self.sampler is None or self.verify is None:
            return self.sampler is not None and not self.wrong
        try:
            self.verification, self.verify = self.verify(), None
        except Exception as error:  # noqa: BLE001 - whatever a candidate raises is its outcome
            self.fail(error)
            return False
        if self.cool_constants is not None:
            self.cool_constants()  # it was bound anew
        return not self.wrong

    def wants_more(self, rounds: int, settings: MeasuringSettings, fastest_s: float = 0.0) -> bool:
        """Whether it takes part in the next round: slow and hopeless ones stop early."""
        taken = len(self.samples) + len(self.disturbed)
        if self.sampler is None or self.wrong or self.beaten or self.behind or taken >= rounds:
            return False
        if len(self.samples) >= settings.final_least and min(self.samples.values()) > settings.hopeless * fastest_s > 0:
            return False
        return self.spent_s < settings.final_s or taken < settings.final_least

    def close(self, settings: MeasuringSettings) -> None:
        self.forced = bool(self.disturbed) and len(self.samples) < settings.final_least
        if self.forced:
            self.samples |= self.disturbed
        else:
            self.contaminated.extend(self.disturbed.values())

    def measurement(self, context: Mapping[str, Any]) -> Measurement:
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
        samples = () if outcome is not Outcome.OK else tuple(self.samples.values())
        return Measurement(
            outcome, samples, Mode.FINAL, detail, {**context, **own}, self.verification, measure_s=self.measure_s
        )


def run_finals(
    finalists: Sequence[Finalist], rounds: int, settings: MeasuringSettings, watch: Watch[Any], look: int = LOOK
) -> int:
    """Time the finalists in rounds, in a new (seeded) order each, and return how many rounds were repeated. After every
    `look` rounds (0: never) those leave that are behind, so that many may enter, and near ones stay long (the idea of
    racing: Maron and Moore, Hoeffding Races, NIPS 1993; by what several took in the same round: Birattari et al.,
    F-Race, GECCO 2002). A round in which any sample was contaminated is put aside as a whole and repeated, at most
    `settings.retries` times. After that contaminated rounds take a clean one's place; they count, and the measurements
    say so, where fewer than `settings.final_least` clean samples were taken."""
    _settle_all(finalists, rounds, settings)
    held = _Rounds(finalists, rounds, settings, watch, look)
    for turn, finalist in in_turns(held.turns, held.next, held.is_over):
        if (sample := _sample(finalist, settings)) is not None:
            turn.taken[finalist] = sample
    for finalist in finalists:
        if not (finalist.beaten or finalist.behind or finalist.wrong):
            finalist.verified()
        finalist.close(settings)
    return held.repeats


class _Rounds:
    """Who takes part in the next round, and what the last one says; `repeats` of the `turns` do not count."""

    def __init__(
        self, finalists: Sequence[Finalist], rounds: int, settings: MeasuringSettings, watch: Watch[Any], look: int
    ) -> None:
        self._finalists, self._rounds, self._settings = finalists, rounds, settings
        self._watch, self._look = watch, look
        self._mark: Any = None
        self._order = random.Random(settings.seed)  # noqa: S311 - shuffles, keeps no secret
        self.turns: list[Turn[Finalist, Sample]] = []
        self.repeats = 0

    def next(self) -> list[Finalist]:
        while running := _running(self._finalists, self._rounds, self._settings):
            done = len(self.turns) - self.repeats
            if self._look and done % self._look == 0:
                _leave_out_behind(running, 1 if done >= _ENOUGH else 2)
                running = [finalist for finalist in running if not finalist.behind]
                if len(running) == 1 and done >= _ENOUGH:
                    return []
            if done < self._look or all(finalist.verified() for finalist in running):
                break
        self._order.shuffle(running)
        # A full look is dear, and says nothing of a short round.
        full = 2 * sum(f.sampler.last_s for f in running if f.sampler) >= _FULL_FROM_S
        self._mark = self._watch.mark(full=full)
        return running

    def is_over(self, turns: Sequence[Turn[Finalist, Sample]]) -> bool:
        number, taken = len(turns) - 1, turns[-1].taken
        dirty = bool(self._watch.since(self._mark).contaminated)
        dirty = dirty or any(sample.load.contaminated for sample in taken.values())
        repeat = dirty and self.repeats < self._settings.retries
        self.repeats += repeat
        for finalist, sample in taken.items():
            if repeat:
                finalist.contaminated.append(sample.seconds)
            else:
                (finalist.disturbed if dirty else finalist.samples)[number] = sample.seconds
        return False


def _settle_all(finalists: Sequence[Finalist], rounds: int, settings: MeasuringSettings) -> None:
    """Take each one's first samples; what the clocks need to become steady they need once, not for each."""
    left_s = settings.settle_s

    def act(sampler: Sampler, settings: MeasuringSettings) -> Sample:
        nonlocal left_s
        sample, spent_s = settle(sampler, settings, left_s)
        left_s -= spent_s
        return sample

    for finalist in finalists:
        if finalist.wants_more(rounds, settings) and finalist.settled is None:
            finalist.settled = _guarded(finalist, act, settings)
    _leave_out_far_slower(finalists, settings)
    for finalist in finalists:
        if finalist.cool_constants is not None:
            finalist.cool_constants()


def _leave_out_far_slower(finalists: Sequence[Finalist], settings: MeasuringSettings) -> None:
    """Let those go that no noise can bring near the fastest."""
    staying = [(f, f.settled) for f in finalists if f.sampler is not None and f.settled is not None and not f.wrong]
    fastest_s = min((settled.seconds for _, settled in staying), default=0.0)
    for finalist, settled in staying:
        if settled.bare_s >= settings.far * fastest_s and settled.bare_s - fastest_s >= settings.far_s:
            finalist.samples, finalist.beaten = {0: settled.seconds}, True


def _leave_out_behind(running: Sequence[Finalist], least: int) -> None:
    """Let those go that were slower than the best, by more than a tie, in more of the rounds than chance explains. The
    best is verified first: a wrong one sends nobody home. A disturbed round counts like another: it disturbed all. The
    `least` best stay: of one alone nothing tells the pace."""
    taken = [finalist.samples | finalist.disturbed for finalist in running]
    paces = pace(taken)
    if not paces:
        return
    usual = [median(samples[i] / paces[i] for i in paces if i in samples) for samples in taken]
    ranked = sorted(range(len(running)), key=usual.__getitem__)
    first = next((i for i in ranked if running[i].verified()), None)
    if first is None:
        return
    best = taken[first]
    for i in [i for i in ranked if i != first and not running[i].wrong][least - 1 :]:
        found = median_interval([taken[i][at] / best[at] for at in best if at in taken[i]])
        running[i].behind = found is not None and found[0] > 1 + CLOSE


def _running(finalists: Sequence[Finalist], rounds: int, settings: MeasuringSettings) -> list[Finalist]:
    fastest_s = min((min(f.samples.values()) for f in finalists if f.samples and not f.wrong), default=0.0)
    return [finalist for finalist in finalists if finalist.wants_more(rounds, settings, fastest_s)]


def settle(sampler: Sampler, settings: MeasuringSettings, within_s: float) -> tuple[Sample, float]:
    """Choose the loop count and run until the last three samples agree within 2 %, or for `within_s` seconds. Short
    ones run three times in any case. Returns the shortest sample, for others may be at work meanwhile, and the seconds
    that all took."""
    sample = fastest = sampler.calibrate()
    recent, spent_s, taken = [sample.seconds], sample.spent_s, 1
    while spent_s < within_s or (taken < _STEADY_RUN and sample.spent_s < settings.untimed_below_s):
        sample = sampler.sample()
        spent_s, taken = spent_s + sample.spent_s, taken + 1
        fastest = min(fastest, sample, key=lambda one: one.seconds)
        recent = [*recent[-_STEADY_RUN + 1 :], sample.seconds]
        if len(recent) == _STEADY_RUN and max(recent) - min(recent) <= _STEADY * median(recent):
            break
    return fastest, spent_s


def _sample(finalist: Finalist, settings: MeasuringSettings) -> Sample | None:
    """Take a sample, again at once while it is disturbed and costs little; None if it failed."""
    for left in reversed(range(_TAKES)):
        sample = _guarded(finalist, _turn, settings)
        if sample is None or not left or not sample.load.contaminated or sample.spent_s >= settings.untimed_below_s:
            return sample
        finalist.contaminated.append(sample.seconds)
    return None


def _turn(sampler: Sampler, settings: MeasuringSettings) -> Sample:
    """Take a sample; a short kernel runs once before, for the others have used the caches since its last turn."""
    if sampler.last_s < settings.untimed_below_s:
        sampler.warm_up()
    return sampler.sample()


def _guarded(
    finalist: Finalist, act: Callable[[Sampler, MeasuringSettings], Sample], settings: MeasuringSettings
) -> Sample | None:
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
