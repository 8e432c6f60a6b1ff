"""Jobs that only take time: what the simulator runs instead of compilers and devices."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tunery.scheduling._events import EventLog, JobSubmitted, Run, StageFinished, StageReady, StageRequest


@dataclass(frozen=True, slots=True)
class Step:
    """One stage of a mock job; `duration_s` is what it will take, which the scheduler is not told.

    One that `roams` needs cores only, of the first host or of any further one.
    """

    kind: str
    task_kind: str
    needs: Mapping[str, int]
    size: int
    duration_s: float
    affinity: str | None = None
    roams: bool = False


@dataclass(frozen=True, slots=True)
class MockJob:
    """Chains of steps, each step ready when the one before has ended; at most `in_flight` chains are under way."""

    job_id: str
    chains: tuple[tuple[Step, ...], ...]
    in_flight: int = 4
    owner: str = ""
    weight: float = 1.0
    priority: int = 0
    at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class MockHost:
    """A further host with so many cores, from when it joins until it leaves.

    What takes a second on the first host takes 1 / `speed` there, and `delay_s` more to get there and back.
    """

    name: str
    cores: int
    speed: float = 1.0
    delay_s: float = 0.0
    joins_s: float = 0.0
    leaves_s: float = math.inf

    @property
    def core(self) -> str:
        return f"{self.name}/core"


@dataclass(frozen=True, slots=True)
class Mix:
    """Jobs and the resources that they share: those of the first host, and the cores of further ones."""

    resources: Mapping[str, int]
    jobs: tuple[MockJob, ...]
    hosts: tuple[MockHost, ...] = ()


CHAIN = ("propose", "build", "measure", "learn")

UnitSeconds = Mapping[str, Sequence[float]]
"""Seconds per unit of work, by kind of stage: what was recorded of one sort of task."""


def recorded_unit_s(log: EventLog) -> dict[str, dict[str, list[float]]]:
    """Return the seconds per unit of all stages that finished well in a recorded run, by task kind and stage kind."""
    requests: dict[str, StageRequest] = {}
    started: dict[str, float] = {}
    unit_s: dict[str, dict[str, list[float]]] = {}
    for entry in log.entries:
        for event in entry.events:
            if isinstance(event, StageReady):
                requests[event.request.stage_id] = event.request
            elif isinstance(event, StageFinished) and event.ok and event.stage_id in started:
                request = requests[event.stage_id]
                ran_s = event.at_s - started[event.stage_id]
                kinds = unit_s.setdefault(request.task_kind, {})
                kinds.setdefault(request.kind, []).append(ran_s / max(1, request.size))
        now_s = max((event.at_s for event in entry.events), default=0.0)
        started.update((decision.stage_id, now_s) for decision in entry.decisions if isinstance(decision, Run))
    return unit_s


@dataclass(frozen=True, slots=True)
class Rates:
    """Median seconds per candidate of each stage, for one task."""

    propose: float
    build: float
    measure: float
    learn: float

    def of(self, kind: str) -> float:
        return float(getattr(self, kind))


def _unit_s(rng: np.random.Generator, kind: str, rates: Rates, recorded: UnitSeconds | None) -> float:
    if recorded and recorded.get(kind):
        return float(rng.choice(np.asarray(recorded[kind])))
    # Builds and runs of one task's candidates spread by about a third around their median.
    return rates.of(kind) * float(rng.lognormal(0.0, 0.3))


def tuning_job(
    rng: np.random.Generator,
    job_id: str,
    needs: Mapping[str, Mapping[str, int]],
    *,
    tasks: int,
    batches: int,
    size: int,
    in_flight: int,
    scale: Rates,
    owner: str = "",
    weight: float = 1.0,
    priority: int = 0,
    at_s: float = 0.0,
    recorded: Sequence[UnitSeconds] = (),
    stragglers: float = 0.0,
) -> MockJob:
    """Return a job that tunes `tasks` tasks in about `batches` batches each: propose, build, measure, learn.

    `needs` maps a kind to what its stages need. A task's propose and learn stages share its proposer. Tasks differ in
    speed by a factor of a few; a share of `stragglers` of all stages takes ten times as long. Where there are recorded
    sorts of tasks, each task is one of them.
    """
    plan: list[tuple[int, int, tuple[Step, ...]]] = []
    for task in range(tasks):
        rates = Rates(*(scale.of(kind) * float(rng.lognormal(0.0, 0.5)) for kind in CHAIN))
        number = int(rng.integers(len(recorded))) if recorded else task % 5
        task_kind = f"kind{number}"
        for batch in range(max(1, int(rng.poisson(batches)))):
            steps = tuple(
                Step(
                    kind,
                    task_kind,
                    needs[kind],
                    size,
                    _unit_s(rng, kind, rates, recorded[number] if recorded else None)
                    * size
                    * (10.0 if rng.random() < stragglers else 1.0),
                    affinity=f"{job_id}/{task}" if kind in ("propose", "learn") else None,
                )
                for kind in CHAIN
            )
            plan.append((batch, task, steps))
    plan.sort(key=lambda entry: entry[:2])
    return MockJob(job_id, tuple(steps for *_, steps in plan), in_flight, owner, weight, priority, at_s)


def gpu_mix(seed: int, recorded: Sequence[UnitSeconds] = ()) -> Mix:
    """Return a random mix on a GPU-like target: proposals and builds on cores, measurements on 1 to 8 devices.

    One to four owners, 2 to 12 jobs, arriving at once or over a while, a few stragglers unless durations
    are drawn from recorded ones, which have their own. Which resource is the bottleneck differs from mix to mix.
    """
    rng = np.random.default_rng(seed)
    devices, cores = int(rng.integers(1, 9)), int(rng.choice([4, 8, 16, 32]))
    needs = {"propose": {"core": 1}, "build": {"core": 1}, "measure": {"device:gpu": 1}, "learn": {"core": 1}}
    owners = int(rng.integers(1, 5))
    late = bool(rng.integers(0, 2))
    at_s = 0.0
    jobs = []
    for number in range(int(rng.integers(2, 13))):
        scale = Rates(0.05, float(rng.uniform(0.1, 0.5)), float(rng.uniform(0.03, 0.3)), 0.005)
        job = tuning_job(
            rng,
            f"job{number}",
            needs,
            tasks=int(rng.integers(4, 25)),
            batches=int(rng.integers(3, 13)),
            size=16,
            in_flight=int(rng.integers(4, 17)),
            scale=scale,
            owner=f"owner{int(rng.integers(0, owners))}",
            at_s=at_s,
            recorded=recorded,
            stragglers=0.0 if recorded else 0.002,
        )
        jobs.append(job)
        at_s += float(rng.exponential(20.0)) if late else 0.0
    return Mix({"core": cores, "device:gpu": devices}, tuple(jobs))


def cpu_mix(
    seed: int, recorded: Sequence[UnitSeconds] = (), cores: int = 2, jobs: int = 2, owners: int | None = None
) -> Mix:
    """Return a random mix on a CPU target whose measurements take all cores, so that they alternate with builds.

    Each job has an owner of its own, or its turn among so many `owners`.
    """
    rng = np.random.default_rng(seed)
    one, every = {"core": 1}, {"core": cores, "device:cpu": 1}
    needs = {"propose": one, "build": one, "measure": every, "learn": one}
    made = tuple(
        tuning_job(
            rng,
            f"job{number}",
            needs,
            tasks=int(rng.integers(4, 16)),
            batches=int(rng.integers(3, 9)),
            size=16,
            in_flight=4,
            scale=Rates(0.05, 0.09, 0.02, 0.005),
            owner=f"owner{number % (owners or jobs)}",
            recorded=recorded,
        )
        for number in range(jobs)
    )
    return Mix({"core": cores, "device:cpu": 1}, made)


def hosts_mix(seed: int, recorded: Sequence[UnitSeconds] = ()) -> Mix:
    """Return a random mix as `gpu_mix` makes it, with one to six further hosts on which builds may run.

    Their speeds differ by up to four times, their networks delay a build by up to half a second; every third joins
    late, and every third leaves early.
    """
    mix = gpu_mix(seed, recorded)
    rng = np.random.default_rng((seed, 1))
    hosts = []
    for number in range(int(rng.integers(1, 7))):
        joins_s = float(rng.uniform(0.0, 100.0)) if rng.random() < 1 / 3 else 0.0
        leaves_s = joins_s + float(rng.uniform(20.0, 200.0)) if rng.random() < 1 / 3 else math.inf
        cores, speed, delay_s = int(rng.choice([2, 4, 8])), float(rng.uniform(0.4, 1.6)), float(rng.uniform(0.0, 0.5))
        hosts.append(MockHost(f"host{number}", cores, speed, delay_s, joins_s, leaves_s))
    jobs = tuple(replace(job, chains=tuple(map(_roaming, job.chains))) for job in mix.jobs)
    return replace(mix, jobs=jobs, hosts=tuple(hosts))


def _roaming(chain: tuple[Step, ...]) -> tuple[Step, ...]:
    return tuple(replace(step, roams=step.kind == "build") for step in chain)


def submission(job: MockJob) -> JobSubmitted:
    planned = sum(chain[0].size for chain in job.chains)
    return JobSubmitted(job.at_s, job.job_id, job.owner, job.weight, job.priority, planned)
