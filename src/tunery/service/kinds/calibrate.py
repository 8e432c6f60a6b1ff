"""How many kernels a device bears to be measured at once."""

from functools import partial

from tunery.domain.request import Options
from tunery.reports.data import plain
from tunery.runtime.calibrate import calibrate_target
from tunery.service.kinds._base import Answer, JobKind, say
from tunery.tuning.work import Work


async def _calibrate(work: Work, _: Options) -> Answer:
    answer: Answer = plain(
        await calibrate_target(work.runtime, work.store, work.request, work.job_id, partial(say, work))
    )
    return answer


CALIBRATE = JobKind(
    name="calibrate", options=Options, run=_calibrate, measures=lambda _: True, refused="do that on its machine"
)
