"""Many networks against their rivals: tuned, then timed interleaved; every result is written before the next begins."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from sources import sources

from tunery._errors import EngineError, TuneryError, UsageError, WorkError
from tunery._outputs import Kind, begins_with, whole_file
from tunery.delivery.comparing.compare import TORCH, ContestantError
from tunery.devices import open_device
from tunery.dialects import get_dialect
from tunery.domain.request import BenchReport, Latency, Request
from tunery.engines import Role, WorkerSpec
from tunery.runtime import worker_environment
from tunery.runtime.opening import open_runtime
from tunery.runtime.spec import RuntimeSpec
from tunery.service.session import bench
from tunery.store import place_of

SUITES: Mapping[str, tuple[str, ...]] = {
    "cpu": (
        "resnet18", "resnet50", "mobilenet_v2", "mobilenet_v3_small", "efficientnet_b0", "squeezenet1_1",
        "shufflenet_v2_x1_0", "mnasnet1_0", "densenet121", "googlenet", "vgg11", "regnet_y_400mf", "bert-small",
        "distilbert", "deit_tiny_patch16_224", "unet",
    )
}  # fmt: skip
"""Networks of the zoo, by the suite's name."""

SUITE = Kind("a suite's results", begins_with(rb'\{\s*"suite": '))
GOAL, LEAST = 1.2, 0.95
LEAST_NETWORKS = 12
THREADS = (1, 2)
"""What a suite's goals hold for."""
_DECIDING = 3
_PEAK_DEADLINE_S = 60.0
_VERSIONS = ("tunery", "onnxruntime", "apache-tvm")
_TORCHS = ("torch", "torchvision", "timm", "transformers")
_RIVAL = "onnxruntime"
OTHERS = (*TORCH, "stock")
"""Rivals that take part where they can be had; the goals are against ONNX Runtime."""
_LACKING = {
    **dict.fromkeys(TORCH, "torch is not installed"),
    "stock": "`make study-stock` has not finished it on as many threads",
}
_LOST = "the store holds latencies of fewer of its tasks than before; "

Timed = Callable[[Request, Sequence[str], float, Mapping[str, Path]], BenchReport]
"""Times a request's network beside rivals, so many seconds for each, and beside further files by contestant."""


@dataclass(frozen=True, slots=True)
class SuitePlan:
    """What to run: every network on every thread count, `seconds` of timing for each contestant, results in `file`.

    Thread counts are numbers of threads: 0 for all cores is resolved before.
    """

    networks: tuple[str, ...]
    threads: tuple[int, ...]
    seconds: float
    file: Path


def networks_of(suite: str) -> tuple[str, ...]:
    """Return a suite's networks.

    Raises:
        UsageError: there is no such suite.
    """
    if suite not in SUITES:
        raise UsageError(f"there is no suite {suite!r}; use {', '.join(SUITES)}")
    return SUITES[suite]


def run_suite(
    plan: SuitePlan,
    request: Request,
    tune: Callable[[Request], bool] | None,
    say: Callable[[str], None],
    *,
    timed: Timed = lambda request, against, seconds, others: bench(request, against, seconds, others=others),
    peak: Callable[[Request], float | None] | None = None,
    stock: Callable[[Request], Path | None] = lambda _: None,
) -> dict[str, Any]:
    """Tune and time what `plan.file` does not hold yet, and return all its results with their summary.

    `request` names everything but model and threads; `tune` returns whether to go on, None times what is known already.
    Torch takes part where it is installed, stock MetaSchedule where `stock` returns its compiled file. A network that
    was tuned is only timed again, where that failed, was cut short, lacks a rival that can be had now, or was beside
    other libraries of torch. One that fails is noted and tried again next time; so is one of whose tasks the store
    holds fewer latencies than before.

    Raises:
        UsageError: the file cannot be read or written, is of something else, or was made under other conditions.
    """
    results = _read(plan.file, _conditions(request, plan.seconds))
    runs, peaks, libraries = results["runs"], results["peak_flops"], _libraries()
    for threads in plan.threads:
        if str(threads) not in peaks:
            try:
                peaks[str(threads)] = (peak or measured_peak)(replace(request, threads=threads))
            except (WorkError, EngineError) as error:  # no share of it is shown then, and the next run tries again
                say(f"the peak on {threads} threads is not known: {error}")
        for network in plan.networks:
            key, one = _key(network, threads), replace(request, model=f"zoo:{network}", threads=threads)
            against, others = _rivals(stock(one))
            if _complete(known := runs.get(key, {}), {*against, *others}, libraries):
                continue
            run: dict[str, Any] = {"tuned": False, **known, "network": network, "threads": threads}
            run.pop("error", None)  # what was timed before stays, should this fail
            say(f"{key}: {_doing(run, tune)}")
            try:
                if tune is not None and not run["tuned"]:
                    if not tune(one):
                        return _finished(results, plan)
                    run["tuned"], known = True, {}
                    runs[key] = run
                    _write(plan.file, _finished(results, plan))
                report = _compared(timed, one, against, plan.seconds, others)
                if _lost(known, report):
                    run["tuned"] = False
                    raise WorkError(_LOST + ("the same command tunes it again" if tune else "tune it again"))
                run |= _run(report, (*against, *others)) | {"libraries": libraries}
            except TuneryError as error:
                say(f"{key} failed: {error}")
                run["error"] = str(error)
            runs[key] = run
            _write(plan.file, _finished(results, plan))
    return _finished(results, plan)


