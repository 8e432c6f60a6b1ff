"""What jobs still need, predicted from what their stages took so far."""

from dataclasses import dataclass, field

from tunery.scheduling._pool import Capacities, Needs
from tunery.scheduling._state import ScheduledJob, Stage
from tunery.scheduling.durations import Durations
from tunery.scheduling.strategies._shares import Ranking


@dataclass(slots=True, eq=False)
class _Kind:
    """The stages of one kind of a job that have ended."""

    needs: Needs
    seconds: float = 0.0
    units: int = 0


@dataclass(slots=True, eq=False)
class _Seen:
    """What was seen of a job: its kinds of stages, how many it had ready and running at once, its work by resource."""

    kinds: dict[str, _Kind] = field(default_factory=dict)
    most_at_once: int = 1
    work: dict[str, float] = field(default_factory=dict)


class Rests:
    """Keeps `rest` and `alone_s` of all jobs, and knows what all of them together need still. A unit of work passes
    through the kinds of stages that its job has asked for so far. A kind takes the mean of the job's own stages; until
    the first has ended, what the kind takes elsewhere."""

    def __init__(self, pool: Capacities, durations: Durations) -> None:
        self._pool = pool
        self._durations = durations
        self._jobs: dict[ScheduledJob, _Seen] = {}
        self._work: dict[str, float] = {}
        self._numbers: dict[str, int] = {}
        self._busiest: Ranking[str] = Ranking(lambda name: -self._work[name] / max(1, pool.ceiling[name]))

    def all_s(self) -> float:
        name = self._busiest.first(self._work)
        return self._work[name] / max(1, self._pool.ceiling[name]) if name else 0.0

    def add(self, job: ScheduledJob) -> None:
        if job not in self._jobs:
            self._jobs[job] = _Seen()
            job.rest = _units_left(job) / job.share

    def remove(self, job: ScheduledJob) -> None:
        seen = self._jobs.pop(job, None)
        if seen is not None:
            self._replace(seen.work, {})

    def asked(self, stage: Stage) -> None:
        job = stage.job
        seen = self._jobs[job]
        seen.most_at_once = max(seen.most_at_once, len(job.ready) + len(job.running))
        if stage.request.kind not in seen.kinds:
            seen.kinds[stage.request.kind] = _Kind(stage.needs)
            self._update(job, seen)

    def ended(self, stage: Stage, duration_s: float) -> None:
        seen = self._jobs.get(stage.job)
        if seen is None:
            return
        kind = seen.kinds[stage.request.kind]
        kind.needs = stage.needs
        kind.seconds += duration_s
        kind.units += max(1, stage.request.size)
        self._update(stage.job, seen)

    def _update(self, job: ScheduledJob, seen: _Seen) -> None:
        units, chain_s = _units_left(job), 0.0
        work: dict[str, float] = {}
        for name, kind in seen.kinds.items():
            unit_s = kind.seconds / kind.units if kind.units else self._durations.predict(name, "", 1)
            chain_s += units * unit_s
            for resource, amount in kind.needs:
                work[resource] = work.get(resource, 0.0) + amount * units * unit_s
        ceiling, rest_s = self._pool.ceiling, 0.0
        for name, total in work.items():
            rest_s = max(rest_s, total / (ceiling[name] or 1))
        job.rest = (rest_s if work else chain_s) / job.share
        job.alone_s = chain_s / seen.most_at_once
        self._replace(seen.work, work)
        seen.work = work

    def _replace(self, old: dict[str, float], new: dict[str, float]) -> None:
        for name, total in old.items():
            self._work[name] -= total
        for name, total in new.items():
            self._work[name] = self._work.get(name, 0.0) + total
            self._busiest.push(name, self._numbers.setdefault(name, len(self._numbers)))


def _units_left(job: ScheduledJob) -> float:
    """Return how many units of work a job is expected to want still; unknown: as many again as it has done."""
    done = job.done()
    return job.asked.planned - done if job.asked.planned > done else max(done, 1.0)
