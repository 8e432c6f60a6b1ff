"""Runs the scheduler on a virtual clock with mock jobs: the same state machine, no waiting."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush

from tunery.scheduling._events import (
    CapacityChanged,
    Event,
    JobEnded,
    Refuse,
    Run,
    StageFinished,
    StageReady,
    StageRequest,
    WorkerLost,
)
from tunery.scheduling._log import EventLog
from tunery.scheduling._scheduler import Scheduler
from tunery.scheduling.mock import Mix, MockJob, Step, submission


@dataclass(frozen=True, slots=True)
class GanttRow:
    """One stage as it ran."""

    stage_id: str
    job_id: str
    kind: str
    needs: Mapping[str, int]
    ready_s: float
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Loss:
    """One unit of a resource dies at `at_s`, with a stage that ran on it, and is back after `back_s`."""

    at_s: float
    resource: str
    back_s: float


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """A simulated run. Times in seconds from the first submission's clock; `busy` maps a resource to its busy share.

    `bound_s` is the larger of the largest resource's total work over its capacity and the longest critical path; no
    schedule can end sooner.
    """

    strategy: str
    makespan_s: float
    bound_s: float
    busy: Mapping[str, float]
    finished_s: Mapping[str, float]
    gantt: tuple[GanttRow, ...]
    refused: tuple[Refuse, ...]
    log: EventLog = field(repr=False)

    @property
    def ratio(self) -> float:
        """Makespan over its lower bound."""
        return self.makespan_s / self.bound_s if self.bound_s else 1.0

    @property
    def idle(self) -> float:
        """Idle share of the busiest resource."""
        return 1.0 - max(self.busy.values(), default=1.0)


def simulate(
    mix: Mix, strategy: str = "predictive", *, losses: Iterable[Loss] = (), keep_log: bool = False
) -> SimulationResult:
    """Run a mix to its end; the same arguments give the same result."""
    simulation = _Simulation(mix, strategy, keep_log)
    for loss in losses:
        simulation.at(loss.at_s, loss)
    return simulation.run()


def lower_bound_s(mix: Mix) -> float:
    """Return a time before which no schedule of the mix can end."""
    # Per resource: the work that arrives at or after a time cannot start before it, so each arrival gives a bound.
    work: dict[str, float] = {}
    bound_s = 0.0
    for job in sorted(mix.jobs, key=lambda job: -job.at_s):
        workers: dict[str, float] = {}
        longest_s = total_s = 0.0
        for chain in job.chains:
            chain_s = sum(step.duration_s for step in chain)
            longest_s, total_s = max(longest_s, chain_s), total_s + chain_s
            for step in chain:
                if step.affinity:
                    workers[step.affinity] = workers.get(step.affinity, 0.0) + step.duration_s
                for name, amount in step.needs.items():
                    work[name] = work.get(name, 0.0) + amount * step.duration_s
        path_s = max(longest_s, total_s / job.in_flight, *workers.values(), 0.0)
        work_s = max((total / mix.resources[n] for n, total in work.items() if mix.resources.get(n)), default=0.0)
        bound_s = max(bound_s, job.at_s + path_s, job.at_s + work_s)
    return bound_s


@dataclass(slots=True)
class _Live:
    """A mock job under way."""

    job: MockJob
    next_chain: int = 0
    under_way: int = 0


@dataclass(slots=True)
class _Stage:
    """A stage of a mock job under way; `attempt` tells a run that was lost from the present one."""

    live: _Live
    chain: tuple[Step, ...]
    index: int
    ready_s: float
    start_s: float = 0.0
    attempt: int = 0

    @property
    def step(self) -> Step:
        return self.chain[self.index]


@dataclass(frozen=True, slots=True)
class _End:
    stage_id: str
    attempt: int


class _Simulation:
    def __init__(self, mix: Mix, strategy: str, keep_log: bool) -> None:
        self.mix = mix
        self.strategy = strategy
        self.scheduler = Scheduler(mix.resources, strategy, keep_log=keep_log)
        self.capacity = dict(mix.resources)
        self._queue: list[tuple[float, int, MockJob | _End | Loss | CapacityChanged]] = []
        self._stages: dict[str, _Stage] = {}
        self._running: dict[str, _Stage] = {}
        self._rows: list[GanttRow] = []
        self._refused: list[Refuse] = []
        self._finished: dict[str, float] = {}
        self._count = 0
        for job in mix.jobs:
            self.at(job.at_s, job)

    def at(self, at_s: float, what: MockJob | _End | Loss | CapacityChanged) -> None:
        """Let something happen at a time; what is planned first happens first."""
        self._count += 1
        heappush(self._queue, (at_s, self._count, what))

    def run(self) -> SimulationResult:
        while self._queue:
            now_s, _, what = heappop(self._queue)
            match what:
                case MockJob():
                    self._join(what, now_s)
                case _End():
                    self._end(what, now_s)
                case Loss():
                    self._lose(what, now_s)
                case CapacityChanged():
                    self.capacity[what.resource] += what.capacity
                    self._send(CapacityChanged(now_s, what.resource, self.capacity[what.resource]))
        start_s = min((job.at_s for job in self.mix.jobs), default=0.0)
        makespan_s = max((row.end_s for row in self._rows), default=0.0)
        busy = dict.fromkeys(self.mix.resources, 0.0)
        for row in self._rows:
            for name, amount in row.needs.items():
                busy[name] += amount * (row.end_s - row.start_s)
        span_s = max(makespan_s - start_s, 1e-12)
        shares = {name: total / (span_s * max(1, self.mix.resources[name])) for name, total in busy.items()}
        bound_s = lower_bound_s(self.mix)
        rows, refused = tuple(self._rows), tuple(self._refused)
        return SimulationResult(
            self.strategy, makespan_s, bound_s, shares, self._finished, rows, refused, self.scheduler.log
        )

    def _join(self, job: MockJob, now_s: float) -> None:
        refused = len(self._refused)
        self._send(submission(job))
        if len(self._refused) == refused:
            self._send(*self._feed(_Live(job), now_s))

    def _feed(self, live: _Live, now_s: float) -> list[Event]:
        """Start the chains that the job may have in flight; end the job when none is left."""
        job = live.job
        events: list[Event] = []
        while live.under_way < job.in_flight and live.next_chain < len(job.chains):
            live.next_chain += 1
            live.under_way += 1
            stage = _Stage(live, job.chains[live.next_chain - 1], 0, now_s)
            events.append(self._ready(stage, live.next_chain - 1))
        if not live.under_way:
            self._finished[job.job_id] = now_s
            events.append(JobEnded(now_s, job.job_id))
        return events

    def _ready(self, stage: _Stage, chain: int) -> StageReady:
        step, job_id = stage.step, stage.live.job.job_id
        stage_id = f"{job_id}/{chain}/{stage.index}"
        self._stages[stage_id] = stage
        request = StageRequest(stage_id, job_id, step.kind, step.task_kind, step.needs, step.size, step.affinity)
        return StageReady(stage.ready_s, request)

    def _end(self, end: _End, now_s: float) -> None:
        stage = self._running.get(end.stage_id)
        if stage is None or stage.attempt != end.attempt:
            return
        del self._running[end.stage_id], self._stages[end.stage_id]
        step, live = stage.step, stage.live
        job_id = live.job.job_id
        self._rows.append(GanttRow(end.stage_id, job_id, step.kind, step.needs, stage.ready_s, stage.start_s, now_s))
        events: list[Event] = [StageFinished(now_s, end.stage_id)]
        if stage.index + 1 < len(stage.chain):
            chain = int(end.stage_id.rsplit("/", 2)[1])
            events.append(self._ready(_Stage(live, stage.chain, stage.index + 1, now_s), chain))
        else:
            live.under_way -= 1
            events += self._feed(live, now_s)
        self._send(*events)

    def _lose(self, loss: Loss, now_s: float) -> None:
        if not self.capacity[loss.resource]:
            return
        self.capacity[loss.resource] -= 1
        self.at(now_s + loss.back_s, CapacityChanged(now_s, loss.resource, 1))
        self._send(CapacityChanged(now_s, loss.resource, self.capacity[loss.resource]))
        victims = [key for key, stage in self._running.items() if stage.step.needs.get(loss.resource)]
        if victims:
            stage = self._running.pop(victims[0])
            stage.attempt += 1
            self._send(WorkerLost(now_s, f"worker of {victims[0]}", (victims[0],)))

    def _send(self, *events: Event) -> None:
        now_s = max((event.at_s for event in events), default=0.0)
        for decision in self.scheduler.handle(*events):
            if isinstance(decision, Run):
                stage = self._stages[decision.stage_id]
                stage.start_s = now_s
                self._running[decision.stage_id] = stage
                self.at(now_s + stage.step.duration_s, _End(decision.stage_id, stage.attempt))
            elif isinstance(decision, Refuse):
                self._refused.append(decision)
