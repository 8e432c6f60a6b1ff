"""The contract of a strategy: which of the stages that fit starts next.

A strategy hears of each stage that may run (`push`) or no longer may (`discard`), and is asked with `pick` until it
names none. It must not name a stage that does not fit the pool. It has no clock: all times come in.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

from tunery.scheduling._state import Capacities, Durations, ScheduledJob, Stage


class Strategy(ABC):
    """One scheduling policy for one scheduler."""

    name: ClassVar[str]

    def __init__(self, pool: Capacities, durations: Durations) -> None:
        self.pool = pool
        self.durations = durations

    @abstractmethod
    def push(self, stage: Stage, now_s: float) -> None:
        """Take in a stage that may run; `stage.offer` tells a repeated push from an earlier one."""

    @abstractmethod
    def pick(self, now_s: float) -> Stage | None:
        """Return the stage to start now, None to start none. It is started at once."""

    def discard(self, stage: Stage) -> None:  # noqa: B027 - queues that forget stale entries by themselves need nothing
        """Forget a pushed stage: it was withdrawn, or its job was paused or ended."""

    def started(self, stage: Stage, now_s: float) -> None:  # noqa: B027 - optional hook
        """Hear that a stage took its resources."""

    def finished(self, stage: Stage, duration_s: float, now_s: float) -> None:  # noqa: B027 - optional hook
        """Hear that a stage gave its resources back."""

    def job_added(self, job: ScheduledJob) -> None:  # noqa: B027 - optional hook
        """Hear of a new or resumed job."""

    def job_removed(self, job: ScheduledJob) -> None:  # noqa: B027 - optional hook
        """Hear that a job ended or was paused; its stages were discarded before."""
