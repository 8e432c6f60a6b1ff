"""Compiling a model for several shapes to one file: each is compiled and compared with ONNX Runtime alone."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from tunery._archive import extend_manifest, open_archive
from tunery._errors import UsageError
from tunery._outputs import NETWORK, publish
from tunery.delivery.compile import check_place, compile_checked, files_of
from tunery.delivery.fastest import compile_fastest
from tunery.delivery.shaping.joining import join
from tunery.domain import Network
from tunery.domain.request import CompileReport, FillPolicy, ShapeResult
from tunery.engines import Role
from tunery.runtime.importing import IMPORT_DEADLINE_S, ImportedModel, together
from tunery.tuning.work import Work

Compiled = tuple[CompileReport, Network]


async def compile_request(
    work: Work,
    output: Path,
    policy: FillPolicy | None,
    say: Callable[[str], None],
    *,
    force: bool = False,
    sign: Path | None = None,
    raced: bool = True,
    any_shape: bool = False,
) -> Compiled:
    """Do as `compile_checked`, for a request with any number of bindings of shapes.

    With `any_shape` the file also holds the model, with which ONNX Runtime runs all other shapes. So it does with those
    that it runs faster.
    """
    request = replace(work.request, store=work.store.url)
    if work.others or work.refused:
        if any_shape:
            raise UsageError("a file runs any shape, or is the fastest of several dialects; name one --dialect")
        return await compile_fastest(work, output, policy, say, force=force, sign=sign)
    if not request.more_shapes and not any_shape:
        return await compile_checked(work, output, policy, say, force=force, sign=sign, raced=raced)
    check_place(output, request, force=force, sign=sign)
    with tempfile.TemporaryDirectory(prefix=".tunery-", dir=output.absolute().parent) as name:
        scratch = Path(name)
        found = await _compile_each(work, scratch, policy, say, raced=raced)
        networks = [network for _, network in found]
        compiled = [Path(report.path) for report, _ in found if not report.no_kernels]
        accepted = [tuple(spec.shape for spec in network.inputs) for report, network in found if report.no_kernels]
        free = None
        if accepted or any_shape:
            say("adding the model for other shapes" if any_shape else "adding the model for ONNX Runtime")
            free = await _free(work, networks, Path(found[0][0].path), scratch)
        made = scratch / "network"
        join(compiled, free, accepted, made, scratch, any_shape=any_shape)
        if sign:
            from tunery.delivery.files.signing import read_key
            from tunery.delivery.files.signing import sign as add_signature

            add_signature(made, read_key(sign))
        publish(made, output, NETWORK, inputs=[*files_of(request), *([sign] if sign else [])], force=force)
    report = _together([report for report, _ in found], networks, output)
    network = work.imported.network if work.imported and work.imported.parts else networks[0]
    return report, network


async def _compile_each(
    work: Work, scratch: Path, policy: FillPolicy | None, say: Callable[[str], None], *, raced: bool
) -> list[Compiled]:
    """Compile for each of the request's bindings of shapes, and settle the work's model."""
    requests = work.request.each_shape
    known: Sequence[ImportedModel | None] = [None] * len(requests)
    if work.imported is not None:
        known = work.imported.parts or [work.imported]
    found, imported = list[Compiled](), list[ImportedModel]()
    for number, (request, part) in enumerate(zip(requests, known, strict=True)):
        one = replace(work, request=request, imported=part)

        def told(text: str, number: int = number) -> None:
            say(f"shapes {number + 1} of {len(requests)}: {text}" if len(requests) > 1 else text)

        found.append(await compile_checked(one, scratch / f"{number}.tunery", policy, told, raced=raced))
        imported.append(await one.model())
        whole = together(imported) if len(imported) > 1 else imported[0]  # refuses what does not fit into one file
    work.imported = whole
    return found


async def _free(work: Work, networks: Sequence[Network], alike: Path, scratch: Path) -> Path:
    """Return a file of the model with free dimensions, for ONNX Runtime; its origin is that of the file `alike`."""
    request, target = work.request, (await work.model()).target
    bindings = [one.shapes for one in request.each_shape]
    outputs = [list(network.outputs) for network in networks]
    async with work.stage("prepare", Role.PREPARER) as grant:
        network: Network = await work.runtime.make(
            grant.worker, "load_free", request.model, bindings, outputs, request.trust, deadline_s=IMPORT_DEADLINE_S
        )
    try:
        async with work.stage("compile", Role.IMPORTER) as grant:
            kept = await work.runtime.make(grant.worker, "keep", network, target, "", deadline_s=IMPORT_DEADLINE_S)
    finally:
        work.runtime.release(network.blob)
    work.runtime.take(kept.blob, scratch / "free")
    with open_archive(alike) as archive:
        origin = {**archive.manifest["origin"], "rungs": {}, "elsewhere": len(kept.elsewhere), "verified": None}
    extend_manifest(scratch / "free", {"origin": origin})
    return scratch / "free"


def _together(reports: Sequence[CompileReport], networks: Sequence[Network], output: Path) -> CompileReport:
    """Return the report of a file for several shapes."""
    errors = [report.max_abs_error for report in reports if report.max_abs_error is not None]
    busy = [report.busy_ratio for report in reports if report.busy_ratio is not None]
    tasks = {task.workload: task for report in reports for task in report.tasks}
    shapes = tuple(
        ShapeResult(
            {spec.name: spec.shape for spec in network.inputs}, report.latency_s, report.onnxruntime_s,
            report.no_kernels,
        )
        for report, network in zip(reports, networks, strict=True)
    )  # fmt: skip
    return CompileReport(
        reports[0].network, str(output), output.stat().st_size,
        {task: used for report in reports for task, used in report.coverage.items()},
        max_abs_error=max(errors, default=None),
        tasks=tuple(tasks.values()),
        refused={task: why for report in reports for task, why in report.refused.items()},
        measured=sum(report.measured for report in reports),
        untuned=sum(report.untuned for report in reports),
        left_out={task: why for report in reports for task, why in report.left_out.items()},
        elsewhere={node: why for report in reports for node, why in report.elsewhere.items()},
        model_changed=any(report.model_changed for report in reports),
        sources={task: device for report in reports for task, device in report.sources.items()},
        shapes=shapes,
        busy_ratio=min(busy, default=None),
    )  # fmt: skip
