"""The best known implementation of a network, as one file."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tunery.delivery.compile import check_place
from tunery.delivery.shaping.compiling import compile_request
from tunery.domain.request import CompileReport, Request
from tunery.reports.data import compile_data, described
from tunery.service.kinds._base import Answer, JobKind, say
from tunery.service.kinds.query import QUERY, QueryOptions
from tunery.tuning.work import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileOptions(QueryOptions):
    """Where the compiled network goes.

    With `force` the file may replace one of another kind. It is signed with the private key in `sign` ("": not at all).
    With `any_shape` ONNX Runtime runs shapes that it was not compiled for.
    """

    output: str
    predict: bool = True
    force: bool = False
    sign: str = ""
    any_shape: bool = False

    def check(self, request: Request) -> None:
        """Raise UsageError where the file may not be written."""
        QueryOptions.check(self, request)
        check_place(Path(self.output), request, force=self.force, sign=Path(self.sign) if self.sign else None)


async def compile_network(work: Work, options: CompileOptions) -> tuple[CompileReport, Answer]:
    report, network = await compile_request(
        work, Path(options.output), options.policy(), partial(say, work), force=options.force,
        sign=Path(options.sign) if options.sign else None, any_shape=options.any_shape,
    )  # fmt: skip
    return report, {**compile_data(report), "described": described(network)}


async def _compile(work: Work, options: CompileOptions) -> Answer:
    return (await compile_network(work, options))[1]


COMPILE = JobKind(
    name="compile", options=CompileOptions, run=_compile, several_dialects=True, measures=QUERY.measures,
    asked=("output", "any_shape", *QUERY.asked),
)  # fmt: skip
