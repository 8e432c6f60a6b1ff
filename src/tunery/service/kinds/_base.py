"""What a kind of job is: the options that it takes, what it does, and who may ask for it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Generic, TypeVar

from tunery.domain import JobStatus
from tunery.domain.request import Options, Progress, Request
from tunery.service.job import Job
from tunery.tuning.work import Work

LONGEST_S = 1e6
Answer = Mapping[str, Any]
O = TypeVar("O", bound=Options)  # noqa: E741 - options


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKind(Generic[O]):
    """A kind of job, which either answers or is resumable: it has `run` or `go_on`.

    Attributes:
        name: What requests and stored jobs call it.
        options: The dataclass of its options.
        check: Raises UsageError where a value is out of its range, or does not fit the request.
        run: Does it, and returns its answer as plain data. If it is interrupted, it begins anew.
        go_on: Does what is left of it, and returns how it stands then, which is stored: its tasks are its result. It
            charges the job for all but the reading of its model, tells `job.month` what it costs, and ends early if
            `job.stop` is set. It is cancelled where it takes no limit of the month and that is reached.
        identity: The options of a resumable kind that say what is done: jobs in which one of them differs are different
            jobs. The others may change where a job goes on.
        has_budget: Whether it works for as long as its budget lets it. Others that answer are quick, and need no place
            among those at work.
        measures: Whether it times candidates: in the caller's own process too it is stored and charged then.
        several_dialects: Whether one job may be of several dialects.
        asked: The options that an account of a service on the network may give. `output` is a place that the service
            chooses; others have the names of fields of `web/_bodies.py:JobIn`.
        refused: What an account that asks for it is told to do instead; "" if accounts may have such jobs.
    """

    name: str
    options: type[O]
    check: Callable[[O, Request], None] = lambda *_: None
    run: Callable[[Work, O], Awaitable[Answer]] | None = None
    go_on: Callable[[Job, O], Awaitable[JobStatus]] | None = None
    identity: tuple[str, ...] = ()
    has_budget: bool = False
    measures: Callable[[O], bool] = lambda _: False
    several_dialects: bool = False
    asked: tuple[str, ...] = ()
    refused: str = ""

    def __post_init__(self) -> None:
        assert (self.run is None) != (self.go_on is None), f"{self.name} has `run` or `go_on`"

    @property
    def needs_output(self) -> bool:
        return any(field.name == "output" and field.default is MISSING for field in fields(self.options))


def say(work: Work, text: str) -> None:
    work.notify(Progress(work.job_id, text, 0.0, None, 0, None, None, None))
