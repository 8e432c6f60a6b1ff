"""Runs the scheduler on a virtual clock with mock jobs: the same state machine, no waiting."""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush

from mock_jobs import Mix, MockHost, MockJob, Step, submission

from tunery.domain import HERE
from tunery.scheduling._events import (
    CapacityChanged,
    Event,
    EventLog,
    JobEnded,
    Refuse,
    Run,
    StageFinished,
    StageReady,
    StageRequest,
    StageWithdrawn,
    WorkerLost,
)
from tunery.scheduling._scheduler import Scheduler
from tunery.scheduling.paces import HostLoad, Paces


@dataclass(frozen=True, slots=True)
class GanttRow:
    """One stage as it ran to its end; what it needed says where."""

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
        simulation.lose(loss)
    return simulation.run()


def lower_bound_s(mix: Mix) -> float:
    """Return a time before which no schedule of the mix can end."""
    # Per resource: the work that arrives at or after a time cannot start before it, so each arrival gives a bound.
    work: dict[str, float] = {}
    roaming: list[tuple[int, float]] = []  # how many cores, and for how long
    bound_s = 0.0
    for job in sorted(mix.jobs, key=lambda job: -job.at_s):
        workers: dict[str, float] = {}
        longest_s = total_s = 0.0
        for chain in job.chains:
            chain_s = sum(_least_s(mix, step) for step in chain)
            longest_s, total_s = max(longest_s, chain_s), total_s + chain_s
            for step in chain:
                if step.affinity:
                    workers[step.affinity] = workers.get(step.affinity, 0.0) + step.duration_s
                for name, amount in step.needs.items():
                    if step.roams:
                        roaming.append((amount, step.duration_s))
                    else:
                        work[name] = work.get(name, 0.0) + amount * step.duration_s
        path_s = max(longest_s, total_s / job.in_flight, *workers.values(), 0.0)
        work_s = max((total / mix.resources[n] for n, total in work.items() if mix.resources.get(n)), default=0.0)
        usual_s = statistics.fmean(duration_s for _, duration_s in roaming) if roaming else 0.0
        shared_s = [_all_cores_s(mix, work.get("core", 0.0), roaming, job.at_s, size_s)
                    for size_s in (math.inf, usual_s) if size_s]  # fmt: skip
        bound_s = max(bound_s, job.at_s + path_s, job.at_s + work_s, *shared_s)
    return bound_s


def _least_s(mix: Mix, step: Step) -> float:
    """Return how long a step takes where it is over soonest, networks included."""
    hosts = mix.hosts if step.roams else ()
    return min([step.duration_s, *(step.duration_s / host.speed + host.delay_s for host in hosts)])


def _all_cores_s(mix: Mix, work_s: float, roaming: Iterable[tuple[int, float]], from_s: float, size_s: float) -> float:
    """Return before when the cores of all hosts cannot have done so many core-seconds of the first host and these
    roaming steps (cores and seconds there), begun at `from_s`.

    A host's core counts by what it does of steps of `size_s`, its network included, and a step by the least of that
    that it takes anywhere: by the duality of linear programs any size gives a bound.
    """
    rates = [(host, 1.0 / (1.0 / host.speed + host.delay_s / size_s)) for host in mix.hosts]
    for cores, long_s in roaming:
        work_s += cores * min([long_s, *(rate * (long_s / host.speed + host.delay_s) for host, rate in rates)])
    here = mix.resources.get("core", 0)
    changes = {from_s, *(at_s for host in mix.hosts for at_s in (host.joins_s, host.leaves_s) if at_s > from_s)}
    now_s = from_s
    for next_s in (*sorted(changes - {from_s, math.inf}), math.inf):
        rate = here + sum(host.cores * rate for host, rate in rates if host.joins_s <= now_s < host.leaves_s)
        if rate * (next_s - now_s) >= work_s:
            return now_s + work_s / rate
        work_s -= rate * (next_s - now_s)
        now_s = next_s
    return math.inf


@dataclass(slots=True)
class _Live:
    """A mock job under way."""

    job: MockJob
    next_chain: int = 0
    under_way: int = 0


