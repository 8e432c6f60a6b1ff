"""How little a measurement may cost, and what each shortcut does to the winner: real tasks on this machine."""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from statistics import median
from typing import Any

from studies._base import Options, StudyReport
from studies._kept import Kept
from studies._procedures import Bench, Findings, Procedure, hog, rival
from studies._subjects import Subject, prepare
from tunery._settings import cache_directory
from tunery.domain import Calibration
from tunery.domain.request import Request
from tunery.engines import LocalEngine, Role
from tunery.measuring.calibration import COMPUTE, TAU_LOSS, bound_of
from tunery.reports.format import as_text, new_table
from tunery.runtime.calibrate import SlotWorkers, calibrate
from tunery.runtime.runtime import Runtime
from tunery.runtime.spec import RuntimeSpec
from tunery.store import AsyncStore, open_store

CANDIDATES, QUICK_CANDIDATES = 200, 24
REPEATS, PASSES, TRUTHS = 5, 3, 8
SAME = 0.01
RACING_GAIN, THROUGHPUT = 5.0, 0.85
_SERVICE = "studies._timing:StudyMeasurer"
_WIDTH = 118
_SUBJECTS = {
    "metaschedule": (
        ("zoo:mobilenetv1_100", "conv2d"),
        ("zoo:mobilenetv1_100", "depthwise"),
        ("zoo:bert-mini", "matmul"),
    ),
    "fake": (("fake:study?tasks=1&ops=matmul", "dense"), ("fake:study?tasks=1&ops=elementwise", "elementwise")),
}
STOCK, FIXED, RACED = "stock evaluator", "fixed repeats", "racing"
AGAIN = "racing again"
WATCHED, UNWATCHED = "watched", "unwatched"
TRUSTED = ", own timings trusted"
_LEGEND = (
    "kernel time: the candidates' own runs; wall: with loading and verifying. winner truly: the named winner's\n"
    "latency, timed for long and alone; over the best: against the fastest of all that were named. finals: whether\n"
    "isolated finals named it, or (own timings trusted) the fastest in that way's own timings. tau: Kendall's rank\n"
    "agreement, 1 is the same order; deviation: by how much kernels take longer beside others. watched: measuring\n"
    "waits while others use the machine, and what they disturbed is repeated or marked"
)
_FREQUENCY = (
    "a change of clock frequency is not part of this study: a virtual machine cannot make one; what the watch does "
    "about throttling is tested on the fake device"
)


def run(options: Options, dialect: str = "metaschedule") -> StudyReport:
    """Measure the same candidates in every way, alone, beside one another and under load, and compare the winners."""
    wanted = [(Request(model, threads=1, dialect=dialect), kind) for model, kind in _SUBJECTS[dialect]]
    count = QUICK_CANDIDATES if options.quick else CANDIDATES
    kept = Kept(cache_directory(), "measurement", f"{dialect} {count} {wanted}")
    with LocalEngine(kept.directory / "logs") as engine:
        runtime = Runtime(engine, RuntimeSpec(dialect), kept.directory)
        calibration, found = asyncio.run(_study(runtime, wanted, options, dialect, kept))
    report = _report(calibration, found, options)
    kept.remove()
    return report


async def _study(
    runtime: Runtime, wanted: Sequence[tuple[Request, str]], options: Options, dialect: str, kept: Kept
) -> tuple[Calibration, list[Findings]]:
    count = QUICK_CANDIDATES if options.quick else CANDIDATES
    with open_store(str(kept.directory / "study.db")) as opened, AsyncStore(opened) as store:
        subjects = await prepare(runtime, store, wanted, count, options.say, kept)
        device = await runtime.device()
        known = await store.read(lambda calls: calls.calibrations(device.fingerprint))
        runtime.dispatch.submit("study")
        calibration = known[0] if known else await calibrate(
            runtime, store, subjects[0].task.target, dialect, "study", options.say
        )  # fmt: skip
    specs = [runtime.pools.measurer_spec(slot, _SERVICE) for slot in runtime.pools.all_slots]
    async with runtime.stage("study", "measure", Role.MEASURER):
        workers = SlotWorkers(runtime.engine, specs)
        spare = runtime.engine.start(specs[0])
        found = [_one(workers, subject, calibration, options, spare, kept) for subject in subjects]
    runtime.dispatch.end("study")
    return calibration, found