def _compared(
    timed: Timed, request: Request, against: Sequence[str], seconds: float, others: Mapping[str, Path]
) -> BenchReport:
    """Time a network; a file beside it that cannot be run is left out, and absent from the report."""
    files, absent = dict(others), dict[str, str]()
    while True:
        try:
            report = timed(request, against, seconds, files)
        except ContestantError as error:
            if error.label not in files:
                raise
            del files[error.label]
            absent[error.label] = error.reason
        else:
            return replace(report, absent={**report.absent, **absent})


def _key(network: str, threads: int) -> str:
    return f"{network} x{threads}"


def _rivals(stock: Path | None) -> tuple[tuple[str, ...], dict[str, Path]]:
    """Return the rivals that can be had now, and the compiled files of further ones."""
    return (_RIVAL, *(TORCH if find_spec("torch") else ())), {"stock": stock} if stock else {}


def _libraries() -> dict[str, str]:
    """Return the versions of torch and of the libraries that have its networks; nothing where torch is missing."""
    found = {}
    for name in _TORCHS if find_spec("torch") else ():
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _complete(run: Mapping[str, Any], available: set[str], libraries: Mapping[str, str]) -> bool:
    """Say whether a run was timed with every rival that can be had now, or it is known why one could not take part.

    With other libraries that reason may not hold any more; with no torch, what took part before stands.
    """
    timed = "latency_s" in run and "error" not in run
    return timed and available <= set(run["asked"]) and (not libraries or libraries == run["libraries"])


def _lost(known: Mapping[str, Any], report: BenchReport) -> bool:
    """Say whether the store has lost what `known` was timed or tuned with: the rest was the compiler's default."""
    least = known["tasks"] - known["unmeasured"] if "tasks" in known else int(known.get("tuned", False))
    return sum(1 for task in report.tasks if task.latency_s) < min(least, len(report.tasks))


def _doing(run: Mapping[str, Any], tune: object) -> str:
    if tune is None:
        return "timing what is known; --budget tunes"
    return "timing, it was tuned before" if run["tuned"] else "tuning and timing"


def measured_peak(request: Request) -> float | None:
    """Return the operations per second that this machine does at most on as many threads.

    None: the dialect cannot tell.
    """
    import asyncio

    with open_runtime(RuntimeSpec.of(request)) as runtime:
        runtime.dispatch.submit("peak")
        spec = WorkerSpec(
            Role.MEASURER, "tunery.runtime.services:Peak", {"dialect": request.dialect},
            cores=runtime.measure_cores, threads=runtime.threads, environment=worker_environment(request.dialect),
        )  # fmt: skip
        worker = runtime.engine.start(spec)

        async def run() -> float | None:
            async with runtime.stage("peak", "peak", Role.MEASURER):
                found: float | None = await runtime.call(
                    worker, "flops", request.target, runtime.threads, deadline_s=_PEAK_DEADLINE_S
                )
                return found

        return asyncio.run(run())


def _run(report: BenchReport, asked: Sequence[str]) -> dict[str, Any]:
    ours, theirs = report.latency_s["tunery"], report.latency_s[_RIVAL]
    counted = {name: spread for name, spread in report.latency_s.items() if name not in report.wrong}
    lacking = {name: why for name, why in _LACKING.items() if name not in asked}
    wrong = dict.fromkeys(report.wrong, "it computes something else than ONNX Runtime")
    known = [task for task in report.tasks if task.latency_s]
    both = [
        (task.weight * task.latency_s, task.weight * task.inside_s)
        for task in known
        if task.latency_s and task.inside_s
    ]
    heaviest = sorted(report.tasks, key=lambda task: -task.weight * (task.known_s or 0.0))[:_DECIDING]
    return {
        "latency_s": {
            name: {"median": spread.median, "p10": spread.p10, "p90": spread.p90, "samples": spread.samples}
            for name, spread in counted.items()
        },
        "asked": list(asked),
        "absent": {**lacking, **report.absent, **wrong},
        "times_faster": theirs.median / ours.median,
        "max_abs_error": report.max_abs_error,
        "tasks_s": report.tasks_s,
        "kernels_s": report.kernels_s,
        "alone_s": sum(alone_s for alone_s, _ in both),
        "inside_s": sum(inside_s for _, inside_s in both),
        "layouts_s": report.layouts_s,
        "tasks": len(report.tasks),
        "unmeasured": len(report.tasks) - len(known),
        "deciding": [
            {
                "name": task.name,
                "workload": task.workload,
                "kind": task.kind,
                "weight": task.weight,
                "latency_s": task.latency_s,
                "inside_s": task.inside_s,
                "share": task.weight * task.known_s / ours.median,
                "flops": task.flop / task.known_s,
                "bytes_per_s": task.size_bytes / task.known_s,
            }
            for task in heaviest
            if task.known_s
        ],
    }


