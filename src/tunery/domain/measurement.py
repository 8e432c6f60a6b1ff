"""What was measured, how, and what may be concluded."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from statistics import median
from typing import Any

from tunery.domain.keys import BlobDigest


class Origin(StrEnum):
    """Where a candidate came from."""

    SEARCH = "search"
    BASELINE = "baseline"
    PLANTED = "planted"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One implementation: `body` is plain data of the dialect (a trace of its schedule as JSON, say). `key` is the hash
    of the program it lowers to, so two different bodies with the same program are one candidate. `score` is the cost
    model's prediction when it was proposed (higher is faster), if there was one."""

    key: str
    task_key: str
    body: str
    origin: Origin = Origin.SEARCH
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Artifact:
    """A built candidate: the SHA-256 of its file, and what else the dialect needs to load it, in text of its own."""

    candidate_key: str
    blob: BlobDigest
    size_bytes: int
    manifest: str = ""


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
    decides a winner while there is another."""

    RACE = "race"
    SHARED = "shared"
    FINAL = "final"


def paced(samples_s: Sequence[float], context: Mapping[str, Any]) -> tuple[float, ...]:
    """Return a final's samples without what the machine did to all that took turns: each over its round's pace. A
    context without as many paces, or with others than positive numbers, leaves the samples as they are."""
    pace = context.get("pace")
    if not isinstance(pace, list | tuple) or len(pace) != len(samples_s):
        return tuple(samples_s)
    if not all(isinstance(one, int | float) and 0 < one < math.inf for one in pace):
        return tuple(samples_s)
    return tuple(sample / one for sample, one in zip(samples_s, pace, strict=True))


@dataclass(frozen=True, slots=True)
class Verification:
    """How a candidate's numerics were compared with the unscheduled program's. `inputs` independent inputs were
    compared, each into poisoned outputs; `max_error` is the largest deviation as a share of the tolerance (1.0 is the
    limit). `passed` with `inputs` >= FULL is what delivery asks for; the last of them have special values. `version` is
    that of the inputs and the rule, 0 in records that know none: what an earlier one has passed is verified again."""

    method: str
    inputs: int
    max_error: float
    passed: bool
    detail: str = ""
    version: int = 1

    FULL = 4
    VERSION = 1

    @property
    def deliverable(self) -> bool:
        """Whether a record with this verification may be handed out."""
        return self.passed and self.inputs >= Verification.FULL and self.version >= Verification.VERSION


@dataclass(frozen=True, slots=True)
class Measurement:
    """All samples (seconds for one execution each) of one run of a candidate, with the context it ran in. `context`
    holds what the device offered: threads, affinity, load, steal, clock. `build_s` and `measure_s` are the wall seconds
    that were paid for it."""

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
    """A candidate, its measurement and its provenance, as stored. `host` is where it was measured: named as it was
    added, a service's own machine by its node; "" where not known."""

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


CLOSE = 0.005
"""Within the noise of wide intervals much slower candidates would count as equal: a tie costs at most this share."""
CLOSE_BASELINE = 0.25
"""The same for the compiler's default, which has the benefit of the doubt."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A candidate's key, its samples (seconds for one execution each), and whether it is the compiler's default."""

    key: str
    samples_s: tuple[float, ...]
    baseline: bool = False


def best_first(contenders: Sequence[Contender]) -> list[int]:
    """Return the contenders' indices, best first. Those whose interval of the median overlaps that of the fastest are
    tied with it, if their median lies within half a percent too, the baseline's within 25 %. They come first: the
    baseline, then the others by key; then the rest by median. So the same samples give the same order in any order of
    the contenders, and a candidate that cannot be told from the baseline does not replace it."""
    intervals = [interval(contender.samples_s) for contender in contenders]
    by_median = sorted(range(len(contenders)), key=lambda i: (intervals[i][1], contenders[i].key))
    if not by_median:
        return []
    _, fastest, reach = intervals[by_median[0]]
    overlap = [i for i in by_median if intervals[i][0] <= reach]
    close = {True: CLOSE_BASELINE, False: CLOSE}
    tied = [i for i in overlap if intervals[i][1] <= fastest * (1 + close[contenders[i].baseline])]
    tied.sort(key=lambda i: (not contenders[i].baseline, contenders[i].key))
    return tied + [i for i in by_median if i not in tied]


def interval(samples: Sequence[float]) -> tuple[float, float, float]:
    """Return low end, median and high end; the full range where the samples are too few for a 95 % interval."""
    ordered = sorted(samples)
    half = len(ordered) // 2
    middle = ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
    low, high = median_interval(samples) or (ordered[0], ordered[-1])
    return low, middle, high


def median_interval(samples: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    rank = _rank(len(samples), confidence)
    if rank == 0:
        return None
    ordered = sorted(samples)
    return ordered[rank - 1], ordered[-rank]


@lru_cache(maxsize=4096)
def _rank(n: int, confidence: float) -> int:
    """Return the largest k for which the k-th smallest and k-th largest of n samples enclose the median."""
    rank, below = 0, 0.0
    while True:
        below += math.comb(n, rank) / 2**n
        if 2 * below > 1 - confidence or rank >= n // 2:
            return rank
        rank += 1
