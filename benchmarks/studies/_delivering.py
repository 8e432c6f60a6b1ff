"""Delivering one network in every way of the zero-shot study, and tuning it with and without the pretrained model."""

import json
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from studies._base import Options
from studies._children import watch
from studies._delivered import WITH, WITHOUT, Result, Scale, arms, label_of, model_of
from studies._judged import Way, judge, ways
from studies.stock import finished_side
from tunery._errors import WorkError
from tunery.costmodels.registry import WORKLOAD_DIGITS
from tunery.domain import Budget, Rung, Task
from tunery.domain.request import CompileOptions, Latency, Request, TuneReport
from tunery.runtime import thread_count
from tunery.service.session import bench, compile_model, tune
from tunery.store import open_store

FEW = 4
_BENCH_S = 3.0


def delivered(
    network: str, scale: Scale, options: Options, directory: Path, learned: Collection[str] | None = None
) -> Result:
    """Deliver a network in every way, tune it twice, and time all files in turns.

    `learned` are the workloads that the model has learned from, as its card lists them.

    Raises:
        WorkError: a command failed, or one of our files computes something else than ONNX Runtime.
    """
    model, name = model_of(network), label_of(network)
    files = {way: directory / f"{way}.tunery" for way in ("zero-shot", "few-shot", "tuned")}
    starts: list[float] = []
    said: dict[str, Any] = {}
    for number in range(scale.starts):
        options.say(f"{name}: zero-shot, start {number + 1} of {scale.starts}")
        took_s, said = _commanded(model, files["zero-shot"], directory)
        starts.append(took_s)
    options.say(f"{name}: few-shot")
    few_shot_s, _ = _commanded(model, files["few-shot"], directory, "--few-shot", str(FEW))

    request = Request(model, seed=options.seed, budget=Budget(trials=scale.trials))
    stores = {arm: str(directory / f"{arm}.db") for arm in (WITHOUT, WITH)}
    tunings: dict[str, tuple[float, int, Sequence[Way]]] = {}
    tasks: Sequence[Task] = ()
    for arm, store in stores.items():
        options.say(f"{name}: tuned {arm} the model")
        seconds, report, found = _tuned(replace(request, store=store, pretrained=arm == WITH))
        tunings[arm], tasks = (seconds, report.job.spend.trials, found), report.tasks
    request = replace(request, store=stores[WITH])
    compile_model(request, files["tuned"], CompileOptions(predict=True))
    options.say(f"{name}: the winners of both tunings in turns, then all networks")
    worth = judge(request, tasks, {arm: found for arm, (_, _, found) in tunings.items()})
    stock = finished_side(model, thread_count(request.threads))
    latency_s = _benched(request, files, stock and stock[1], options)
    return Result(
        name, tuple(starts), few_shot_s, sum(task.tunable for task in tasks),
        unpredicted(tasks, said["coverage"], said["refused"]), latency_s, arms(tunings, worth),
        stock[0] if stock and "stock" in latency_s else None,
        None if learned is None else sum(t.tunable and t.workload.key[:WORKLOAD_DIGITS] in learned for t in tasks),
    )  # fmt: skip


def _commanded(model: str, file: Path, directory: Path, *asked: str) -> tuple[float, dict[str, Any]]:
    """Run the command on a cold store and a cold cache; return its seconds and what it said."""
    with tempfile.TemporaryDirectory(dir=directory, ignore_cleanup_errors=True) as cold:
        command = ["-m", "tunery", "compile", model, "-o", str(file), "--effort", "quick", *asked, "--json",
                   "--store", str(Path(cold, "store.db"))]  # fmt: skip
        log = Path(cold, "log")
        watched = watch(command, log, {"TUNERY_CACHE": str(Path(cold, "cache"))})
        return watched.wall_s, document(log.read_text(encoding="utf-8", errors="replace"))


def document(log: str) -> dict[str, Any]:
    """Return the JSON object in what a command printed, between whatever remarks.

    Raises:
        WorkError: there is none.
    """
    lines = log.splitlines()
    try:
        found: dict[str, Any] = json.loads("\n".join(lines[lines.index("{") : len(lines) - lines[::-1].index("}")]))
    except ValueError as error:
        raise WorkError(f"a command printed no JSON document: {log[-300:]}") from error
    return found


def unpredicted(
    tasks: Sequence[Task], coverage: Mapping[str, Mapping[str, Any]], refused: Mapping[str, str]
) -> dict[str, str]:
    """Return the tunable tasks without a prediction, by the label that `compile` gives them, and why each has none."""
    labels = {t.workload.label: t.workload.name for t in tasks if t.tunable}
    return {
        label: refused.get(name, "its prediction could not be compiled")
        for label, name in labels.items()
        if coverage.get(label, {}).get("rung") != Rung.ZERO_SHOT.value
    }


def _tuned(request: Request) -> tuple[float, TuneReport, tuple[Way, ...]]:
    began = time.monotonic()
    report = tune(request)
    seconds = time.monotonic() - began
    with open_store(request.store) as store:
        records = store.records()
    best = {state.task_key: state.best_candidate for state in report.job.tasks}
    return seconds, report, ways(report.tasks, records, best)


def _benched(
    request: Request, files: Mapping[str, Path], stock: Path | None, options: Options
) -> dict[str, tuple[Latency, ...]]:
    """Return, by way, a spread for each of several rounds; in each all files and ONNX Runtime take turns, run by run.

    Raises:
        WorkError: one of our files computes something else than ONNX Runtime; stock's is then only left out.
    """
    found: dict[str, list[Latency]] = {}
    others = {way: file for way, file in files.items() if way != "tuned"} | ({"stock": stock} if stock else {})
    for _ in range(max(2, options.repeats)):
        report = bench(request, ("onnxruntime",), _BENCH_S, compiled=files["tuned"], others=others)
        if wrong := set(report.wrong) - {"stock"}:
            raise WorkError(f"{request.model}: {', '.join(sorted(wrong))} computes something else than ONNX Runtime")
        for label, spread in report.latency_s.items():
            if label not in report.wrong:
                found.setdefault("tuned" if label == "tunery" else label, []).append(spread)
    return {label: tuple(rounds) for label, rounds in found.items()}
