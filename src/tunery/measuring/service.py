"""The measurer's worker: loads a built candidate, verifies and times it. Hangs and crashes are ended from outside."""

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from statistics import median
from typing import Any

from tunery.blobs import Blobs
from tunery.devices import Device, Load
from tunery.dialects import Array, Built, Codegen, Dialect, Kernel, get_dialect, open_built
from tunery.domain import (
    Artifact,
    Candidate,
    DeviceDescription,
    Measurement,
    Mode,
    Origin,
    Outcome,
    Task,
    TensorSpec,
    Verification,
)
from tunery.measuring.finals import LOOK, Finalist, run_finals
from tunery.measuring.hygiene import Repeats, drift, identical, pace
from tunery.measuring.inputs import make_inputs
from tunery.measuring.noise import Noise
from tunery.measuring.racing import RaceVerdict, Rule, decide
from tunery.measuring.references import References
from tunery.measuring.sampling import BadTimeError, Race, Sample, Sampler, clock_overhead, run_race
from tunery.measuring.settings import MeasuringSettings
from tunery.measuring.verification import compare

_LOOK_EVERY = 16
"""Of the candidates that their warm-up would give up, one in so many is raced."""

_TELLING_STEPS = 500  # of a clock's least step: on shorter samples healthy kernels agree by chance

_LONG, _LONG_UNTUNED = 4, 2
"""A run that takes so many times the rule's `max_s` is a sample, and one is enough; of what is not tuned sooner, since
it is only what the others are first compared with, and is timed again beside them in the finals."""

_IS_REFERENCE = Verification("is the reference", Verification.FULL, 0.0, passed=True)
"""Of the program that the others are compared with: right by definition."""


