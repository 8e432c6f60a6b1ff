"""A job to do."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from tunery._errors import TuneryError
from tunery.domain import JobState
from tunery.domain.request import CompileReport, Progress, Request, ShareRequest
from tunery.runtime.importing import ImportedModel
from tunery.service.budgets.months import MonthShare
from tunery.tuning.work import Work


def _ignore(_: object) -> None:
    """Tell nobody."""


def _unknown(_: Request) -> None:
    """Know no model."""


@dataclass(eq=False)
class Assignment:
    """A job to do: for whom, who follows it, and what it may cost.

    `known` returns the model of a request that was read before. Setting `stop` ends tuning in a state that goes on;
    `ending` says which, where the work is cancelled. `month` is the job's part of its account's month.

    Meanwhile `latest` is its progress, and `readers` read a model for it, whose files are held until its end;
    `compiled` is the report of its network, `undelivered` why there is none though it was asked for.
    """

    request: Request
    claim: ShareRequest = field(default_factory=ShareRequest)
    notify: Callable[[Progress], None] = _ignore
    known: Callable[[Request], ImportedModel | None] = _unknown
    stop: threading.Event = field(default_factory=threading.Event)
    ending: Callable[[], JobState] = lambda: JobState.STOPPED
    month: MonthShare | None = None
    latest: Progress | None = None
    readers: tuple[Work, ...] = ()
    compiled: CompileReport | None = None
    undelivered: TuneryError | None = None

    def tell(self, progress: Progress) -> None:
        self.latest = progress
        self.notify(progress)

    def importing(self, job_id: str = "") -> Progress:
        """Return its progress while its model is being read."""
        budget = self.request.budget
        return Progress(job_id, "importing", 0.0, budget.seconds, 0, budget.trials, None, None)

    def release(self) -> None:
        """Let go of the files that are held for it."""
        for work in self.readers:
            for blob in work.model_read.blobs:
                work.runtime.release(blob)