def _one(
    workers: SlotWorkers, subject: Subject, calibration: Calibration, options: Options, spare: str, kept: Kept
) -> Findings:
    """Do a task's steps, but for those that an interrupted run has done."""
    bench = Bench(workers, subject, calibration, options.say)
    known = kept.results(subject.task.key)
    done: list[str] = known.get("done", [])
    if done:
        bench.found.restore(known)
        options.say(f"{subject.name}: an interrupted run has done {', '.join(done)}")
    steps = _steps(bench, workers, options, spare)
    if len(done) < len(steps):
        bench.open()
    for name, step in steps.items():
        if name not in done:
            step()
            done.append(name)
            kept.keep_results(subject.task.key, {**bench.found.plain(), "done": done})
    return bench.found


def _steps(bench: Bench, workers: SlotWorkers, options: Options, spare: str) -> dict[str, Callable[[], object]]:
    """Return what is done with a task, in this order."""
    cores, subject, beside = workers.slots[0], bench.found.subject, bench.beside

    def trusted(one: Procedure) -> None:
        bench.without_finals(f"{one.name}{TRUSTED}", one)

    def at_once(degree: int) -> None:
        bench.learn(degree)  # each slot learns anew how noisy it is beside others: the serial run knows it by now
        trusted(bench.run(_parallel(degree), "race", degree=degree))

    def loaded(load: str, begin: Callable[[], AbstractContextManager[None]], watch: str) -> None:
        with begin():
            bench.run(f"{load}, {watch}", "race" if watch == WATCHED else "blind", finals=watch == WATCHED)

    steps: dict[str, Callable[[], object]] = {
        STOCK: partial(bench.run, STOCK, "stock"),
        FIXED: partial(bench.run, FIXED, "fixed"),
        RACED: lambda: trusted(bench.run(RACED, "race")),
        AGAIN: partial(bench.run, AGAIN, "race"),
    }
    for degree in sorted({bench.found.degree, beside} - {1}):
        steps[_parallel(degree)] = partial(at_once, degree)
    steps["throughput"] = partial(bench.throughput, beside, 2 if options.quick else REPEATS)
    steps["agreement"] = partial(bench.agreements, beside, 2 if options.quick else PASSES)
    steps["repeat"] = partial(bench.repeat, 2 if options.quick else REPEATS)
    loads: list[tuple[str, Callable[[], AbstractContextManager[None]]]] = [("a CPU hog", partial(hog, cores))]
    if not options.quick:
        loads.append(("a second tuner", partial(rival, workers, subject, spare)))
    for load, begin in loads:
        for watch in (WATCHED, UNWATCHED):
            steps[f"{load}, {watch}"] = partial(loaded, load, begin, watch)
    steps["truths"] = partial(bench.truths, 2 if options.quick else TRUTHS)
    return steps


def _parallel(degree: int) -> str:
    return f"{degree} at once"


def _report(calibration: Calibration, found: Sequence[Findings], options: Options) -> StudyReport:
    data = {
        "quick": options.quick,
        "calibration": calibration,
        "tasks": [_data(one, calibration) for one in found],
    }
    summary = f"{_saved(found)}\n{_calibration_line(calibration)}"
    text = "\n\n".join([*(_table(one, calibration) for one in found), _LEGEND, summary, _FREQUENCY])
    plots = {
        "measurement-cost.png": lambda figure: _draw_costs(figure, found),
        "measurement-truth.png": lambda figure: _draw_truths(figure, found),
    }
    return StudyReport("measurement", data, text, _claims(found, calibration), plots)