def _finished(results: dict[str, Any], plan: SuitePlan) -> dict[str, Any]:
    """Return the results with shares of the peak and their summary, per thread count and over all of the file."""
    runs = results["runs"]
    for run in runs.values():
        peak = results["peak_flops"].get(str(run["threads"]))
        for one in run.get("deciding", ()):
            one["of_peak"] = one["flops"] / peak if peak else None
    counts = sorted({*plan.threads, *(run["threads"] for run in runs.values())})
    summary = {str(count): _summed(runs, plan.networks, (count,)) for count in counts}
    whole = _summed(runs, plan.networks, counts)
    whole["goals"][f"at {' and '.join(map(str, THREADS))} threads"] = set(THREADS) <= set(counts)
    return {**results, "summary": {**summary, "all": whole}}


def _summed(runs: Mapping[str, Mapping[str, Any]], networks: Sequence[str], counts: Sequence[int]) -> dict[str, Any]:
    """Return what the runs on some thread counts come to, and which of the networks have no result."""
    sound = {key: run for key, run in runs.items() if "latency_s" in run and "error" not in run}
    timed = [run for run in sound.values() if run["threads"] in counts]
    missing = [key for count in counts for network in networks if (key := _key(network, count)) not in sound]
    ratios = [run["times_faster"] for run in timed]
    told = [run["times_faster"] for run in timed if not even(run)]
    mean, least = geometric_mean(ratios) if ratios else None, min(ratios, default=None)
    every = f"all {len(networks)} networks at each thread count, at least {LEAST_NETWORKS}"
    return {
        "networks": len({run["network"] for run in timed}),
        "missing": missing,
        "geometric_mean": mean,
        "least": least,
        "won": sum(ratio >= 1 for ratio in told),
        "even": len(ratios) - len(told),
        "lost": sum(ratio < 1 for ratio in told),
        "goals": {
            every: not missing and len(networks) >= LEAST_NETWORKS,
            f"geometric mean >= {GOAL}": None if mean is None else mean >= GOAL,
            f"none below {LEAST}": None if least is None else least >= LEAST,
        },
        "others": _others(timed),
    }


def even(run: Mapping[str, Any], rival: str = _RIVAL) -> bool:
    """Say whether the spread does not tell who is faster: each side's median is within the other's spread."""
    ours, theirs = (Latency(**run["latency_s"][name]) for name in ("tunery", rival))
    return ours.covers(theirs) and theirs.covers(ours)


def _others(runs: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return how much faster than each other rival we are, over the runs it took part in."""
    found = {}
    for name in OTHERS:
        both = [run for run in runs if name in run["latency_s"]]
        ratios = [run["latency_s"][name]["median"] / run["latency_s"]["tunery"]["median"] for run in both]
        if ratios:
            won = sum(ratio >= 1 and not even(run, name) for run, ratio in zip(both, ratios, strict=True))
            found[name] = {"runs": len(ratios), "geometric_mean": geometric_mean(ratios), "least": min(ratios),
                           "won": won}  # fmt: skip
    return found


def _conditions(request: Request, seconds: float) -> dict[str, str]:
    """Return what results must agree in to stand in one table."""
    return {
        "budget": str(request.budget),
        "target": request.target,
        "dialect": request.dialect,
        "compiler": get_dialect(request.dialect).compiler,
        "device": open_device("cpu").describe().fingerprint,
        "store": place_of(request.store),
        "seconds": f"{seconds:g}",
        "versions": ", ".join(f"{name} {version(name)}" for name in _VERSIONS),
        "code": sources()[:8],
    }


def _read(file: Path, conditions: dict[str, str]) -> dict[str, Any]:
    if not file.exists():
        return {"suite": 1, "conditions": conditions, "peak_flops": {}, "runs": {}}
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        known = data["suite"] == 1
        theirs = dict(data.get("conditions", conditions))
        results = {"peak_flops": dict(data["peak_flops"]), "runs": dict(data["runs"])}
    except (OSError, ValueError, KeyError, TypeError):
        known = False
    if not known:
        raise UsageError(f"{file} holds no results of a suite; choose another file with -o")
    other = [
        f"{name} {theirs.get(name)} instead of {ours}" for name, ours in conditions.items() if theirs.get(name) != ours
    ]
    if other:
        raise UsageError(f"{file} holds results of other conditions ({', '.join(other)}); choose another file with -o")
    return {"suite": 1, "conditions": conditions, **results}


def _write(file: Path, results: Mapping[str, Any]) -> None:
    with whole_file(file, SUITE) as output:
        output.write((json.dumps(results, indent=1) + "\n").encode())
