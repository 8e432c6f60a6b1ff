"""The measurer of the study of measurement: candidates timed as others do it, and as we do it."""

from dataclasses import dataclass, replace
from typing import Any

from tunery.blobs import Blobs
from tunery.devices import Load, Watch
from tunery.devices.cpu.device import CpuDevice
from tunery.dialects import open_built
from tunery.domain import Artifact, Candidate, Measurement, Mode, Outcome, Task
from tunery.measuring.racing import Rule
from tunery.measuring.service import Measurer
from tunery.measuring.settings import MeasuringSettings
from tunery.runtime.services import MeasurerHost

FIXED = MeasuringSettings(rule=Rule(precision=0.0, max_s=10.0, min_samples=10))
"""Ten samples for every candidate, whatever they show."""
_NUMBER, _MIN_REPEAT_S = 3, 0.1
_GROWTH = 1.618


class BlindWatch(Watch[None]):
    """Sees nothing: every sample counts as clean."""

    least_s = 0.25

    def mark(self, full: bool = False) -> None:
        """Look at nothing."""

    def since(self, mark: None) -> Load:  # noqa: ARG002 - there was nothing to see
        """Find nothing."""
        return Load(0.0)


class UnwatchedCpu(CpuDevice):
    """This machine's CPU, whatever else it does."""

    def watch(self) -> BlindWatch:  # type: ignore[override]  # another kind of watch, on purpose
        """Return a watch that sees nothing."""
        return BlindWatch()


@dataclass(frozen=True, slots=True)
class _Kit:
    raced: Measurer
    fixed: Measurer
    blind: Measurer


class StudyMeasurer(MeasurerHost):
    """The measurer with other procedures beside `race`; all take its arguments."""

    def __init__(self, dialect: str, device: str, cores: tuple[int, ...], slot: tuple[int, ...], blobs: Blobs) -> None:
        super().__init__(dialect, device, cores, slot, blobs)
        self._fixed = Measurer(dialect, CpuDevice(cores, slot), blobs, FIXED)
        self._blind = Measurer(dialect, UnwatchedCpu(cores, slot), blobs)

    def fixed(
        self,
        task: Task,
        artifact: Artifact,
        candidate: Candidate,
        incumbent_s: float | None,  # noqa: ARG002 - nobody is given up
        reference: Artifact,
        degree: int = 1,
        deviation: float = 0.0,
    ) -> Measurement:
        """Take ten samples of at least 100 µs each."""
        return self._fixed.race(task, artifact, candidate, None, reference, degree, deviation)

    def blind(
        self,
        task: Task,
        artifact: Artifact,
        candidate: Candidate,
        incumbent_s: float | None,
        reference: Artifact,
        degree: int = 1,
        deviation: float = 0.0,
    ) -> Measurement:
        """Race without a watch."""
        return self._blind.race(task, artifact, candidate, incumbent_s, reference, degree, deviation)

    def spin(self, task: Task, artifact: Artifact, reference: Artifact, seconds: float) -> float:
        """Run a kernel over and over for so many seconds; return how often a second it ran."""
        kernel = self._codegen.load(task, open_built(self._blobs, artifact), self._device)
        kernel.bind(self._references.get(task, open_built(self._blobs, reference), 0)[0])
        calls, start = 0, self._device.clock()
        while (spent_s := self._device.clock() - start) < seconds or not calls:
            kernel.run()
            calls += 1
        return calls / spent_s

    def stock(
        self,
        task: Task,
        artifact: Artifact,
        candidate: Candidate,
        incumbent_s: float | None,  # noqa: ARG002 - nobody is given up
        reference: Artifact,
        degree: int = 1,
        deviation: float = 0.0,  # noqa: ARG002 - nobody is given up
    ) -> Measurement:
        """Time as MetaSchedule's evaluator does by default: number 3, repeat 1, at least 100 ms, no verification.

        One untimed run, then loops of growing length until one lasts 100 ms; that loop is the only sample.
        """
        kernel = self._codegen.load(task, open_built(self._blobs, artifact), self._device)
        kernel.bind(self._references.get(task, open_built(self._blobs, reference), 0)[0])
        start = self._device.clock()
        kernel.run()
        warm_up_s = float(self._device.clock() - start)
        number, spent_s = _NUMBER, kernel.time(_NUMBER)
        total_s = spent_s
        while spent_s < _MIN_REPEAT_S and spent_s > 0:
            number = int(max(_MIN_REPEAT_S / (spent_s / number) + 1, number * _GROWTH))
            spent_s = kernel.time(number)
            total_s += spent_s
        context: dict[str, Any] = {"calls": number, "warm_up_s": warm_up_s, "device_s": warm_up_s + total_s}
        return Measurement(
            Outcome.OK, (spent_s / number,), Mode.RACE if degree == 1 else Mode.SHARED,
            context={**context, "candidate": candidate.key}, measure_s=self._device.clock() - start,
        )  # fmt: skip


def device_s(measurement: Measurement) -> float:
    """Return how long a candidate's kernel ran to be timed: warm-up and all samples, repeated ones included."""
    context: dict[str, Any] = dict(measurement.context)
    if "device_s" in context:
        return float(context["device_s"])
    if "warm-up-only" in context.get("flags", ()):
        return float(context["warm_up_s"])
    if "calls" not in context:
        return measurement.measure_s  # it failed
    taken = [*measurement.samples_s, *context.get("contaminated_s", ())]
    return float(context.get("warm_up_s", 0.0) + context["calls"] * sum(taken))


def as_race(measurement: Measurement) -> Measurement:
    """Return a measurement as the finals' selection wants it: stock's single sample has no interval but itself."""
    return replace(measurement, mode=Mode.RACE) if measurement.mode is Mode.SHARED else measurement