def _claims(found: Sequence[Findings], calibration: Calibration) -> Mapping[str, bool | None]:
    """Return the bounds that were set beforehand, with what was found, and whether each was met."""
    total = {name: sum(one.procedure(name).device_s for one in found) for name in (STOCK, FIXED, RACED)}
    gain, stock = total[FIXED] / total[RACED], total[STOCK] / total[RACED]
    changed = sum(not one.loss(RACED, FIXED) <= SAME for one in found)
    claims: dict[str, bool | None] = {
        f"racing takes {gain:.1f}x less device time than fixed repeats (at least {RACING_GAIN:g}x)": gain
        >= RACING_GAIN,
        f"racing takes {stock:.0f}x less device time than the stock evaluator (at least 1x)": stock >= 1.0,
        f"racing changes {changed} of {len(found)} winners by more than {SAME:.0%} of true latency (0)": changed == 0,
    }
    for one in found:
        claims |= _parallel_claims(one, calibration)
        steady = sum(same for _, _, same in one.repeated)
        times = len(one.repeated)
        claims[
            f"{one.subject.name}: {steady} of {times} finals of the same races name the same winner or its tie (all; "
            f"the latencies they report spread over {_spread(one):.2%})"
        ] = steady == times
        claims |= _load_claims(one)
    return claims


def _load_claims(one: Findings) -> dict[str, bool]:
    """Return what load does to the winner with the watch, beside what it does without watch and finals."""
    claims = {}
    for procedure in one.procedures:
        load, _, watch = procedure.name.rpartition(", ")
        if watch == WATCHED:
            loss, bare = one.loss(procedure.name, RACED), one.loss(f"{load}, {UNWATCHED}", RACED)
            claims[
                f"{one.subject.name}: the winner under {load} is {loss:+.1%} slower with the watch (at most 1 %; "
                f"{bare:+.1%} without watch and finals)"
            ] = loss <= SAME
    return claims


def _parallel_claims(one: Findings, calibration: Calibration) -> dict[str, bool | None]:
    name = one.subject.name
    parallel = next((p for p in reversed(one.procedures) if p.degree > 1 and p.finals), None)
    if parallel is None:
        return {f"{name}: this device has one slot, so nothing is measured beside others": None}
    lost, loss = one.tau["alone, all"] - one.tau["shared, all"], one.loss(parallel.name, RACED)
    if one.degree == 1:
        price = (
            f"{one.gain:.2f}x as fast, Kendall's tau falls by {lost:.3f}, the winner is {loss:+.1%} slower after finals"
        )
        return {f"{name}: calibration allows one measurement at a time ({parallel.name} would give {price})": None}
    claims: dict[str, bool | None] = {}
    if bound_of(one.subject.task, calibration) == COMPUTE:
        least = THROUGHPUT * one.degree
        claims[
            f"{name}: {one.degree} at once measure {one.gain:.2f}x as fast (at least {least:.2f}x; {_rounds(one)})"
        ] = one.gain >= least
    claims[f"{name}: Kendall's tau falls by {lost:.3f} beside others (at most {TAU_LOSS:g})"] = lost <= TAU_LOSS
    claims[f"{name}: the winner after isolated finals is {loss:+.1%} slower than the serial one (at most 1 %)"] = (
        loss <= SAME
    )
    return claims


def _table(one: Findings, calibration: Calibration) -> str:
    count = len(one.subject.entrants)
    kind = bound_of(one.subject.task, calibration)
    title = f"{one.subject.name}: {count} candidates, {kind}-bound, {one.degree} at once by calibration"
    table = new_table("timed by", "#kernel time each", "#wall each", "#winner truly", "#over the best", "finals")
    best = min((p.truth_s for p in one.procedures if math.isfinite(p.truth_s)), default=math.nan)
    for p in one.procedures:
        trusted = p.name.endswith(TRUSTED)
        table.add_row(
            p.name,
            "" if trusted else f"{p.device_s / count * 1e3:.2f} ms",
            "" if trusted else f"{p.wall_s / count * 1e3:.1f} ms",
            f"{p.truth_s * 1e6:.1f} us",
            f"{p.truth_s / best - 1:+.2%}",
            "yes" if p.finals else "no",
        )
    agreement = ", ".join(f"{name} {value:+.3f}" for name, value in one.tau.items())
    times = len(one.repeated)
    repeated = f"{sum(s for *_, s in one.repeated)} of {times} the same winner or its tie, spread {_spread(one):.2%}"
    prices = ", ".join(
        f"{p.name.removesuffix(TRUSTED)} {one.loss(p.name, p.name.removesuffix(TRUSTED)):+.1%}"
        for p in one.procedures
        if p.name.endswith(TRUSTED)
    )
    notes = (
        f"Kendall's tau: {agreement}\nthe same finals {times} times: {repeated}\n"
        f"without isolated finals the winner is slower by: {prices}"
    )
    gained = f"{max(2, one.degree)} at once gain {one.gain:.2f}x in the median: {_rounds(one)}"
    return f"{title}\n{as_text(table, _WIDTH)}\n{notes}\n{gained if one.rounds else 'one slot'}"


