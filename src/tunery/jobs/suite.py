"""Many networks against their rivals: tuned, then timed interleaved; every result is written before the next begins."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from tunery._errors import TuneryError, UsageError
from tunery.engines import Role
from tunery.jobs._request import BenchReport, Request
from tunery.jobs.bench import TORCH, product_flops
from tunery.jobs.opening import open_runtime
from tunery.jobs.session import bench
from tunery.measure import this_device, usable_cores

SUITES: Mapping[str, tuple[str, ...]] = {
    "cpu": (
        "resnet18", "resnet50", "mobilenet_v2", "mobilenet_v3_small", "efficientnet_b0", "squeezenet1_1",
        "shufflenet_v2_x1_0", "mnasnet1_0", "densenet121", "googlenet", "vgg11", "regnet_y_400mf", "bert-small",
        "distilbert", "deit_tiny_patch16_224", "unet",
    )
}  # fmt: skip
"""Networks of the zoo, by the suite's name."""

GOAL, LEAST = 1.2, 0.95
_DECIDING = 3
_RIVAL = "onnxruntime"
OTHERS = ("torch", "torch-compiled", "stock")
"""Rivals that take part where they can be had; the goals are against ONNX Runtime."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run: every network on every thread count, `seconds` of timing for each contestant, results in `file`."""

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
    plan: Plan,
    request: Request,
    tune: Callable[[Request], bool] | None,
    say: Callable[[str], None],
    *,
    timed: Callable[[Request, Sequence[str], float], BenchReport] = bench,
    peak: Callable[[Request], float] | None = None,
) -> dict[str, Any]:
    """Tune and time what `plan.file` does not hold yet, and return all its results with their summary.

    `request` names everything but model and threads; `tune` returns whether to go on, None times what is known already.
    Torch takes part where it is installed. A network that fails is noted and tried again next time.

    Raises:
        UsageError: the file cannot be read or written, is of something else, or was made under other conditions.
    """
    results = _read(plan.file, _conditions(request))
    torch = tuple(TORCH) if find_spec("torch") else ()
    for threads in plan.threads:
        if str(threads) not in results["peak_flops"]:
            results["peak_flops"][str(threads)] = (peak or measured_peak)(replace(request, threads=threads))
        for network in plan.networks:
            key = f"{network} x{threads}"
            if "latency_s" in results["runs"].get(key, {}):
                continue
            one = replace(request, model=f"zoo:{network}", threads=threads)
            say(f"{key}: tuning and timing")
            try:
                if tune is not None and not tune(one):
                    return _finished(results)
                run = _run(timed(one, (_RIVAL, *torch), plan.seconds), results["peak_flops"][str(threads)])
            except TuneryError as error:
                run = {"network": network, "threads": threads, "error": str(error)}
            results["runs"][key] = run
            _write(plan.file, _finished(results))
    return _finished(results)


def measured_peak(request: Request) -> float:
    """Return the floating-point operations per second of a large matrix product in ONNX Runtime on as many threads."""
    import asyncio

    with open_runtime(request) as runtime:
        runtime.submit("peak")

        async def run() -> float:
            async with runtime.stage("peak", "peak", Role.MEASURER):
                return await product_flops(runtime)

        return asyncio.run(run())


def _run(report: BenchReport, peak_flops: float) -> dict[str, Any]:
    ours, theirs = report.latency_s["tunery"], report.latency_s[_RIVAL]
    counted = {name: spread for name, spread in report.latency_s.items() if name not in report.wrong}
    absent = {**report.absent, **dict.fromkeys(report.wrong, "it computes something else than ONNX Runtime")}
    known = [task for task in report.tasks if task.latency_s]
    heaviest = sorted(known, key=lambda task: -task.weight * (task.latency_s or 0.0))[:_DECIDING]
    return {
        "network": report.network,
        "threads": report.threads,
        "latency_s": {
            name: {"median": spread.median, "p10": spread.p10, "p90": spread.p90, "samples": spread.samples}
            for name, spread in counted.items()
        },
        "absent": absent,
        "times_faster": theirs.median / ours.median,
        "max_abs_error": report.max_abs_error,
        "tasks_s": report.tasks_s,
        "kernels_s": report.kernels_s,
        "deciding": [
            {
                "name": task.name,
                "kind": task.kind,
                "weight": task.weight,
                "latency_s": task.latency_s,
                "share": task.weight * (task.latency_s or 0.0) / ours.median,
                "of_peak": task.flop / (task.latency_s or math.inf) / peak_flops,
            }
            for task in heaviest
        ],
    }


def _finished(results: dict[str, Any]) -> dict[str, Any]:
    """Return the results with their summary, per thread count and over all."""
    runs = [run for run in results["runs"].values() if "latency_s" in run]
    summary = {}
    for threads in [*sorted({run["threads"] for run in runs}), "all"]:
        faster = {r["network"]: r["times_faster"] for r in runs if threads in ("all", r["threads"])}
        ratios = [r["times_faster"] for r in runs if threads in ("all", r["threads"])]
        if not ratios:
            continue
        mean, least = geometric_mean(ratios), min(ratios)
        summary[str(threads)] = {
            "networks": len(faster),
            "geometric_mean": mean,
            "least": least,
            "won": sum(ratio >= 1 for ratio in ratios),
            "lost": sum(ratio < 1 for ratio in ratios),
            "goals": {f"geometric mean >= {GOAL}": mean >= GOAL, f"none below {LEAST}": least >= LEAST},
            "others": _others([run for run in runs if threads in ("all", run["threads"])]),
        }
    return {**results, "summary": summary}


def _others(runs: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return how much faster than each other rival we are, over the runs it took part in."""
    found = {}
    for name in OTHERS:
        medians = [(run["latency_s"][name]["median"], run["latency_s"]["tunery"]["median"])
                   for run in runs if name in run["latency_s"]]  # fmt: skip
        ratios = [theirs / ours for theirs, ours in medians]
        if ratios:
            won = sum(ratio >= 1 for ratio in ratios)
            found[name] = {"runs": len(ratios), "geometric_mean": geometric_mean(ratios), "least": min(ratios),
                           "won": won}  # fmt: skip
    return found


def _conditions(request: Request) -> dict[str, str]:
    """Return what results must agree in to stand in one table."""
    device = this_device(usable_cores()).fingerprint
    return {"budget": str(request.budget), "target": request.target, "dialect": request.dialect, "device": device}


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
    partial = file.with_name(f".{file.name}.part")
    try:
        partial.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        partial.replace(file)
    except OSError as error:
        raise UsageError(f"cannot write {file} ({error.strerror}); choose another file with -o") from error
