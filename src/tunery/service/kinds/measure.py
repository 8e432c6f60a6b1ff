"""One candidate, verified and timed."""

from dataclasses import dataclass

from tunery.delivery.comparing.bench import check_one_shape
from tunery.delivery.measure import measure
from tunery.domain.request import Options, Request
from tunery.reports.data import plain
from tunery.service.kinds._base import Answer, JobKind
from tunery.tuning.work import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureOptions(Options):
    """Which task of the model is measured ("": the only one), and the body of the candidate ("": its default)."""

    task: str = ""
    candidate: str = ""

    def check(self, request: Request) -> None:
        """Raise UsageError where there are several shapes."""
        check_one_shape(request)


async def _measure(work: Work, options: MeasureOptions) -> Answer:
    answer: Answer = plain(await measure(work, options.task, options.candidate))
    return answer


MEASURE = JobKind(
    name="measure",
    options=MeasureOptions,
    check=MeasureOptions.check,
    run=_measure,
    measures=lambda _: True,
    refused="use POST /v1/measurements",
)
