"""The state machine: events in, decisions out."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tunery._errors import UsageError
from tunery.scheduling import _events as ev
from tunery.scheduling._events import Decision, Event, EventLog, LoggedStep, Refuse, Run, StageRequest, Stop
from tunery.scheduling._state import Capacities, Durations, Lane, Resources, ScheduledJob, Stage, StageState
from tunery.scheduling.strategies import get_strategy

_MOST_ATTEMPTS = 3
_MOST_PRIORITY = 10


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the scheduler holds: counts, and the free amount of each resource."""

    at_s: float
    jobs: int
    ready: int
    running: int
    free: dict[str, int] = field(default_factory=dict)


class Scheduler:
    """Places stages of any number of jobs on named resources; pure: no I/O, no clock, no threads.

    Each event's time is at least that of the one before (an earlier one is taken as the same time). Decisions of one
    call are in the order in which they are to be carried out. With `keep_log` every event is kept in `log`.

    Raises:
        UsageError: a capacity is negative, there is no resource, or the strategy is unknown.

    Example:
        scheduler = Scheduler({"core": 2})
        scheduler.handle(JobSubmitted(0.0, "job"))
        scheduler.handle(StageReady(0.0, StageRequest("s1", "job", "build", needs={"core": 1})))  # [Run("s1", 1.0)]
    """

    def __init__(self, resources: Resources, strategy: str = "predictive", *, keep_log: bool = True) -> None:
        if not resources or any(amount < 0 for amount in resources.values()):
            raise UsageError(f"resources {dict(resources)!r} need at least one name, and no negative amount")
        self.log = EventLog(dict(resources), strategy, [])
        self.durations = Durations()
        self._pool = Capacities(resources)
        self._strategy = get_strategy(strategy)(self._pool, self.durations)
        self._keep_log = keep_log
        self._now_s = -math.inf
        self._order = 0
        self._jobs: dict[str, ScheduledJob] = {}
        self._stages: dict[str, Stage] = {}
        self._lanes: dict[str, Lane] = {}
        self._out: list[Decision] = []

    def handle(self, *events: Event) -> list[Decision]:
        """Events that happen together (a stage ends, its successor is ready) are best given together: the decisions
        then know of all of them."""
        self._out = []
        for event in events:
            if event.at_s < math.inf:
                self._now_s = max(self._now_s, event.at_s)
            self._take_in(event)
        self._start_stages()
        if self._keep_log:
            self.log.entries.append(LoggedStep(events, tuple(self._out)))
        return self._out

    def snapshot(self) -> Snapshot:
        running = sum(len(job.running) for job in self._jobs.values())
        return Snapshot(self._now_s, len(self._jobs), len(self._stages) - running, running, dict(self._pool.free))

    def free(self, resource: str) -> int:
        """Return how much of a resource is free; less than 0 where it has shrunk under what runs."""
        return self._pool.free[resource]

    def capacity(self, resource: str) -> int:
        return self._pool.capacity[resource]

    def _take_in(self, event: Event) -> None:
        match event:
            case ev.StageReady():
                self._ready(event.request)
            case ev.StageFinished():
                self._finished(event)
            case ev.JobSubmitted():
                self._submitted(event)
            case ev.StageWithdrawn():
                stage = self._stages.get(event.stage_id)
                if stage and stage.state is not StageState.RUNNING:
                    self._unqueue(stage)
                    self._forget(stage)
            case ev.JobEnded() | ev.JobCancelled():
                self._ended(event)
            case ev.JobPaused() | ev.JobResumed():
                self._paused(event)
            case ev.WorkerLost():
                self._lost(event)
            case ev.CapacityChanged():
                self._resized(event)

    def _submitted(self, event: ev.JobSubmitted) -> None:
        reason = None
        if event.job_id in self._jobs:
            reason = f"there is already a job {event.job_id!r}"
        elif not 0 <= event.priority <= _MOST_PRIORITY:
            reason = f"priority {event.priority} is not between 0 and {_MOST_PRIORITY}"
        elif not ev.LEAST_WEIGHT <= event.weight <= ev.MOST_WEIGHT:
            reason = f"weight {event.weight} is not between {ev.LEAST_WEIGHT:g} and {ev.MOST_WEIGHT:g}"
        elif not event.planned >= 0:
            reason = f"{event.planned} planned units are less than none"
        if reason:
            self._out.append(Refuse(event.job_id, reason))
            return
        job = self._jobs[event.job_id] = ScheduledJob(event, self._next())
        self._strategy.job_added(job)

    def _ready(self, request: StageRequest) -> None:
        job = self._jobs.get(request.job_id)
        needs = tuple(sorted((name, amount) for name, amount in request.needs.items() if amount))
        reason = self._pool.missing(needs)
        if request.stage_id in self._stages:
            reason = f"there is already a stage {request.stage_id!r}"
        elif job is None or job.ended:
            reason = f"its job {request.job_id!r} is unknown or has ended"
        elif not request.size >= 0:
            reason = f"its size {request.size} is less than nothing"
        if reason or job is None:
            self._out.append(Refuse(request.stage_id, str(reason)))
            return
        stage = Stage(request, job, needs, self._next())
        self._stages[request.stage_id] = job.ready[request.stage_id] = stage
        self._queue(stage)

    def _finished(self, event: ev.StageFinished) -> None:
        stage = self._stages.get(event.stage_id)
        if stage is None or stage.state is not StageState.RUNNING:
            self._out.append(Refuse(event.stage_id, "it was reported finished and is not running"))
            return
        ran_s = self._now_s - stage.started_s
        self._release(stage, ran_s)
        if event.ok:
            request = stage.request
            self.durations.observe(request.kind, stage.sort, request.size, ran_s)
            done = stage.job.done_units
            done[request.kind] = done.get(request.kind, 0) + request.size
        self._forget(stage)

    def _ended(self, event: ev.JobEnded | ev.JobCancelled) -> None:
        job = self._jobs.get(event.job_id)
        if job is None or job.ended:
            self._out.append(Refuse(event.job_id, "it is not a job here, or has ended already"))
            return
        for stage in list(job.ready.values()):
            self._unqueue(stage)
            self._forget(stage)
        if isinstance(event, ev.JobCancelled):
            self._out.extend(Stop(stage_id) for stage_id in job.running)
        job.paused = False
        job.ended = True
        self._drop_if_over(job)

    def _paused(self, event: ev.JobPaused | ev.JobResumed) -> None:
        job = self._jobs.get(event.job_id)
        if job is None or job.ended:
            self._out.append(Refuse(event.job_id, "it is not a job here, or has ended already"))
            return
        pause = isinstance(event, ev.JobPaused)
        if job.paused == pause:
            return
        job.paused = pause
        if not pause:
            self._strategy.job_added(job)
        for stage in list(job.ready.values()):
            if pause:
                self._unqueue(stage)
            else:
                self._queue(stage)
        if pause:
            self._strategy.job_removed(job)

    def _lost(self, event: ev.WorkerLost) -> None:
        lane = self._lanes.get(event.worker)
        lost = [self._stages[stage_id] for stage_id in event.stage_ids if stage_id in self._stages]
        if lane and lane.busy and lane.busy not in lost:
            lost.append(lane.busy)
        for stage in lost:
            if stage.state is not StageState.RUNNING:
                continue
            self._release(stage, self._now_s - stage.started_s)
            stage.attempts += 1
            if stage.job.ended or stage.attempts >= _MOST_ATTEMPTS:
                reason = "its job has ended" if stage.job.ended else f"its worker was lost {stage.attempts} times"
                self._out.append(Refuse(stage.request.stage_id, reason))
                self._forget(stage)
            else:
                stage.state = StageState.HELD
                stage.job.ready[stage.request.stage_id] = stage
                self._queue(stage)

    def _resized(self, event: ev.CapacityChanged) -> None:
        if not isinstance(event.capacity, int) or event.capacity < 0:
            self._out.append(Refuse(event.resource, f"its capacity cannot be {event.capacity}"))
        else:
            self._pool.resize(event.resource, event.capacity)

    def _start_stages(self) -> None:
        while (stage := self._strategy.pick(self._now_s)) is not None:
            request = stage.request
            stage.predicted_s = self.durations.predict(request.kind, stage.sort, request.size)
            stage.started_s = self._now_s
            stage.state = StageState.RUNNING
            del stage.job.ready[request.stage_id]
            stage.job.running[request.stage_id] = stage
            self._pool.take(stage.needs, stage.started_s + stage.predicted_s, stage.order)
            if request.affinity is not None:
                lane = self._lanes[request.affinity]
                lane.busy, lane.offered = stage, None
            self._strategy.started(stage, self._now_s)
            self._out.append(Run(request.stage_id, stage.predicted_s))

    def _release(self, stage: Stage, ran_s: float) -> None:
        del stage.job.running[stage.request.stage_id]
        self._pool.release(stage.needs, stage.started_s + stage.predicted_s, stage.order)
        stage.state = StageState.GONE
        self._strategy.finished(stage, ran_s, self._now_s)
        if stage.request.affinity is not None:
            self._lanes[stage.request.affinity].busy = None
            self._offer_next(stage.request.affinity)

    def _queue(self, stage: Stage) -> None:
        stage.state = StageState.HELD
        if stage.job.paused:
            return
        worker = stage.request.affinity
        if worker is None:
            self._offer(stage)
            return
        self._lanes.setdefault(worker, Lane()).add(stage)
        self._offer_next(worker)

    def _unqueue(self, stage: Stage) -> None:
        if stage.state is not StageState.OFFERED:
            stage.state = StageState.GONE if not stage.job.paused else StageState.HELD
            return
        self._strategy.discard(stage)
        worker = stage.request.affinity
        stage.state = StageState.HELD if stage.job.paused else StageState.GONE
        if worker is not None:
            self._lanes[worker].offered = None
            self._offer_next(worker)

    def _offer(self, stage: Stage) -> None:
        stage.state = StageState.OFFERED
        stage.offer += 1
        self._strategy.push(stage, self._now_s)

    def _offer_next(self, worker: str) -> None:
        lane = self._lanes[worker]
        if lane.busy is None and lane.offered is None:
            lane.offered = lane.next()
            if lane.offered:
                self._offer(lane.offered)
            else:
                del self._lanes[worker]

    def _forget(self, stage: Stage) -> None:
        stage.state = StageState.GONE
        job = stage.job
        job.ready.pop(stage.request.stage_id, None)
        del self._stages[stage.request.stage_id]
        self._drop_if_over(job)

    def _drop_if_over(self, job: ScheduledJob) -> None:
        if job.ended and not job.running and self._jobs.get(job.asked.job_id) is job:
            del self._jobs[job.asked.job_id]
            self._strategy.job_removed(job)

    def _next(self) -> int:
        self._order += 1
        return self._order
