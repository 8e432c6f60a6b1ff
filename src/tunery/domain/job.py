"""One user's request and its life, and the problems of a delivery."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tunery.domain.budget import Prospect, Spend
from tunery.domain.measurement import Candidate, Outcome

DEFAULT_KIND = "tune"
"""The kind of a job that does not say what it is, as those of earlier versions."""

PHASE = "phase"
"""The kind of a job's events that tell which phase has begun."""


class JobState(StrEnum):
    """Where a job stands."""

    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class TaskState:
    """One task's standing inside a job; latencies are None until measured. Of the candidates the filter would have
    `dropped`, `audited` were measured all the same, and `false_drops` (0 or 1) of these is the task's best. `untried`
    says that nothing but what the compiler does untuned was ever run, though more could be. Of its `timings`, finals
    included, `contaminated` were made while others used the machine. `degree` is how many of its candidates may be
    measured at once, as of its last batch. `preempted` says that others gained more for their cost when the job ended,
    `problem` why the search of the task was given up, if it was. `dialect` is the task's ("" in jobs of earlier
    versions). `parameters` are what its best candidate chooses, `default` what the compiler's default does, by names
    that a user knows; `all_tried` counts the candidates if there are no others. `best_host` is where its best candidate
    was measured, if not where this job measures."""

    task_key: str
    workload_key: str
    name: str
    kind: str
    weight: int
    tunable: bool
    baseline_s: float | None = None
    best_s: float | None = None
    best_candidate: str | None = None
    untried: bool = False
    measured: int = 0
    outcomes: Mapping[str, int] = field(default_factory=dict)
    dropped: int = 0
    audited: int = 0
    false_drops: int = 0
    timings: int = 0
    contaminated: int = 0
    degree: int = 1
    preempted: bool = False
    problem: str = ""
    dialect: str = ""
    parameters: Mapping[str, str | float] = field(default_factory=dict)
    default: Mapping[str, str | float] = field(default_factory=dict)
    all_tried: int | None = None
    best_host: str = ""

    @property
    def unreached(self) -> bool:
        """Whether nothing is known of what could be tuned but its untuned latency: the budget ended before its turn.
        What was only proposed, and not built, counts as nothing."""
        known = self.problem or (self.best_candidate is not None and not self.untried)
        return self.tunable and not known and not self.tried

    @property
    def tried(self) -> bool:
        return any(self.outcomes[o] for o in self.outcomes if o != Outcome.FILTERED)


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job as shown to its user. `request` is the plain data it was submitted with; resuming needs nothing else.
    `remaining` is what is left of each limit of its budget (`seconds`, `trials`, `money`, `joules`), `outlook` what
    more spending would probably buy. `problem` is the type (RFC 9457) of the error that has ended it, if one has."""

    job_id: str
    state: JobState
    request: Mapping[str, str | int | float | bool | None]
    spend: Spend = field(default_factory=Spend)
    tasks: tuple[TaskState, ...] = ()
    message: str = ""
    remaining: Mapping[str, float] = field(default_factory=dict)
    outlook: tuple[Prospect, ...] = ()
    created_at: float = 0.0
    updated_at: float = 0.0
    problem: str = ""

    @property
    def kind(self) -> str:
        return str(self.request.get("kind", DEFAULT_KIND))


class Rung(StrEnum):
    """How strong the evidence behind an answer is, strongest first."""

    EXACT = "exact"
    COMPATIBLE = "compatible-device"
    ZERO_SHOT = "zero-shot"
    DEFAULT = "compiler-default"


@dataclass(frozen=True, slots=True)
class Choice:
    """What is delivered for one task: the candidate, its latency as re-timed in isolation, and its rung. `candidate` is
    None on the last rung: the compiler's own default is used. `source` says where the candidate was measured, if not on
    this host; on the rung of compatible devices the latencies are those of there."""

    task_key: str
    rung: Rung
    candidate: Candidate | None = None
    latency_s: float | None = None
    baseline_s: float | None = None
    source: str = ""
