"""The scheduler's events and decisions, and the log of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class StageRequest:
    """One stage that could run now. `size` is the units of work in it (candidates in a batch) and scales its predicted
    duration; `affinity` names the one worker it may run on, which runs one stage at a time. It is `delivered`, or
    only measured."""

    stage_id: str
    job_id: str
    kind: str
    task_kind: str = ""
    needs: Mapping[str, int] = field(default_factory=dict)
    size: int = 1
    affinity: str | None = None
    delivered: bool = False


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """A job joins. Its share grows with `weight` (0.01 to 100) and doubles with each step of `priority` (0 to 10).
    `planned` is how many units of work it will want in all, 0 if unknown."""

    at_s: float
    job_id: str
    owner: str = ""
    weight: float = 1.0
    priority: int = 0
    planned: int = 0


@dataclass(frozen=True, slots=True)
class StageReady:
    """A stage may run from now on."""

    at_s: float
    request: StageRequest


@dataclass(frozen=True, slots=True)
class StageFinished:
    """A running stage ended, well or not; its resources are free."""

    at_s: float
    stage_id: str
    ok: bool = True


@dataclass(frozen=True, slots=True)
class StageWithdrawn:
    """A stage that was ready is not wanted any more; without effect once it runs."""

    at_s: float
    stage_id: str


@dataclass(frozen=True, slots=True)
class JobEnded:
    """A job has no more stages to submit; those still ready are dropped, those running may finish."""

    at_s: float
    job_id: str


@dataclass(frozen=True, slots=True)
class JobCancelled:
    """A job is given up: its ready stages are dropped, its running stages are to be stopped."""

    at_s: float
    job_id: str


@dataclass(frozen=True, slots=True)
class JobPaused:
    """A job's ready stages wait; its running stages finish."""

    at_s: float
    job_id: str


@dataclass(frozen=True, slots=True)
class JobResumed:
    """A paused job goes on."""

    at_s: float
    job_id: str


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker died: the stages it ran (`stage_ids`, and any with affinity to it) are ready again, unfinished."""

    at_s: float
    worker: str
    stage_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CapacityChanged:
    """A resource shrinks or grows: foreign load takes cores, memory gets tight, a device joins or leaves. Running
    stages go on; stages that no longer fit wait, and are refused only if they exceed all it ever had."""

    at_s: float
    resource: str
    capacity: int


Event = (
    JobSubmitted
    | StageReady
    | StageFinished
    | StageWithdrawn
    | JobEnded
    | JobCancelled
    | JobPaused
    | JobResumed
    | WorkerLost
    | CapacityChanged
)


@dataclass(frozen=True, slots=True)
class Run:
    """Start this stage now; its resources are taken. `predicted_s` is how long it is expected to run."""

    stage_id: str
    predicted_s: float


@dataclass(frozen=True, slots=True)
class Stop:
    """End this running stage now, then report it finished with `ok=False`."""

    stage_id: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """This job or stage (its id) will never be run, for this reason; nobody else is affected."""

    subject: str
    reason: str


Decision = Run | Stop | Refuse

LEAST_WEIGHT, MOST_WEIGHT = 0.01, 100.0
"""Of a job: beyond, one job's share would leave the others none."""


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """Events that were handled together and the decisions they led to."""

    events: tuple[Event, ...]
    decisions: tuple[Decision, ...]


@dataclass(frozen=True, slots=True)
class EventLog:
    """All that is needed to run a scheduler again: its resources, its strategy and its events in order."""

    resources: dict[str, int]
    strategy: str
    entries: list[LoggedStep]