def _rounds(one: Findings) -> str:
    """Say what each alternation gained, beside what was to be had."""
    each = ", ".join(f"{gain:.2f} of {bare:.2f}" for gain, bare in one.rounds)
    return f"in turns {each} by a bare kernel"


def _spread(one: Findings) -> float:
    """Return how far the latencies lie apart that repeated finals report, as a share of their median."""
    values = [latency for _, latency, _ in one.repeated]
    return (max(values) - min(values)) / median(values)


def _saved(found: Sequence[Findings]) -> str:
    """Say what racing saves of the kernels' time, and of all time: loading and verifying are the same either way."""
    raced, fixed = ([one.procedure(name) for one in found] for name in (RACED, FIXED))
    kernel = sum(p.device_s for p in fixed) / sum(p.device_s for p in raced)
    wall = sum(p.wall_s for p in fixed) / sum(p.wall_s for p in raced)
    return f"racing takes {kernel:.1f}x less kernel time than fixed repeats, and {wall:.1f}x less wall time"


def _calibration_line(calibration: Calibration) -> str:
    points = "; ".join(
        f"{p.kind}-bound, {p.degree} at once: {p.deviation:+.1%} slower, tau {p.tau:.3f}, {p.gain:.2f}x throughput"
        for p in calibration.points
    )
    chosen = ", ".join(f"{degree} for {kind}-bound kernels" for kind, degree in calibration.degrees.items())
    return f"calibration: {points or 'one slot'}. Measured at once: {chosen or 'one'}"


def _data(one: Findings, calibration: Calibration) -> dict[str, Any]:
    return {
        "task": one.subject.task.key,
        "name": one.subject.name,
        "kind": one.subject.task.workload.kind,
        "bound": bound_of(one.subject.task, calibration),
        "candidates": len(one.subject.entrants),
        "degree": one.degree,
        "tau": one.tau,
        "throughput": [{"gain": gain, "bare_kernel": bare} for gain, bare in one.rounds],
        "procedures": [
            {
                "name": p.name, "degree": p.degree, "finals": p.finals, "device_s": p.device_s, "wall_s": p.wall_s,
                "winner": p.winner, "truth_s": p.truth_s, "contaminated": p.contaminated, "latencies_s": p.latencies,
            }
            for p in one.procedures
        ],
        "repeated": [{"winner": w, "latency_s": s, "same_or_tie": tie} for w, s, tie in one.repeated],
    }  # fmt: skip


def _draw_costs(figure: Any, found: Sequence[Findings]) -> None:
    axes = figure.subplots()
    for i, one in enumerate(found):
        shown = [p for p in one.procedures if not p.name.endswith(TRUSTED)]
        each = [p.device_s / len(one.subject.entrants) * 1e3 for p in shown]
        axes.barh([j + 0.25 * i for j in range(len(shown))], each, height=0.22, label=one.subject.name)
        axes.set_yticks([j + 0.25 for j in range(len(shown))], [p.name for p in shown])
    axes.set_xscale("log")
    axes.set_xlabel("kernel time per candidate, ms")
    axes.invert_yaxis()
    axes.legend()


def _draw_truths(figure: Any, found: Sequence[Findings]) -> None:
    axes = figure.subplots()
    for i, one in enumerate(found):
        best = min(p.truth_s for p in one.procedures)
        over = [(p.truth_s / best - 1) * 100 for p in one.procedures]
        axes.plot(over, [j + 0.1 * i for j in range(len(over))], "o", label=one.subject.name)
        axes.set_yticks(range(len(over)), [p.name for p in one.procedures])
    axes.set_xlabel("winner's true latency over the best found, %")
    axes.invert_yaxis()
    axes.legend()
