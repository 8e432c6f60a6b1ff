"""What is known of a network, and how fast it would be."""

import math
from dataclasses import dataclass

from tunery._errors import UsageError
from tunery.delivery.query import query
from tunery.domain.request import FillPolicy, Request
from tunery.reports.data import query_data
from tunery.service.kinds._base import LONGEST_S, Answer, JobKind, Options
from tunery.tuning.work import Work

_MOST_FEW_SHOT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryOptions(Options):
    """Whether operators without a record are predicted, or measured first."""

    predict: bool = False
    few_shot: int = 0
    few_shot_seconds: float | None = None

    def policy(self) -> FillPolicy | None:
        """Return how what no record answers is filled."""
        seconds = math.inf if self.few_shot_seconds is None else self.few_shot_seconds
        return FillPolicy(self.few_shot, seconds) if self.predict or self.few_shot else None

    def check(self, _: Request) -> None:
        if not 0 <= self.few_shot <= _MOST_FEW_SHOT:
            raise UsageError(f"few_shot={self.few_shot} is not between 0 and {_MOST_FEW_SHOT}")
        if self.few_shot_seconds is not None and not 0 < self.few_shot_seconds <= LONGEST_S:
            raise UsageError(
                f"few_shot_seconds={self.few_shot_seconds:g} is no time to measure for; write for example 20"
            )


async def _query(work: Work, options: QueryOptions) -> Answer:
    return query_data(await query(work, options.policy()))


QUERY = JobKind(
    name="query", options=QueryOptions, run=_query, measures=lambda options: options.few_shot > 0,
    asked=("predict", "few_shot", "few_shot_seconds"),
)  # fmt: skip
