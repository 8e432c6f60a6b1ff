"""What a kind of job is: the options that it takes, what it does, and who may ask for it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tunery.delivery.work import Work
from tunery.domain.request import Progress, Request

LONGEST_S = 1e6
Answer = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a job is given beside its request; a kind that is given nothing has no more than this."""

    def check(self, request: Request) -> None:
        """Raise UsageError where a value is out of its range, or does not fit the request."""


O = TypeVar("O", bound=Options)  # noqa: E741 - options


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKind(Generic[O]):
    """A kind of job.

    Attributes:
        name: What requests and stored jobs call it.
        options: The dataclass of its options.
        run: Does it, and returns its answer as plain data; None: the manager tunes.
        long: Whether it works for as long as it is given. Others are quick, and need no place among those at work.
        measures: Whether it times candidates: in the caller's own process too it is stored and charged then.
        several_dialects: Whether one job may be of several dialects.
        asked: The options that an account of a service on the network may give. `output` is a place that the service
            chooses; others have the names of fields of `web/_bodies.py:JobIn`.
        refused: What an account that asks for it is told to do instead; "" if accounts may have such jobs.
    """

    name: str
    options: type[O]
    run: Callable[[Work, O], Awaitable[Answer]] | None
    long: bool = False
    measures: Callable[[O], bool] = lambda _: False
    several_dialects: bool = False
    asked: tuple[str, ...] = ()
    refused: str = ""


def say(work: Work, text: str) -> None:
    """Tell who follows a job what it is busy with."""
    work.notify(Progress(work.job_id, text, 0.0, None, 0, None, None, None))
