"""What is known of a network, and how fast it would be."""

from tunery._errors import UsageError
from tunery.delivery.query import query
from tunery.domain.request import QueryOptions, Request
from tunery.reports.data import query_data
from tunery.service.kinds._base import LONGEST_S, Answer, JobKind
from tunery.tuning.work import Work

_MOST_FEW_SHOT = 64


def check(options: QueryOptions, _: Request) -> None:
    """Refuse numbers that nobody means."""
    if not 0 <= options.few_shot <= _MOST_FEW_SHOT:
        raise UsageError(f"few_shot={options.few_shot} is not between 0 and {_MOST_FEW_SHOT}")
    if options.few_shot_seconds is not None and not 0 < options.few_shot_seconds <= LONGEST_S:
        raise UsageError(
            f"few_shot_seconds={options.few_shot_seconds:g} is no time to measure for; write for example 20"
        )


async def _query(work: Work, options: QueryOptions) -> Answer:
    return query_data(await query(work, options.policy))


QUERY = JobKind(
    name="query", options=QueryOptions, check=check, run=_query, measures=lambda options: options.few_shot > 0,
    asked=("predict", "few_shot", "few_shot_seconds"),
)  # fmt: skip
