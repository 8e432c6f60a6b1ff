"""Which of the waiting jobs begins next: a pure rule, for a room that has no place for all of them at once."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tunery.domain.request import ShareRequest

_HEAD_START = 100  # jobs that one step of priority may overtake: what waits is overtaken by so many, not for ever


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job that has not begun; `order` counts the jobs as they came."""

    job_id: str
    claim: ShareRequest
    order: int

    @property
    def owner(self) -> str:
        """Whose share the job uses; a job without an owner is its own."""
        return self.claim.owner or f"job {self.job_id}"


def next_turn(waiting: Iterable[QueuedJob], at_work: Mapping[str, int]) -> QueuedJob | None:
    """Return who begins next, None if nobody waits; `at_work` counts the jobs that each owner has at work.

    The owner that has the fewest at work for its weight goes first: no owner's queue makes another's wait. Then the
    oldest, where each step of priority counts as having come 100 jobs earlier.
    """

    return min(waiting, key=lambda one: _rank(one, at_work), default=None)


def ahead_of(job: QueuedJob, waiting: Iterable[QueuedJob], at_work: Mapping[str, int]) -> int:
    """Return how many of those that wait would begin before a job if one of them began now."""
    mine = _rank(job, at_work)
    return sum(_rank(one, at_work) < mine for one in waiting)


def _rank(one: QueuedJob, at_work: Mapping[str, int]) -> tuple[float, int, int]:
    order = one.order - _HEAD_START * one.claim.priority
    return at_work.get(one.owner, 0) / one.claim.weight, order, one.order
