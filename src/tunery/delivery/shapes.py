"""Compiling a model for several shapes to one file: each is compiled and compared with ONNX Runtime alone."""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from tunery._archive import ACCEPTS, OTHERS, Archive, extend_manifest
from tunery._errors import UsageError
from tunery._outputs import NETWORK, publish
from tunery.delivery.compile import add_signature, check_place, compile_checked, inputs_of
from tunery.delivery.fastest import compile_fastest
from tunery.delivery.files.combining import combine_archives
from tunery.domain import Network
from tunery.domain.request import CompileOptions, CompileReport, ShapeResult
from tunery.engines import Role
from tunery.runtime.importing import IMPORT_DEADLINE_S, ImportedModel, together
from tunery.tuning.work import Work

Compiled = tuple[CompileReport, Network]


async def compile_request(work: Work, output: Path, options: CompileOptions, say: Callable[[str], None]) -> Compiled:
    """Compile for any number of bindings of shapes; ONNX Runtime runs those that it is faster for, and with `any_shape`
    all others."""
    request = replace(work.request, store=work.store.url)
    if work.others or work.refused:
        if options.any_shape:
            raise UsageError("a file runs any shape, or is the fastest of several dialects; name one --dialect")
        return await compile_fastest(work, output, options, say)
    if not request.more_shapes and not options.any_shape:
        return await compile_checked(work, output, options, say)
    check_place(output, request, options)
    with tempfile.TemporaryDirectory(prefix=".tunery-", dir=output.absolute().parent) as name:
        scratch = Path(name)
        found = await _compile_each(work, scratch, options, say)
        networks = [network for _, network in found]
        compiled = [Path(report.path) for report, _ in found if not report.no_kernels]
        accepted = [tuple(spec.shape for spec in network.inputs) for report, network in found if report.no_kernels]
        if accepted or options.any_shape:
            say("adding the model for other shapes" if options.any_shape else "adding the model for ONNX Runtime")
            free = await _free(work, networks, Path(found[0][0].path), scratch)
            extend_manifest(free, {ACCEPTS: accepted, OTHERS: options.any_shape})
            compiled.append(free)
        made = compiled[0]
        if len(compiled) > 1:
            made = scratch / "network"
            with ExitStack() as stack:
                combine_archives([stack.enter_context(Archive(path)) for path in compiled], made)
        add_signature(made, options)
        publish(made, output, NETWORK, inputs=inputs_of(request, options), force=options.force)
    report = _together([report for report, _ in found], networks, output)
    network = work.imported.network if work.imported and work.imported.parts else networks[0]
    return report, network


async def _compile_each(
    work: Work, scratch: Path, options: CompileOptions, say: Callable[[str], None]
) -> list[Compiled]:
    requests, alone = work.request.each_shape, replace(options, force=False, sign="")
    known: Sequence[ImportedModel | None] = [None] * len(requests)
    if work.imported is not None:
        known = work.imported.parts or [work.imported]
    found, imported = list[Compiled](), list[ImportedModel]()
    for number, (request, part) in enumerate(zip(requests, known, strict=True)):
        one = replace(work, request=request, imported=part)

        def told(text: str, number: int = number) -> None:
            say(f"shapes {number + 1} of {len(requests)}: {text}" if len(requests) > 1 else text)

        found.append(await compile_checked(one, scratch / f"{number}.tunery", alone, told))
        imported.append(await one.model())
        whole = together(imported) if len(imported) > 1 else imported[0]  # refuses what does not fit into one file
    work.imported = whole
    return found


async def _free(work: Work, networks: Sequence[Network], alike: Path, scratch: Path) -> Path:
    request, target = work.request, (await work.model()).target
    bindings = [one.shapes for one in request.each_shape]
    outputs = [list(network.outputs) for network in networks]
    async with work.stage("prepare", Role.PREPARER) as grant:
        network: Network = await work.runtime.make(
            grant.worker, "load_free", request.model, bindings, outputs, request.trust, deadline_s=IMPORT_DEADLINE_S
        )
    try:
        async with work.stage("compile", Role.IMPORTER) as grant:
            kept = await work.runtime.make(
                grant.worker, "keep", network, target, "", True, deadline_s=IMPORT_DEADLINE_S
            )
    finally:
        work.runtime.release(network.blob)
    work.runtime.take(kept.blob, scratch / "free")
    with Archive(alike) as archive:
        unknown: dict[str, Any] = {"rungs": {}, "verified": None, "verdict": None}
        origin = {**archive.manifest["origin"], **unknown, "elsewhere": len(kept.elsewhere)}
    extend_manifest(scratch / "free", {"origin": origin})
    return scratch / "free"


def _together(reports: Sequence[CompileReport], networks: Sequence[Network], output: Path) -> CompileReport:
    errors = [report.max_abs_error for report in reports if report.max_abs_error is not None]
    tasks = {task.workload: task for report in reports for task in report.tasks}
    shapes = tuple(
        ShapeResult(
            {spec.name: spec.shape for spec in network.inputs}, report.latency_s, report.onnxruntime_s,
            report.no_kernels, report.verdict,
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
    )  # fmt: skip
