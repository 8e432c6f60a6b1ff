"""Building a network to one file, and checking its outputs before it is handed out."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tunery._archive import extend_manifest
from tunery._errors import CrashError, DialectError, EngineError, LostWorkerError, TuneryError, WorkError
from tunery._outputs import NETWORK, TEXT, check_output, publish, whole_file
from tunery.delivery.comparing.compare import Expected, has_rivals, start_onnxruntime
from tunery.delivery.files.inspection import CompiledFile, better_there
from tunery.delivery.judging import LONGEST_S, judge, judge_again, judge_once
from tunery.delivery.ladder import KnownTask
from tunery.delivery.linking import LinkedNetwork, Linker
from tunery.delivery.placing import divided, labels_of, mended
from tunery.delivery.predict import LATE, get_ready
from tunery.dialects import NetworkCompiler, get_dialect
from tunery.domain import Candidate, Network, Target
from tunery.domain.request import BUSY, NEEDED, CompileOptions, CompileReport, FillPolicy, Request, Verdict
from tunery.engines import Role
from tunery.measuring.inputs import VERSION
from tunery.runtime.importing import ImportedModel, both
from tunery.runtime.services import CheckedBody
from tunery.store import file_of
from tunery.tuning.calls import BUILD_DEADLINE_S
from tunery.tuning.learning import InitialModel
from tunery.tuning.work import CompileTimes, Work


def check_place(output: Path, request: Request, options: CompileOptions) -> None:
    check_output(output, NETWORK, inputs=inputs_of(request, options), force=options.force)
    if options.key:
        from tunery.delivery.files.signing import read_key

        read_key(options.key)


def inputs_of(request: Request, options: CompileOptions) -> list[Path]:
    """Return the files that a compilation reads or keeps its records in, which no output may replace."""
    names = (name for name in (request.model, request.prices) if name and ":" not in name.partition("/")[0])
    return [path for path in (*map(Path, names), file_of(request.store), options.key) if path]


async def compile_checked(
    work: Work, output: Path, options: CompileOptions, say: Callable[[str], None]
) -> tuple[CompileReport, Network]:
    request = replace(work.request, store=work.store.url)
    check_place(output, request, options)
    prepared: asyncio.Future[Network] = asyncio.get_running_loop().create_future()

    def allow(network: Network) -> None:
        if not prepared.done():
            prepared.set_result(network)

    # Extracting tasks keeps one core busy; what the result will be compared with is made on another.
    if work.imported is None:
        say("reading the model")
    with closing(Linker(work, options.policy)) as linker, work.runtime.blobs.scratch() as directory:
        with ExitStack() as ends:
            expected = _expected(work, options, prepared, ends)
            made, theirs = await both(_compile_and_allow(linker, options, allow, say), expected)
            network = made.network
            if network.blob and not made.kept and not theirs.worker:
                made = await _late(linker, made, "the budget of time ended before it was known what is right")
            # Those of the dialect's own file, though ONNX Runtime may run the network in ours: others can use them.
            compiler = NetworkCompiler.of(get_dialect(request.dialect))
            texts = {} if made.kept else compiler.texts(work.runtime.blobs.get(made.blob))
            if network.blob and not made.kept:
                say("comparing the network with ONNX Runtime")
                made = await _judged_in_time(linker, made, theirs, options.onnxruntime, say)
        origin = await _origin(linker, made, theirs)
        linker.take(made, directory / "network")
        extend_manifest(directory / "network", {"origin": origin})
        add_signature(directory / "network", options)
        inputs, force = inputs_of(request, options), options.force
        size_bytes = (directory / "network").stat().st_size
        beside = [output.with_name(f"{output.stem}.tuned{ending}") for ending in texts]
        for path in beside:
            check_output(path, TEXT, inputs=inputs, force=force)
        before = deliver(directory / "network", output, request, options)
    for path, text in zip(beside, texts.values(), strict=True):
        with whole_file(path, TEXT, inputs=inputs, force=force) as file:
            file.write(text.encode())
    changed = work.imported is not None and work.imported.has_changed()
    report = replace(
        made.report, path=str(output), size_bytes=size_bytes, model_changed=changed, texts=tuple(map(str, beside)),
        optimiser=theirs.optimiser,
    )  # fmt: skip
    return as_before(report, before), network


def deliver(made: Path, output: Path, request: Request, options: CompileOptions) -> CompiledFile | None:
    """Bring a compiled network to its place; or leave the file there and return what it says of itself, where that was
    judged to be the faster one."""
    before = None if options.force or options.sign else better_there(made, output)
    if before is None:
        publish(made, output, NETWORK, inputs=inputs_of(request, options), force=options.force)
    return before


def as_before(report: CompileReport, before: CompiledFile | None) -> CompileReport:
    """Return a report that says so if the file of `before` was left in its place."""
    if before is None or before.origin is None or before.origin.verdict is None:
        return report
    speed, now = before.origin.verdict.delivered, report.verdict.delivered if report.verdict else None
    name, slower = Path(report.path).name, f"is {now.ratio:.2f} times as fast" if now else "was not judged faster"
    kept = f"{name} is left as it was, {speed and speed.ratio:.2f} times as fast as ONNX Runtime; what was compiled now"
    return replace(
        report, size_bytes=Path(report.path).stat().st_size, verdict=before.origin.verdict, latency_s=None,
        onnxruntime_s=None, elsewhere={}, left_as_it_was=f"{kept} {slower} (--force replaces it)",
    )  # fmt: skip


async def _expected(
    work: Work, options: CompileOptions, prepared: asyncio.Future[Network], ends: ExitStack
) -> Expected:
    given = work.runtime.blobs.put(Path(options.inputs), temporary=True) if options.inputs else ""
    if given:
        ends.callback(work.runtime.holds.release, given)
    network = await prepared
    try:
        async with asyncio.timeout(_limit_s(work, options, network)):
            found = await start_onnxruntime(work.runtime, network, given=given)
    except TimeoutError:
        return Expected()
    if found.worker:
        ends.callback(work.runtime.engine.kill, found.worker)
    return found


def add_signature(path: Path, options: CompileOptions) -> None:
    if options.key:
        from tunery.delivery.files.signing import read_key, sign

        sign(path, read_key(options.key))


async def _origin(linker: Linker, made: LinkedNetwork, theirs: Expected) -> dict[str, Any]:
    work = linker.work
    device, imported = await work.runtime.device(), await work.model()
    error = made.report.max_abs_error
    return {
        "tunery": version("tunery"),
        "compiler": f"onnxruntime {version('onnxruntime')}" if made.kept else imported.compiler,
        "device": {"name": device.name, "cores": len(device.cores), "fingerprint": device.fingerprint},
        "rungs": dict(Counter(rung for rung, _ in made.report.coverage.values())),
        "elsewhere": len(made.report.elsewhere),
        "verdict": asdict(made.report.verdict) if made.report.verdict else None,
        "verified": {
            "against": f"onnxruntime {version('onnxruntime')}",
            "outputs": len(theirs.sets[0].outputs),
            "max_abs_error": error,
            "inputs": [one.label for one in theirs.sets],
            "left_out": list(theirs.left_out),
            "not_kept": list(made.report.not_kept),
            "optimiser": theirs.optimiser,
            "version": VERSION,
            "differed": linker.differed,
        }
        if error is not None
        else None,
    }


async def _judged_in_time(
    linker: Linker, made: LinkedNetwork, theirs: Expected, onnxruntime: str, say: Callable[[str], None]
) -> LinkedNetwork:
    """Judge it, and remember what compiling all of it has taken."""
    work, linked_s, began = linker.work, linker.linked_s, time.monotonic()
    made = await _judged(linker, made, theirs, onnxruntime, say)
    judged_s = min((time.monotonic() - began) / work.runtime.slowness, LONGEST_S)
    imported, times = await work.model(), work.times
    if linker.late is None and not imported.parts:
        chose_s = linker.chose_s or times.choosing_s
        work.remember(imported, CompileTimes(times.reading_s, chose_s, linked_s, judged_s))
    return made


async def _judged(
    linker: Linker, made: LinkedNetwork, theirs: Expected, onnxruntime: str, say: Callable[[str], None]
) -> LinkedNetwork:
    """Return the model with what computes something else, or is slower, in ONNX Runtime, as far as that is allowed; all
    of it runs there only where nothing else helps."""
    work, name = linker.work, made.network.name
    judged = await judge_once(work, made, theirs)
    linker.differed = bool(judged.wrong)
    if judged.wrong and not has_rivals(work.runtime):  # it can neither be mended there nor handed over
        raise WorkError(f"{name} is not compiled for host {work.runtime.measure_host}, {judged.wrong}")
    times, mendable = work.times, linker.late is None
    if judged.wrong and onnxruntime != "never" and mendable and work.has_time(times.reading_s + times.judging_s):
        say("looking for the operators that compute something else")
        made, judged = await mended(linker, made, judged, theirs)
    if judged.wrong and judged.number and (made.network.weights or onnxruntime in {"never", "parts"}):
        judged, values = await judge(work, made, theirs.only(theirs.sets[0].number)), judged
        made = replace(
            made, report=replace(made.report, not_kept=(*made.report.not_kept, values.wrong.removeprefix("since ")))
        )
    if judged.wrong and (made.network.weights or onnxruntime in {"never", "parts"}):
        barred = f"may not run it (--onnxruntime {onnxruntime})"
        why = "runs no file of more than 2 GB" if made.network.weights else barred
        raise WorkError(f"{name} is not compiled, {judged.wrong}; ONNX Runtime {why} instead")
    native = judged
    if onnxruntime in {"never", NEEDED} or made.network.weights:  # so large a file ONNX Runtime cannot have
        judged = replace(judged, slower=False)
    again = mendable and work.has_time(times.reading_s + times.linking_s + times.judging_s)
    if judged.slower and judged.kernels and judged.nodes and again:
        say("looking for the parts that ONNX Runtime runs faster")
        made, judged = await divided(linker, made, judged, theirs)
    if judged.slower and not judged.wrong and onnxruntime != "parts" and work.has_time(times.judging_s):
        say("timing the network at another moment before ONNX Runtime gets all of it")
        judged, whole = await judge_again(work, made, theirs, judged), judged is native
        native = judged if whole else native
    if judged.reason and onnxruntime != "parts":
        kept = await _kept(linker, made, judged.reason, theirs)
        verdict = replace(kept.report.verdict or Verdict(), native=native.speed)
        report = replace(kept.report, max_abs_error=0.0, verdict=verdict, native_s=native.ours_s)
        return replace(kept, report=report)
    verdict = Verdict(judged.share, judged.speed, native.speed, BUSY if judged.busy else "")
    report = replace(
        made.report, max_abs_error=judged.error, latency_s=judged.ours_s, onnxruntime_s=judged.theirs_s,
        verdict=verdict, native_s=native.ours_s,
    )  # fmt: skip
    return replace(made, report=report)


def _limit_s(work: Work, options: CompileOptions, network: Network) -> float | None:
    """Return how long a network's compilation may take before ONNX Runtime gets what is left of it; None if it may
    not have that."""
    barred = options.onnxruntime in {"never", "parts"} or not network.blob or bool(network.weights)
    if barred or work.until is None or not has_rivals(work.runtime):
        return None
    return max(work.until - time.monotonic(), 0.0)


async def _late(linker: Linker, made: LinkedNetwork, why: str) -> LinkedNetwork:
    kept = await _kept(linker, made, f"since {why}")
    return replace(kept, report=replace(kept.report, verdict=Verdict(onnxruntime_share=1.0, not_judged=why)))


async def _kept(linker: Linker, made: LinkedNetwork, reason: str, theirs: Expected | None = None) -> LinkedNetwork:
    kept = await linker.kept(made.network, reason, optimised=theirs is None or not theirs.optimiser)
    report = replace(
        made.report, size_bytes=kept.size_bytes, coverage={}, left_out={}, elsewhere=kept.elsewhere, not_kept=(),
        verdict=Verdict(onnxruntime_share=1.0),
    )  # fmt: skip
    return replace(made, report=report, blob=kept.blob, kept=True)


async def compile_only(work: Work, ends: ExitStack, *, tuned: bool = True) -> LinkedNetwork:
    linker = ends.enter_context(closing(Linker(work, FillPolicy() if tuned else None, tuned)))
    return await linker.compile(await work.model())


async def _compile_and_allow(
    linker: Linker, options: CompileOptions, allow: Callable[[Network], None], say: Callable[[str], None]
) -> LinkedNetwork:
    """Compile, and `allow` others to run the network's file as soon as that disturbs no measurement."""
    work, policy = linker.work, linker.policy
    measuring = policy is not None and policy.few_shot > 0
    ready: list[asyncio.Task[InitialModel | None]] = []
    known: Sequence[KnownTask]

    def extracting(target: Target, compiler: str) -> None:
        if policy is not None and not measuring and not work.runtime.builds_for_another_kind:
            ready.append(asyncio.create_task(get_ready(work, target, compiler)))

    try:
        imported = await work.model(prepared=(lambda _: None) if measuring else allow, extracting=extracting)
        network = imported.network
        limit_s, times = _limit_s(work, options, network), work.times
        if policy is not None and limit_s is not None and work.until is not None:
            until = work.until - work.runtime.slowness * (times.linking_s + times.judging_s)
            linker.policy = replace(policy, until=until)
        say(f"{_choosing(policy)} {len(imported.tasks)} tasks")
        known = await linker.choices(imported.tasks, ready[0] if ready else None)
        if imported.network.program:
            known = await with_right_defaults(work, known)
    finally:
        await asyncio.gather(*ready, return_exceptions=True)
    allow(network)
    unmade = LinkedNetwork(CompileReport(network.name, "", 0, {}), network, "")
    say("compiling the network")
    if imported.elsewhere and options.onnxruntime == "never":
        node, why = next(iter(imported.elsewhere.items()))
        raise WorkError(
            f"{imported.network.name} is not compiled: {len(imported.elsewhere)} of its nodes need ONNX Runtime, the "
            f"first of them {node} ({why}); leave out --onnxruntime never"
        )
    limit_s = _limit_s(work, options, network)
    try:
        async with asyncio.timeout(limit_s):
            imported, known = await _without_late(linker, imported, known)
            if limit_s != 0.0 and not any(each.late and each.task.tunable for each in known):
                return await linker.link(imported, known)
    except TimeoutError:
        pass
    except (DialectError, EngineError) as error:
        if limit_s is None:
            raise
        return await _kept(linker, unmade, f"since it does not compile: {error}")
    return await _late(
        linker, unmade, "the budget of time ended before its kernels were compiled; `tunery compile` compiles them"
    )


