"""A model as tuned so far beside its rivals: compiled where no file is at hand, then timed interleaved."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

from tunery._errors import UsageError
from tunery.delivery.compare import compare, with_tasks
from tunery.delivery.compile import compile_only
from tunery.delivery.ladder import KnownTask
from tunery.delivery.work import Work, task_shares
from tunery.domain.request import CONTESTANTS, BenchReport, Progress, TaskShare
from tunery.engines import Role
from tunery.runtime.importing import ImportedModel
from tunery.runtime.pools import Runtime


async def bench(
    work: Work,
    against: Sequence[str],
    seconds: float,
    compiled: Path | None = None,
    others: Mapping[str, Path] = MappingProxyType({}),
) -> BenchReport:
    """Time a compiled model against rivals, interleaved, `seconds` for each.

    `compiled` is the file to time; without it the model is compiled from the best records. `others` are further
    compiled files of the same model, by the label that the report gives them.

    Raises:
        UsageError: the model, shapes or target are wrong.
        WorkError: the model does not compile, or computes something else than ONNX Runtime.
    """
    began = time.monotonic()

    def tell(phase: str, current: str) -> None:
        work.notify(Progress("", phase, time.monotonic() - began, None, 0, None, None, None, current))

    runtime = work.runtime
    if compiled:
        ours = _stored(runtime, compiled)
        imported = await work.model(lambda: tell("importing", ""))
        network, shares = imported.network, used_shares(imported, await work.choices(imported))
    else:
        made = await compile_only(work, begun=partial(tell, "compiling", CONTESTANTS["tunery"]))
        ours, network, shares = made.blob, made.network, made.report.tasks
    files = {"tunery": ours, **{label: _stored(runtime, path) for label, path in others.items()}}
    if not network.blob:
        raise UsageError(f"{network.source} has no ONNX file to compare with; bench an ONNX model or zoo:NAME")
    if "untuned" in against:
        tell("compiling", CONTESTANTS["untuned"])
        files["untuned"] = (await compile_only(work, tuned=False)).blob
    async with work.stage("bench", Role.MEASURER):
        report = await compare(runtime, network, files, against, seconds, work.notify, trust=work.request.trust)
        return with_tasks(report, shares)


def _stored(runtime: Runtime, path: Path) -> str:
    try:
        return runtime.blobs.put(path, temporary=True)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}; write it with `tunery compile`") from error


def used_shares(imported: ImportedModel, known: KnownTask) -> tuple[TaskShare, ...]:
    """Return `task_shares` without the times of the compiler's default: a file that predicts does not use it."""
    used = tuple(choice for choice in known.choices if choice.task_key not in known.open)
    return task_shares(imported, replace(known, choices=used))
