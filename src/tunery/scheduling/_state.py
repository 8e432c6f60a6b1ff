"""The scheduler's own records of jobs and stages."""

from collections import OrderedDict
from dataclasses import dataclass, field
from enum import IntEnum
from heapq import heappop, heappush

from tunery.scheduling._events import JobSubmitted, StageRequest
from tunery.scheduling._pool import Needs


class StageState(IntEnum):
    """Where a stage stands: HELD waits for its worker or its paused job, OFFERED may be picked by the strategy."""

    HELD = 0
    OFFERED = 1
    RUNNING = 2
    GONE = 3


@dataclass(slots=True, eq=False)
class ScheduledJob:
    """A job that may submit stages. `rest` is what it is predicted to need still of the resource that it needs most, in
    seconds of all of that resource, divided by its share; `alone_s` is how long it would take with the machine to
    itself."""

    asked: JobSubmitted
    order: int
    paused: bool = False
    ended: bool = False
    ready: dict[str, "Stage"] = field(default_factory=dict)
    running: dict[str, "Stage"] = field(default_factory=dict)
    done_units: dict[str, int] = field(default_factory=dict)
    kinds: dict[str, int] = field(default_factory=dict)
    rest: float = 0.0
    alone_s: float = 0.0

    def done(self) -> float:
        """Return the units of work done, as a mean over the kinds of stages that they pass through."""
        return sum(self.done_units.values()) / max(1, len(self.done_units))

    @property
    def share(self) -> float:
        return float(self.asked.weight * 2.0**self.asked.priority)


@dataclass(slots=True, eq=False)
class Stage:
    """A stage that is ready or runs. `offer` counts how often it was offered: older entries in any queue are stale."""

    request: StageRequest
    job: ScheduledJob
    needs: Needs
    order: int
    ready_s: float
    state: StageState = StageState.HELD
    offer: int = 0
    started_s: float = 0.0
    predicted_s: float = 0.0
    attempts: int = 0

    @property
    def sort(self) -> str:
        devices = [name for name, _ in self.needs if name.rpartition("/")[2].startswith("device:")]
        return "@".join((self.request.task_kind, *devices))

    @property
    def shape(self) -> tuple[str, Needs]:
        return self.request.kind, self.needs


class Lane:
    """The stages that may only run on one worker: at most one of them runs, at most one is offered. Jobs take turns; a
    job's stages go in the order in which they became ready."""

    def __init__(self) -> None:
        self.busy: Stage | None = None
        self.offered: Stage | None = None
        self._jobs: OrderedDict[str, list[tuple[int, Stage]]] = OrderedDict()

    def add(self, stage: Stage) -> None:
        heappush(self._jobs.setdefault(stage.job.asked.job_id, []), (stage.order, stage))

    def next(self) -> Stage | None:
        """Take the next stage to offer, None if there is none; stages that left meanwhile are forgotten."""
        while self._jobs:
            job_id, heap = next(iter(self._jobs.items()))
            while heap and (heap[0][1].state is not StageState.HELD or heap[0][1].job.paused):
                heappop(heap)
            if not heap:
                del self._jobs[job_id]
                continue
            stage = heappop(heap)[1]
            self._jobs.move_to_end(job_id)
            return stage
        return None

    def empty(self) -> bool:
        return self.busy is None and self.offered is None and not self._jobs
