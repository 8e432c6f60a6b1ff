"""What the scheduler hears and says, as plain frozen records that survive JSON, and the log of a run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from tunery._errors import UsageError


@dataclass(frozen=True, slots=True)
class StageRequest:
    """One stage that could run now. `size` is the units of work in it (candidates in a batch) and scales its predicted
    duration; `affinity` names the one worker it may run on, which runs one stage at a time."""

    stage_id: str
    job_id: str
    kind: str
    task_kind: str = ""
    needs: Mapping[str, int] = dataclasses.field(default_factory=dict)
    size: int = 1
    affinity: str | None = None


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

_KINDS: dict[str, type[Any]] = {
    cls.__name__: cls
    for cls in (
        JobSubmitted,
        StageReady,
        StageFinished,
        StageWithdrawn,
        JobEnded,
        JobCancelled,
        JobPaused,
        JobResumed,
        WorkerLost,
        CapacityChanged,
        Run,
        Stop,
        Refuse,
    )
}


def to_json(record: Event | Decision) -> dict[str, Any]:
    return {"is": type(record).__name__, **dataclasses.asdict(record)}


def from_json(data: Mapping[str, Any]) -> Event | Decision:
    fields = {key: value for key, value in data.items() if key != "is"}
    kind = _KINDS.get(str(data.get("is")))
    if kind is None:
        raise UsageError(f"scheduler log holds an unknown record {data.get('is')!r}; it is one of {', '.join(_KINDS)}")
    try:
        if kind is StageReady:
            fields["request"] = StageRequest(**fields["request"])
        elif kind is WorkerLost:
            fields["stage_ids"] = tuple(fields["stage_ids"])
        record: Event | Decision = kind(**fields)
    except (KeyError, TypeError) as error:
        raise UsageError(f"scheduler log holds a malformed {kind.__name__}: {error}") from error
    return record


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

    def lines(self) -> Iterator[str]:
        yield json.dumps({"resources": self.resources, "strategy": self.strategy})
        for entry in self.entries:
            yield json.dumps({key: [to_json(r) for r in getattr(entry, key)] for key in ("events", "decisions")})

    @classmethod
    def read(cls, lines: Iterable[str]) -> EventLog:
        log: EventLog | None = None
        for number, line in enumerate(lines, 1):
            try:
                data: dict[str, Any] = json.loads(line)
                if log is None:
                    log = cls(data["resources"], data["strategy"], [])
                else:
                    decisions = tuple(cast(Decision, from_json(d)) for d in data["decisions"])
                    events = tuple(cast(Event, from_json(e)) for e in data["events"])
                    log.entries.append(LoggedStep(events, decisions))
            except (ValueError, KeyError, TypeError, UsageError) as error:
                raise UsageError(f"line {number} is not of a scheduler's log: {error}") from error
        if log is None:
            raise UsageError("the scheduler's log is empty; its first line names resources and strategy")
        return log
