"""Which of the waiting jobs begins next, and when: for a manager that has no place for all of them at once."""

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tunery.accounting.meter import EFFORTS
from tunery.domain import Budget
from tunery.domain.request import ShareRequest

MOST_ACTIVE = 32
_QUICK_SHARE = 4
_PER_CORE = 4  # of two cores 8: more would only end later, all together, and leave none to other coordinators
_HEAD_START = 100  # jobs that one step of priority may overtake: what waits is overtaken by so many, not for ever
_SHORTER = 8  # jobs that one of half the size may overtake
_LEAVE_TO_OTHERS_S = 0.25
_TRIAL_S, _TASKS = 0.25, 16  # of a usual job, roughly


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job that has not begun; `order` counts the jobs as they came, `size_s` is about what it asks for. One that is
    `quick` is answered without long work."""

    job_id: str
    claim: ShareRequest
    order: int
    size_s: float = 1.0
    quick: bool = False

    @property
    def owner(self) -> str:
        return self.claim.owner

    @property
    def turn(self) -> tuple[float, int]:
        """Its place among its owner's: the oldest first. Each step of priority counts as having come 100 jobs earlier,
        each doubling of its size as 8 jobs later."""
        return self.order - _HEAD_START * self.claim.priority + _SHORTER * math.log2(self.size_s), self.order


class JobQueue:
    """The jobs that wait. The owner that has the fewest at work for its weight goes first: no owner's queue makes
    another's wait. Then by `turn`: about the shortest first, so that jobs end early, but none is overtaken for ever."""

    def __init__(self) -> None:
        self._jobs: dict[str, QueuedJob] = {}
        self._groups: dict[tuple[str, bool], list[QueuedJob]] = {}

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._jobs

    def __len__(self) -> int:
        return len(self._jobs)

    def ids(self) -> list[str]:
        return list(self._jobs)

    def add(self, job: QueuedJob) -> None:
        self._jobs[job.job_id] = job
        insort(self._groups.setdefault(_group(job), []), job, key=_turn)

    def discard(self, job_id: str) -> QueuedJob | None:
        job = self._jobs.pop(job_id, None)
        if job is not None:
            group = self._groups[_group(job)]
            del group[bisect_left(group, job.turn, key=_turn)]
            if not group:
                del self._groups[_group(job)]
        return job

    def count(self, owner: str) -> int:
        return sum(len(self._groups.get((owner, quick), ())) for quick in (False, True))

    def before(self, job_id: str) -> int:
        job = self._jobs[job_id]
        return bisect_left(self._groups[_group(job)], job.turn, key=_turn)

    def next_turn(self, at_work: Mapping[str, int], may_begin: Callable[[QueuedJob], bool]) -> QueuedJob | None:
        heads = [group[0] for group in self._groups.values() if may_begin(group[0])]
        return min(heads, key=lambda one: (at_work.get(one.owner, 0) / one.claim.weight, one.turn), default=None)


def _turn(job: QueuedJob) -> tuple[float, int]:
    return job.turn


def _group(job: QueuedJob) -> tuple[str, bool]:
    return job.owner, job.quick


def size_s(budget: Budget, effort: str) -> float:
    """Return about how many seconds a request asks for, of time or of trials; jobs are compared by it, no more."""
    limits = [budget.seconds, None if budget.trials is None else budget.trials * _TRIAL_S]
    usual_s = EFFORTS.get(effort, 0) * _TASKS * _TRIAL_S
    return max(1.0, min((limit for limit in limits if limit is not None), default=usual_s))


def has_place(job: QueuedJob, at_work: Mapping[tuple[str, bool], int], cores: int, most: int = MOST_ACTIVE) -> bool:
    """Tell whether a job may begin on so many `cores` beside those `at_work`, counted by owner and whether quick. Four
    long jobs a core keep it busy, and of `most` in all an owner's quick ones get a quarter. An owner who has none of a
    kind at work gets a place beyond that: nobody waits for the end of somebody else's jobs."""
    mine = at_work.get((job.owner, job.quick), 0)
    if not mine:
        return most > 1 or (most == 1 and not at_work)
    same = sum(count for (_, quick), count in at_work.items() if quick == job.quick)
    if job.quick:
        return mine < most // _QUICK_SHARE and same < most
    return same < min(_PER_CORE * cores, most)


def hold_back_s(at_work: int) -> float:
    """Return how long a coordinator leaves a job that it has found to others of its store: who has fewer takes it."""
    return _LEAVE_TO_OTHERS_S * at_work