async def _without_late(
    linker: Linker, imported: ImportedModel, known: Sequence[KnownTask]
) -> tuple[ImportedModel, Sequence[KnownTask]]:
    """Leave the operators whose kernels there was no time to choose to ONNX Runtime, if the time suffices for that and
    there are others."""
    late = [each.task for each in known if each.late and each.task.tunable]
    times = linker.work.times
    others = sum(each.task.tunable for each in known) > len(late)
    if not late or not others or not linker.work.has_time(times.reading_s + times.linking_s):
        return imported, known
    labels = labels_of(await linker.nodes(imported.network), late)
    linker.late = await linker.placed(imported, {**imported.elsewhere, **dict.fromkeys(labels, LATE)})
    if linker.policy is not None and linker.work.until is not None:  # a border makes other operators of some
        until = linker.work.until - linker.work.runtime.slowness * times.linking_s
        linker.policy = replace(linker.policy, until=until)
    return linker.late, await linker.choices(linker.late.tasks)


def _choosing(policy: FillPolicy | None) -> str:
    if policy is None:
        return "building what is known of"
    return "measuring predictions for what is not known of" if policy.few_shot else "predicting what is not known of"


_DEADLINE_S = 120.0
_RIGHT = "its default parameters, which give what its reference gives; `tunery tune` finds faster ones"


