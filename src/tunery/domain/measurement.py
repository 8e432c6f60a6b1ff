"""What was measured, how, and what may be concluded."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median
from typing import Any

from tunery.domain.candidate import Candidate


class Outcome(StrEnum):
    """How the life of a candidate ended."""

    OK = "ok"
    BUILD_FAILED = "build-failed"
    RUN_FAILED = "run-failed"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    WRONG_RESULT = "wrong-result"
    ABANDONED = "abandoned"
    FILTERED = "filtered"


class Mode(StrEnum):
    """Which kind of run a measurement was: the search's race, alone or beside others (shared), or the finals, alone.

    `context["degree"]` says how many measurements the device was shared by. A shared timing guides the search and never
    decides a winner while there is another.
    """

    RACE = "race"
    SHARED = "shared"
    FINAL = "final"


def paced(samples_s: Sequence[float], context: Mapping[str, Any]) -> tuple[float, ...]:
    """Return a final's samples without what the machine did to all that took turns: each over its round's pace.

    A context without as many paces, or with others than positive numbers, leaves the samples as they are.
    """
    pace = context.get("pace")
    if not isinstance(pace, list | tuple) or len(pace) != len(samples_s):
        return tuple(samples_s)
    if not all(isinstance(one, int | float) and 0 < one < math.inf for one in pace):
        return tuple(samples_s)
    return tuple(sample / one for sample, one in zip(samples_s, pace, strict=True))


@dataclass(frozen=True, slots=True)
class Verification:
    """How a candidate's numerics were compared with the unscheduled program's.

    `inputs` independent inputs were compared, each into poisoned outputs; `max_error` is the largest deviation
    as a share of the tolerance (1.0 is the limit). `passed` with `inputs` >= FULL is what delivery asks for.
    """

    method: str
    inputs: int
    max_error: float
    passed: bool
    detail: str = ""

    FULL = 3

    @property
    def deliverable(self) -> bool:
        """Whether a record with this verification may be handed out."""
        return self.passed and self.inputs >= Verification.FULL


@dataclass(frozen=True, slots=True)
class Measurement:
    """All samples (seconds for one execution each) of one run of a candidate, with the context it ran in.

    `context` holds what the device offered: threads, affinity, load, steal, clock. `build_s` and `measure_s` are the
    wall seconds that were paid for it.
    """

    outcome: Outcome
    samples_s: tuple[float, ...] = ()
    mode: Mode = Mode.RACE
    detail: str = ""
    context: Mapping[str, Any] = field(default_factory=dict)
    verification: Verification | None = None
    build_s: float = 0.0
    measure_s: float = 0.0

    @property
    def latency_s(self) -> float | None:
        return median(self.samples_s) if self.samples_s else None

    @property
    def reference_failed(self) -> bool:
        """Whether the task's reference did not run: then nothing is known of the candidate, nor will be of others."""
        return bool(self.context.get("reference_failed"))

    @property
    def paced_s(self) -> tuple[float, ...]:
        return paced(self.samples_s, self.context)


@dataclass(frozen=True, slots=True)
class Provenance:
    """Under which conditions a record holds: nothing here may be ignored when records are compared."""

    dialect: str
    compiler: str
    device: str
    settings: str


@dataclass(frozen=True, slots=True)
class Record:
    """A candidate, its measurement and its provenance, as stored.

    `host` is where it was measured: named as it was added, a service's own machine by its node; "" where not known.
    """

    candidate: Candidate
    measurement: Measurement
    provenance: Provenance
    job_id: str = ""
    host: str = ""

    @property
    def left_out(self) -> Mapping[str, str]:
        """What the search that found the candidate did without, and why."""
        found: Mapping[str, str] = self.measurement.context.get("left_out", {})
        return found
