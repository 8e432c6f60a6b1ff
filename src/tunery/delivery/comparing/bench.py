"""A model as tuned so far beside its rivals: compiled where no file is at hand, then timed interleaved."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from tunery._errors import UsageError
from tunery.delivery.comparing.compare import check_rivals_there, compare, with_tasks
from tunery.delivery.compile import compile_only
from tunery.delivery.ladder import KnownTask, choices
from tunery.domain.request import CONTESTANTS, BenchReport, Progress, Request, TaskShare
from tunery.engines import Role
from tunery.tuning.work import Work


def check_one_shape(request: Request) -> None:
    if request.more_shapes:
        raise UsageError("networks are compared with rivals for one shape at a time; give one value for each --shape")


async def bench(
    work: Work,
    against: Sequence[str],
    seconds: float,
    compiled: Path | None = None,
    others: Mapping[str, Path] = MappingProxyType({}),
    *,
    inputs: str = "",
) -> BenchReport:
    """Time a compiled model against rivals, interleaved, `seconds` for each. `compiled` is the file to time; without it
    the model is compiled from the best records. `others` are further compiled files of the same model, by the label
    that the report gives them. The first set of a user's `inputs`, an .npz file, is what they run on."""
    began = time.monotonic()

    def tell(phase: str, current: str) -> None:
        work.notify(Progress("", phase, time.monotonic() - began, None, 0, None, None, None, current))

    check_rivals_there(work.runtime, against)
    check_one_shape(work.request)
    imported = await work.model(lambda: tell("importing", ""))
    if not imported.network.blob:
        raise UsageError(f"{imported.network.source} has no ONNX file to compare with; bench an ONNX model or zoo:NAME")
    with ExitStack() as ends:
        if compiled:
            ours, tasks = _stored(work, compiled, ends), used_shares(await choices(work, imported.tasks))
        else:
            tell("compiling", CONTESTANTS["tunery"])
            made = await compile_only(work, ends)
            ours, tasks = made.blob, made.report.tasks
        files = {"tunery": ours, **{label: _stored(work, path, ends) for label, path in others.items()}}
        if "untuned" in against:
            tell("compiling", CONTESTANTS["untuned"])
            files["untuned"] = (await compile_only(work, ends, tuned=False)).blob
        async with work.stage("bench", Role.MEASURER):
            given = _stored(work, Path(inputs), ends) if inputs else ""
            report = await compare(work, files, against, seconds, given)
    if not compiled and report.verdict and report.verdict.delivered:  # nothing was handed over to ONNX Runtime
        verdict = replace(report.verdict, delivered=None, native=report.verdict.delivered)
        report = replace(report, verdict=verdict)
    return with_tasks(report, tasks)


def _stored(work: Work, path: Path, ends: ExitStack) -> str:
    try:
        blob = work.runtime.blobs.put(path, temporary=True)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}; name a file that can") from error
    work.runtime.holds.add(blob)
    ends.callback(work.runtime.holds.release, blob)
    return blob


def used_shares(known: Sequence[KnownTask]) -> tuple[TaskShare, ...]:
    """Return the tasks' shares without the times of the compiler's default: a file that predicts does not use it."""
    return tuple(replace(each.share, latency_s=None) if each.open else each.share for each in known)