async def with_right_defaults(work: Work, known: Sequence[KnownTask]) -> tuple[KnownTask, ...]:
    """There is no ONNX Runtime to compare a user's own kernels with: each that would run with its default is compared
    alone. Where the device is absent, nothing can be run."""
    return tuple([each if each.choice.candidate else await _checked(work, each) for each in known])


async def _checked(work: Work, each: KnownTask) -> KnownTask:
    device = await work.runtime.device()
    if device.absent:
        return replace(each, refused=f"nothing of it was verified: {device.absent}")
    runtime, name = work.runtime, each.task.workload.name
    there = runtime.pools.on(Role.BUILDER, [runtime.measure_host])
    if not there:
        unused = f" ({'; '.join(map(str, each.skipped))})" if each.skipped else ""
        raise WorkError(
            f"the default parameters of {name} cannot be verified on {work.request.on}, and no record of it is used"
            f"{unused}; tune it first"
        )
    try:
        async with work.stage("build", Role.BUILDER, each.task.workload.kind, there[0]) as grant:
            found: tuple[Candidate, Candidate] = await runtime.call(
                grant.worker, "baselines", each.task, deadline_s=BUILD_DEADLINE_S
            )
            checked: CheckedBody = await runtime.call(
                grant.worker, "check", each.task, found[1], deadline_s=_DEADLINE_S
            )
    except LostWorkerError:  # it is not the kernel's fault
        raise
    except CrashError as error:
        raise WorkError(f"the default parameters of {name} crash: {str(error).partition(';')[0]}; mend it") from error
    except TuneryError as error:
        raise WorkError(f"the default parameters of {name} do not work: {error}; mend the kernel") from error
    if not checked.verdict.deliverable:
        raise WorkError(
            f"the default parameters of {name} differ from its reference ({checked.verdict.detail}); mend the kernel, "
            "the parameters or the reference"
        )
    if checked.part is not None:
        runtime.holds.add(checked.part.blob)  # others may have the same code in use
        runtime.holds.release(checked.part.blob)
    return replace(each, refused=_RIGHT)
