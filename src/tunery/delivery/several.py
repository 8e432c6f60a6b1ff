"""Compiling for several dialects, of which the fastest file is delivered, or for several shapes, to one file."""

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

from tunery._archive import ACCEPTS, OTHERS, Archive, extend_manifest
from tunery._errors import TuneryError, UsageError
from tunery._outputs import TEXT, check_output, publish
from tunery.delivery.comparing.compare import Contestants, Expected
from tunery.delivery.compile import add_signature, as_before, check_place, compile_checked, deliver, inputs_of
from tunery.delivery.files.combining import combine_archives
from tunery.domain import Network
from tunery.domain.request import CompileOptions, CompileReport, DialectResult, ShapeResult
from tunery.domain.turns import Turn, in_turns
from tunery.engines import Role
from tunery.runtime.importing import IMPORT_DEADLINE_S, ImportedModel, together
from tunery.tuning.work import Work

_ROUNDS, _TURN_S = 7, 0.2
_OURS, _THEIRS = "tunery", "onnxruntime"
Made = tuple[Work, CompileReport, Network]


async def compile_fastest(
    work: Work, output: Path, options: CompileOptions, say: Callable[[str], None]
) -> tuple[CompileReport, Network]:
    """Compile for each dialect of a job, and put the fastest file at `output`; a dialect that cannot is told of in the
    report."""
    request = replace(work.request, store=work.store.url)
    check_place(output, request, options)
    made: dict[str, Made] = {}
    refused, errors = dict(work.refused), list[TuneryError]()
    timing_s = work.runtime.slowness * _ROUNDS * _TURN_S * (1 + len(work.each))
    until = None if work.until is None else work.until - timing_s
    with tempfile.TemporaryDirectory(prefix=".tunery-", dir=output.absolute().parent) as scratch:
        for number, one in enumerate(work.each):
            name = one.request.dialect
            if until is not None:  # each has its share of the time
                one.until = time.monotonic() + (until - time.monotonic()) / (len(work.each) - number)
            place = Path(scratch, name) / output.name
            place.parent.mkdir()

            def told(text: str, name: str = name) -> None:
                say(f"{name}: {text}")

            try:
                made[name] = (one, *await compile_checked(one, place, replace(options, force=False), told))
            except TuneryError as error:
                errors.append(error)
                refused[name] = str(error)
        if not made:
            raise errors[0]
        say("timing the networks in turns")
        times, failed = await time_files(made)
        for name in failed.keys() & made.keys():
            del made[name]
            refused[name] = f"its file cannot be run: {failed[name]}"
        if not made:
            raise next(iter(failed.values()))
        best = min((name for name in made if name in times), key=lambda name: times[name], default=next(iter(made)))
        _, report, network = made[best]
        inputs, force = inputs_of(request, options), options.force
        beside = {Path(text): output.with_name(Path(text).name) for text in report.texts}
        for to in beside.values():
            check_output(to, TEXT, inputs=inputs, force=force)
        before = deliver(Path(report.path), output, request, options)
        for text, to in beside.items():
            publish(text, to, TEXT, inputs=inputs, force=force)
    results = [
        DialectResult(name, times.get(name, report.native_s), report.no_kernels)
        for name, (_, report, _) in made.items()
    ]  # fmt: skip
    results += [DialectResult(name, refused=why) for name, why in refused.items()]
    report = replace(
        report, path=str(output), texts=tuple(map(str, beside.values())), dialect=best, dialects=tuple(results),
        latency_s=times.get(best, report.latency_s), onnxruntime_s=times.get(_THEIRS, report.onnxruntime_s),
    )  # fmt: skip
    return as_before(report, before), network


async def time_files(made: Mapping[str, Made]) -> tuple[dict[str, float], dict[str, TuneryError]]:
    """Nothing where there is no network or no ONNX file. One that fails costs the others nothing: its error is told."""
    ours = {name: one for name, one in made.items() if not one[1].no_kernels and one[2].blob}
    failed: dict[str, TuneryError] = {}
    if not ours:
        return {}, failed
    first = next(iter(ours.values()))[0]
    sides: dict[str, tuple[Contestants, str]] = {}
    with ExitStack() as ends:
        theirs: Expected | None = None
        for name, (work, report, network) in ours.items():
            try:
                blob = work.runtime.blobs.put(Path(report.path), temporary=True)
            except TuneryError as error:  # the disk is full
                failed[name] = error
                continue
            work.runtime.holds.add(blob)
            ends.callback(work.runtime.holds.release, blob)
            started = Contestants.start(work.runtime, network, {_OURS: blob}, theirs)
            ends.callback(started.close)
            sides[name] = started, _OURS
            if theirs is None:
                theirs = Expected([], started.workers[_THEIRS])
                sides[_THEIRS] = started, _THEIRS
        turns: list[Turn[str, list[float]]] = []

        def left() -> list[str]:
            return [name for name in sides if name not in failed]

        async with first.stage("check", Role.MEASURER):
            for turn, name in in_turns(turns, left, lambda done: len(done) == _ROUNDS):
                side, label = sides[name]
                try:
                    turn.taken[name] = await side.ask(label, "samples", _TURN_S, 1)
                except TuneryError as error:
                    failed[name] = error
    return {name: median(chain(*(turn.taken[name] for turn in turns))) for name in left()}, failed


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
        before = deliver(made, output, request, options)
    report = as_before(_together([report for report, _ in found], networks, output), before)
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
        work.runtime.holds.release(network.blob)
    work.runtime.holds.take(kept.blob, scratch / "free")
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