class Measurer:
    """The service of a measurer worker; every method takes and returns plain data. `dialect` is the compiler's plug-in
    or its name; `device` is opened, but its process not pinned yet. `blobs` have the artifacts, and keep reference
    outputs for other processes."""

    def __init__(
        self, dialect: str | Dialect, device: Device, blobs: Blobs, settings: MeasuringSettings | None = None,
        *, shares: bool = True,
    ) -> None:  # fmt: skip
        device.pin()  # before the compiler's runtime is loaded
        self._device = device
        self._described = device.describe()
        dialect = get_dialect(dialect) if isinstance(dialect, str) else dialect
        self._codegen = Codegen.of(dialect)
        self._settings = settings or MeasuringSettings()
        self._blobs = blobs
        seed = self._settings.seed
        if dialect.runs_users_code or not shares:  # no author may know the inputs that his kernel is verified on
            self._references = References(dialect, device, None, seed + secrets.randbits(48))
        else:
            self._references = References(dialect, device, blobs, seed)
        self._watch = device.watch()
        self._overhead_s = clock_overhead(device.clock)
        self._flush = device.flush_caches if self._settings.cache == "cold" else None
        self._buffers = device.constant_buffers(self._numbers) if self._settings.cache == "network" else None
        self._noise = {False: Noise(), True: Noise()}  # alone, and beside others
        self._lost_early = 0
        self._repeats = Repeats()
        self._meter = device.meter()
        self._window = self._watch.mark(full=True)
        self._window_from = device.clock()
        self._last_load: dict[str, Any] | None = None

    def describe(self) -> DeviceDescription:
        return self._described

    def race(  # noqa: PLR0917 - arguments cross a process border by position
        self,
        task: Task,
        artifact: Artifact,
        candidate: Candidate,
        incumbent_s: float | None,
        reference: Artifact,
        degree: int = 1,
        deviation: float = 0.0,
    ) -> Measurement:
        """Verify a candidate on one input, then sample it until it is beaten or known well enough. One that beats the
        incumbent is verified on all inputs, for it is the next incumbent. `incumbent_s` is the median latency of the
        best candidate so far, None if there is none; `reference` is the built unscheduled program. `degree` is how many
        measurements share the device meanwhile, `deviation` by which share that was seen to slow kernels of this task:
        a candidate is not given up for less. Whatever the kernel raises is an outcome: this method returns a
        measurement."""
        start = self._device.clock()
        built, yardstick = open_built(self._blobs, artifact), open_built(self._blobs, reference)
        long_s = self._settings.rule.max_s * (_LONG_UNTUNED if candidate.origin is Origin.BASELINE else _LONG)
        measurement = self._race(task, built, incumbent_s, yardstick, degree, deviation, long_s)
        if self._telling(measurement):
            other = self._repeats.check(task.key, candidate.key, measurement.samples_s)
            if other:
                measurement = _failed(BadTimeError(f"the clock shows the very times of candidate {other}"))
        sharing = {"degree": degree, "isolated": degree == 1, "deviation": deviation}
        return replace(
            measurement,
            mode=Mode.RACE if degree == 1 else Mode.SHARED,
            context={**measurement.context, **sharing, "candidate": candidate.key},
            measure_s=self._device.clock() - start,
        )

    def finals(  # noqa: PLR0917 - as `race`
        self,
        task: Task,
        artifacts: Sequence[Artifact],
        candidates: Sequence[Candidate],
        reference: Artifact,
        rounds: int,
        look: int = LOOK,
    ) -> list[Measurement]:
        """Verify the finalists fully and time them alone and interleaved; the caller puts the baseline among them.
        After every `look` of at most `rounds` rounds those leave that are clearly behind; with 0 all stay. Returns one
        measurement per candidate, in their order, in mode FINAL."""
        yardstick, *entrants = [open_built(self._blobs, one) for one in (reference, *artifacts)]
        finalists = [self._prepare(task, built, yardstick) for built in entrants]
        self._device.hold()
        mark, energy_j = self._watch.mark(full=True), self._meter.read_j()
        repeats = run_finals(finalists, rounds, self._settings, self._watch, look)
        load = self._watch.since(mark)
        shared = {**self._context(task), "load": _plain(load), "repeated_rounds": repeats, "rounds": rounds}
        shared["energy"] = {
            "joules": self._meter.read_j() - energy_j,
            "meter": self._meter.name,
            "modelled": self._meter.modelled,
        }
        shared["drift"] = drift([list(finalist.samples.values()) for finalist in finalists])
        paces = pace([f.samples for f in finalists if f.sampler is not None and not f.wrong and not f.beaten])
        broken = identical({i: list(finalist.samples.values()) for i, finalist in enumerate(finalists)})
        for i, finalist in enumerate(finalists):
            finalist.forced |= not shared["affinity_held"]
            if i in broken:
                finalist.fail(BadTimeError("the clock shows the very same times for different candidates"))
        results = []
        for finalist, candidate in zip(finalists, candidates, strict=True):
            own = {"pace": [paces[i] for i in finalist.samples]} if finalist.samples.keys() <= paces.keys() else {}
            results.append(finalist.measurement({**shared, "candidate": candidate.key, **own}))
        return results

    def _race(  # noqa: PLR0917 - `race` taken apart
        self,
        task: Task,
        built: Built,
        incumbent_s: float | None,
        reference: Built,
        degree: int,
        deviation: float,
        long_s: float,
    ) -> Measurement:
        verification = None
        if incumbent_s is not None and not 0 < incumbent_s < math.inf:
            incumbent_s = None
        try:
            inputs, expected = self._references.get(task, reference, 0)
        except Exception as error:  # noqa: BLE001 - the task has no reference: its candidates cannot be trusted
            failed = _failed(error, "the reference failed: ")
            return replace(failed, context={"reference_failed": True})
        try:
            kernel = self._codegen.load(task, built, self._device)
            kernel.bind(inputs)
            kernel.poison()
            sampler = self._sampler(kernel)
            warm_up = sampler.first_run()
            outputs = kernel.outputs()
            self._device.hold()  # a runtime starts its threads, and may move them, at its first call
            noise = self._noise[degree > 1]
            rule = noise.rule(self._settings.rule, task.key)
            rule = replace(rule, drift=rule.drift + deviation)
            race = self._by_warm_up(warm_up, incumbent_s, rule, long_s) or run_race(
                sampler, incumbent_s, rule, self._settings.retries, warm_up.bare_s
            )
            # Not before the samples: it would leave little of the kernel's data in the caches.
            verification = compare(expected, outputs, slack=kernel.slack)
            if not verification.passed:
                return Measurement(Outcome.WRONG_RESULT, detail=verification.detail, verification=verification)
            won = race.verdict is not RaceVerdict.ABANDON and median(race.samples) < (incumbent_s or math.inf)
            slow_first = incumbent_s is None and warm_up.seconds >= long_s
            if won and built.path != reference.path and not slow_first:
                # The next incumbent: wrong on other inputs, it would cost the healthy ones their chance.
                verification = self._references.verify(task, kernel, reference)
                if not verification.passed:
                    return Measurement(Outcome.WRONG_RESULT, detail=verification.detail, verification=verification)
        except Exception as error:  # noqa: BLE001 - whatever a candidate raises is its outcome
            return replace(_failed(error), verification=verification)
        if not race.forced and race.verdict is RaceVerdict.ENOUGH:
            noise.learn(race.samples)
        if not race.forced and not warm_up.load.contaminated and "warm-up-only" not in race.flags:
            noise.learn_cold(task.key, warm_up.seconds, race.samples, incumbent_s)
        context = self._context(task) | dict(kernel.traits)
        if not context["affinity_held"]:
            race.flags.add("affinity")
        context |= {**_race_context(race, rule, sampler.calls, warm_up.seconds), "load": self._load()}
        outcome = Outcome.ABANDONED if race.verdict is RaceVerdict.ABANDON else Outcome.OK
        verification = _IS_REFERENCE if built.path == reference.path else verification
        return Measurement(outcome, tuple(race.samples), Mode.RACE, context=context, verification=verification)

    def _by_warm_up(self, warm_up: Sample, incumbent_s: float | None, rule: Rule, long_s: float) -> Race | None:
        """Return a race that is over with the warm-up. It is lost if even the noise of such runs cannot explain how
        slow that was; some of those are raced all the same, or nobody would notice that such runs take longer now.
        Without an incumbent it is done if one sample would be enough for so slow a kernel: naive loops take seconds."""
        taken, flags = [warm_up.seconds], {"warm-up-only", *warm_up.load.contaminated}
        if incumbent_s is None:
            if warm_up.seconds < long_s:
                return None
            return Race(samples=taken, spent_s=warm_up.seconds, verdict=RaceVerdict.ENOUGH, flags=flags)
        seconds = warm_up.bare_s
        far = seconds >= self._settings.far * incumbent_s and seconds - incumbent_s >= self._settings.far_s
        if not far:
            if decide([], incumbent_s, rule, warm_up_s=seconds) is not RaceVerdict.ABANDON:
                return None
            self._lost_early += 1
            if self._lost_early % _LOOK_EVERY == 0:
                return None
        return Race(samples=taken, spent_s=warm_up.seconds, verdict=RaceVerdict.ABANDON, flags=flags)

    def _telling(self, measurement: Measurement) -> bool:
        """Whether its samples are so much longer than the clock's steps that no two kernels agree by chance."""
        if not measurement.samples_s or "warm-up-only" in measurement.context.get("flags", ()):
            return False
        calls = int(measurement.context["calls"])
        return min(measurement.samples_s) * calls >= _TELLING_STEPS * self._overhead_s

    def _prepare(self, task: Task, built: Built, reference: Built) -> Finalist:
        start = self._device.clock()
        finalist = Finalist()
        try:
            kernel = self._codegen.load(task, built, self._device)
            finalist.sampler, finalist.traits = self._sampler(kernel), kernel.traits
            if self._buffers is not None:
                finalist.cool_constants = partial(kernel.use_cold_constants, self._buffers)
            if built.path == reference.path:
                kernel.bind(self._references.get(task, reference, 0)[0])
                finalist.verification = _IS_REFERENCE
            else:
                self._verify_finalist(task, finalist, kernel, reference)
        except Exception as error:  # noqa: BLE001 - as in a race
            finalist.fail(error)
        finalist.measure_s = self._device.clock() - start
        return finalist

    def _verify_finalist(self, task: Task, finalist: Finalist, kernel: Kernel, reference: Built) -> None:
        """Compare it on one input; on all only if it stays beside the fastest."""
        assert finalist.sampler is not None
        inputs, expected = self._references.get(task, reference, 0)
        kernel.bind(inputs)
        kernel.poison()
        first = finalist.sampler.first_run()
        finalist.verification = compare(expected, kernel.outputs(), slack=kernel.slack)
        finalist.verify = partial(self._references.verify, task, kernel, reference)
        if first.seconds >= _LONG * self._settings.rule.max_s:
            finalist.settled = first

    def _numbers(self, count: int, dtype: str) -> Array:
        return make_inputs([TensorSpec("", (count,), dtype)], self._settings.seed)[0]

    def _sampler(self, kernel: Kernel) -> Sampler:
        return Sampler(kernel, self._watch, self._settings, self._overhead_s, self._device.clock, self._flush)

    def _context(self, task: Task) -> dict[str, Any]:
        held = self._device.hold()
        return {
            "device": self._described.fingerprint,
            "affinity_held": held,
            "threads": task.target.threads,
            "isolated": True,
            "degree": 1,
            "cache": self._settings.cache,
            "settings": self._settings.key,
            "clock_overhead_s": self._overhead_s,
            **self._device.conditions(),
        }

    def _load(self) -> dict[str, Any]:
        """Return the load over the latest window that has ended, races before included. A full look is dear beside a
        short race, and says little of a shorter window."""
        if self._last_load is None or self._device.clock() - self._window_from >= self._watch.least_s:
            self._last_load = _plain(self._watch.since(self._window))
            self._window, self._window_from = self._watch.mark(full=True), self._device.clock()
        return self._last_load


def _race_context(race: Race, rule: Rule, calls: int, warm_up_s: float) -> Mapping[str, Any]:
    return {
        "calls": calls,
        "warm_up_s": warm_up_s,
        "contaminated": race.forced or "affinity" in race.flags,
        "contaminated_s": list(race.contaminated),
        "flags": sorted(race.flags),
        "noise": rule.noise,
        "persistence": rule.persistence,
        "cold": {name: asdict(known) for name, known in (("first", rule.first), ("warm_up", rule.warm_up)) if known},
    }


def _plain(load: Load) -> dict[str, Any]:
    return {**asdict(load), "contaminated": list(load.contaminated)}


def _failed(error: Exception, prefix: str = "") -> Measurement:
    return Measurement(Outcome.RUN_FAILED, detail=f"{prefix}{type(error).__name__}: {error}"[:500])
