"""Compiling with several dialects: each makes a file, the files are timed in turns, and the fastest is delivered."""

import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from pathlib import Path
from statistics import median

from tunery._errors import TuneryError
from tunery._outputs import NETWORK, TEXT, check_output, publish
from tunery.delivery.comparing.compare import Contestants, Expected
from tunery.delivery.compile import check_place, compile_checked, inputs_of
from tunery.domain import Network
from tunery.domain.request import CompileOptions, CompileReport, DialectResult
from tunery.domain.turns import Turn, in_turns
from tunery.engines import Role
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
    with tempfile.TemporaryDirectory(prefix=".tunery-", dir=output.absolute().parent) as scratch:
        for one in work.each:
            name = one.request.dialect
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
        publish(Path(report.path), output, NETWORK, inputs=inputs, force=force)
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
    return report, network


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
            work.runtime.hold(blob)
            ends.callback(work.runtime.release, blob)
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