@dataclass(slots=True)
class _Stage:
    """A stage of a mock job under way; `attempt` tells a run that was lost from the present one.

    `moves` is how often it has gone to another host, `host` the further one that it waits for or runs on.
    """

    live: _Live
    number: int
    chain: tuple[Step, ...]
    index: int
    ready_s: float
    start_s: float = 0.0
    attempt: int = 0
    moves: int = 0
    host: MockHost | None = None

    @property
    def step(self) -> Step:
        return self.chain[self.index]

    @property
    def name(self) -> str:
        return f"{self.live.job.job_id}/{self.number}/{self.index}"

    @property
    def stage_id(self) -> str:
        return f"{self.name}/{self.moves}" if self.moves else self.name

    @property
    def needs(self) -> Mapping[str, int]:
        return self.step.needs if self.host is None else {self.host.core: self.step.needs["core"]}

    @property
    def place(self) -> str:
        return HERE if self.host is None else self.host.name

    @property
    def runs_s(self) -> float:
        return self.step.duration_s if self.host is None else self.step.duration_s / self.host.speed + self.host.delay_s


@dataclass(frozen=True, slots=True)
class _End:
    stage_id: str
    attempt: int


class _Simulation:
    def __init__(self, mix: Mix, strategy: str, keep_log: bool) -> None:
        self.mix = mix
        self.strategy = strategy
        self.capacity = {**mix.resources, **{host.core: 0 for host in mix.hosts}}
        self.scheduler = Scheduler(self.capacity, strategy, keep_log=keep_log)
        self._queue: list[tuple[float, int, Callable[[float], None]]] = []
        self._stages: dict[str, _Stage] = {}
        self._running: dict[str, _Stage] = {}
        self._rows: list[GanttRow] = []
        self._refused: list[Refuse] = []
        self._finished: dict[str, float] = {}
        self._count = 0
        self._up: dict[str, MockHost] = {}
        self._paces = Paces(named=lambda *_: None)
        for host in mix.hosts:
            self.at(host.joins_s, partial(self._open, host))
            if host.leaves_s < math.inf:
                self.at(host.leaves_s, partial(self._leave, host))
        for job in mix.jobs:
            self.at(job.at_s, partial(self._join, job))

    def at(self, at_s: float, what: Callable[[float], None]) -> None:
        """Let something happen at a time, which it is told; what is planned first happens first."""
        self._count += 1
        heappush(self._queue, (at_s, self._count, what))

    def lose(self, loss: Loss) -> None:
        self.at(loss.at_s, partial(self._lose, loss))

    def run(self) -> SimulationResult:
        while self._queue:
            now_s, _, what = heappop(self._queue)
            what(now_s)
        start_s = min((job.at_s for job in self.mix.jobs), default=0.0)
        makespan_s = max((row.end_s for row in self._rows), default=0.0)
        busy = dict.fromkeys(self.capacity, 0.0)
        for row in self._rows:
            for name, amount in row.needs.items():
                busy[name] += amount * (row.end_s - row.start_s)
        span_s = max(makespan_s - start_s, 1e-12)
        most = {**self.mix.resources, **{host.core: host.cores for host in self.mix.hosts}}
        shares = {name: total / (span_s * max(1, most[name])) for name, total in busy.items()}
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

    def _open(self, host: MockHost, now_s: float) -> None:
        self._up[host.name] = host
        self._resize(host.core, host.cores, now_s)

    def _leave(self, host: MockHost, now_s: float) -> None:
        """Let a host go: what it ran is lost, and what waited for it goes elsewhere, as in a real run."""
        del self._up[host.name]
        self._resize(host.core, 0, now_s)
        moved: list[Event] = []
        for stage_id, stage in [each for each in self._stages.items() if each[1].host is host]:
            del self._stages[stage_id]
            ran = self._running.pop(stage_id, None) is not None
            if ran:
                self._paces.lost(host.name)
            moved.append(StageFinished(now_s, stage_id, ok=False) if ran else StageWithdrawn(now_s, stage_id))
            stage.moves += 1
            stage.ready_s = now_s
            moved.append(self._ready(stage))
        self._send(*moved)

    def _resize(self, resource: str, capacity: int, now_s: float) -> None:
        self.capacity[resource] = capacity
        self._send(CapacityChanged(now_s, resource, capacity))

    def _feed(self, live: _Live, now_s: float) -> list[Event]:
        """Start the chains that the job may have in flight; end the job when none is left."""
        job = live.job
        events: list[Event] = []
        while live.under_way < job.in_flight and live.next_chain < len(job.chains):
            chain = job.chains[live.next_chain]
            events.append(self._ready(_Stage(live, live.next_chain, chain, 0, now_s)))
            live.next_chain += 1
            live.under_way += 1
        if not live.under_way:
            self._finished[job.job_id] = now_s
            events.append(JobEnded(now_s, job.job_id))
        return events

    def _ready(self, stage: _Stage) -> StageReady:
        step = stage.step
        stage.host = self._place() if step.roams else None
        self._stages[stage.stage_id] = stage
        request = StageRequest(
            stage.stage_id, stage.live.job.job_id, step.kind, step.task_kind, stage.needs, step.size, step.affinity
        )
        return StageReady(stage.ready_s, request)

    def _place(self) -> MockHost | None:
        """Return the further host that a roaming stage waits for, None for the first, by the rule of a real run."""
        return self._up.get(self._paces.first_free(self._loads()))

    def _loads(self) -> dict[str, HostLoad]:
        """What stages of all kinds ask of each host's cores, and what is free of them."""
        used, waiting = Counter[str](), Counter[str]()
        for stage_id, stage in self._stages.items():
            if cores := stage.needs.get("core" if stage.host is None else stage.host.core, 0):
                (used if stage_id in self._running else waiting)[stage.place] += cores
        all_cores = {HERE: self.mix.resources["core"], **{name: host.cores for name, host in self._up.items()}}
        return {host: HostLoad(count, count - used[host], waiting[host]) for host, count in all_cores.items()}

    def _move(self, now_s: float) -> None:
        """Have stages that would end sooner on another host go there, as in a real run."""
        while self._up and (host := self._paces.overdue(self._loads())) is not None:
            waiting = (
                (stage_id, stage) for stage_id, stage in self._stages.items()
                if stage.step.roams and stage.place == host and stage_id not in self._running
            )  # fmt: skip
            stage_id, stage = next(waiting, (None, None))
            if stage_id is None or stage is None:
                return
            del self._stages[stage_id]
            stage.moves += 1
            self._tell(StageWithdrawn(now_s, stage_id), self._ready(stage))

    def _end(self, end: _End, now_s: float) -> None:
        stage = self._running.get(end.stage_id)
        if stage is None or stage.attempt != end.attempt:
            return
        del self._running[end.stage_id], self._stages[end.stage_id]
        step, live = stage.step, stage.live
        row = GanttRow(stage.name, live.job.job_id, step.kind, stage.needs, stage.ready_s, stage.start_s, now_s)
        self._rows.append(row)
        if step.roams:
            self._paces.built(stage.place, step.task_kind, now_s - stage.start_s)
        events: list[Event] = [StageFinished(now_s, end.stage_id)]
        if stage.index + 1 < len(stage.chain):
            events.append(self._ready(_Stage(live, stage.number, stage.chain, stage.index + 1, now_s)))
        else:
            live.under_way -= 1
            events += self._feed(live, now_s)
        self._send(*events)

    def _lose(self, loss: Loss, now_s: float) -> None:
        if not self.capacity[loss.resource]:
            return
        self._resize(loss.resource, self.capacity[loss.resource] - 1, now_s)
        self.at(now_s + loss.back_s, lambda at_s: self._resize(loss.resource, self.capacity[loss.resource] + 1, at_s))
        victims = [key for key, stage in self._running.items() if stage.needs.get(loss.resource)]
        if victims:
            stage = self._running.pop(victims[0])
            stage.attempt += 1
            self._send(WorkerLost(now_s, f"worker of {victims[0]}", (victims[0],)))

    def _send(self, *events: Event) -> None:
        self._tell(*events)
        if events:
            self._move(max(event.at_s for event in events))

    def _tell(self, *events: Event) -> None:
        now_s = max((event.at_s for event in events), default=0.0)
        for decision in self.scheduler.handle(*events):
            if isinstance(decision, Run):
                stage = self._stages[decision.stage_id]
                stage.start_s = now_s
                self._running[decision.stage_id] = stage
                self.at(now_s + stage.runs_s, partial(self._end, _End(decision.stage_id, stage.attempt)))
            elif isinstance(decision, Refuse):
                self._refused.append(decision)
