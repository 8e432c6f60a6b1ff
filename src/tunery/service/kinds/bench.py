"""A compiled network beside its rivals."""

from dataclasses import dataclass
from pathlib import Path

from tunery._errors import UsageError
from tunery.delivery.comparing.bench import bench, check_one_shape
from tunery.delivery.comparing.compare import check_rivals
from tunery.domain.request import Options, Request
from tunery.reports.data import bench_data
from tunery.service.kinds._base import LONGEST_S, Answer, JobKind
from tunery.tuning.work import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions(Options):
    """Which rivals are timed, for how many seconds each, and the file to time ("": compile the best records)."""

    against: tuple[str, ...] = ("onnxruntime",)
    seconds: float = 5.0
    compiled: str = ""

    def check(self, request: Request) -> None:
        check_rivals(self.against)
        if not 0 < self.seconds <= LONGEST_S:
            raise UsageError(f"{self.seconds:g} s is no time to measure a network for; write for example 5")
        check_one_shape(request)


async def _bench(work: Work, options: BenchOptions) -> Answer:
    compiled = Path(options.compiled) if options.compiled else None
    return bench_data(await bench(work, options.against, options.seconds, compiled))


BENCH = JobKind(name="bench", options=BenchOptions, check=BenchOptions.check, run=_bench, asked=("against", "seconds"))
