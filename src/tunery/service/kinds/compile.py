"""The best known implementation of a network, as one file."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tunery._errors import UsageError
from tunery.delivery.compile import check_place
from tunery.delivery.several import compile_request
from tunery.domain.request import ONNXRUNTIME, CompileOptions, CompileReport, Request, asked
from tunery.reports.data import compile_data, described
from tunery.service.kinds._base import Answer, JobKind, say
from tunery.service.kinds.answers import QUERY, check_few_shot
from tunery.tuning.work import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOptions(CompileOptions):
    """Where the compiled network goes, and how it is made."""

    output: str
    predict: bool = True


def check(options: FileOptions, request: Request) -> None:
    """Refuse a file that may not be written."""
    check_few_shot(options, request)
    if options.onnxruntime not in ONNXRUNTIME:
        raise UsageError(f"onnxruntime={options.onnxruntime!r:.20} is unknown; use {', '.join(ONNXRUNTIME)}")
    if options.targets:
        raise UsageError("a job compiles for one target; put the files of several together with `tunery combine`")
    check_place(Path(options.output), request, options)


async def compile_network(work: Work, options: FileOptions) -> tuple[CompileReport, Answer]:
    report, network = await compile_request(work, Path(options.output), options, partial(say, work))
    return report, {**compile_data(report), "described": described(network)}


async def _compile(work: Work, options: FileOptions) -> Answer:
    return (await compile_network(work, options))[1]


COMPILE = JobKind(
    name="compile", options=FileOptions, check=check, run=_compile, several_dialects=True,
    measures=QUERY.measures, asked=("output", *asked(CompileOptions)),
)  # fmt: skip
