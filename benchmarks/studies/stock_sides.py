"""The two sides of the study against stock MetaSchedule: each tunes a network in a process of its own, watched."""

import json
import re
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from studies._children import Watched, watch
from studies._our_child import FOUND, ask
from studies._stock_child import DATABASE, LIBRARY, PLAN, TASKS, WORKLOADS
from tunery.dialects.metaschedule.loading.archive import manifest_of, write_archive
from tunery.domain import Budget, Target
from tunery.domain.request import Request
from tunery.models import prepare
from tunery.service.session import compile_model, extract
from tunery.store import open_store

LOG = "tune.log"
_STAMPED = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) \[\w+\] \[task_scheduler\.cc:\d+\] (.*)")
_FAILED_S = 1e9
"""MetaSchedule writes 1e10 seconds for a candidate that failed."""


@dataclass(frozen=True, slots=True)
class Point:
    """Where a side stood: what it had used, and its sum of task latencies (None while a task has none)."""

    wall_s: float
    cpu_s: float
    trials: int
    latency_s: float | None


@dataclass(frozen=True, slots=True)
class Side:
    """How a side tuned a network: from the start of its process to the end; `began` is a point in time.

    `failed` counts trials without a latency: stock's workers need more than its 30 s to start beside other work.
    `compile_s` is what stock's compiling took, 0 where that was not noted.
    """

    network: str
    tasks: int
    trials: int
    failed: int
    began: float
    wall_s: float
    cpu_s: float
    threads: int
    curve: tuple[Point, ...]
    compile_s: float = 0.0

    def settled(self, within: float) -> float | None:
        """Return when the sum of task latencies first was within a factor of its last."""
        known = [(point.wall_s, point.latency_s) for point in self.curve if point.latency_s is not None]
        return next((wall_s for wall_s, latency_s in known if latency_s <= within * known[-1][1]), None)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Our network as it could be had at a moment of the run; compiling it then takes `compile_s` more."""

    label: str
    wall_s: float
    cpu_s: float
    sum_s: float | None
    compile_s: float
    file: str


def stock_side(request: Request, trials: int, work: Path, *, channels_last: bool = False) -> Side:
    """Tune a network with stock MetaSchedule in `work`, which is emptied before, and leave its compiled file there.

    Its convolutions stay as they are imported, channels first, unless `channels_last`.

    Raises:
        UsageError: the model, target or threads are wrong.
        WorkError: stock cannot tune or compile it.
    """
    shutil.rmtree(work, ignore_errors=True)  # a run that was cut off says nothing about its time
    work.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="tunery-study-") as folder:
        imported = extract(replace(request, store=str(Path(folder, "store.db"))))
    plan = {
        "model": prepare(request.model, request.shapes, work, trust=request.trust).path,
        "target": stock_config(imported.target), "threads": imported.target.threads,
        "trials": trials, "seed": request.seed, "channels_last": channels_last,
    }  # fmt: skip
    (work / PLAN).write_text(json.dumps(plan), encoding="utf-8")
    child = ["-m", "studies._stock_child"]
    watched = watch([*child, "tune", str(work)], work / LOG)
    compiled = watch([*child, "compile", str(work)], work / "compile.log")
    write_archive(stock_file(work), manifest_of(imported.network, imported.target, {}), work / LIBRARY)
    (work / LIBRARY).unlink()
    records = stock_records(work)
    tasks = json.loads((work / TASKS).read_text(encoding="utf-8"))
    return Side(
        imported.network.name, len(tasks), len(records), sum(seconds is None for _, seconds in records), watched.began,
        watched.wall_s, watched.cpu_s, imported.target.threads,
        tuple(stock_curve(records, stock_batches(work), tasks, watched)), compiled.wall_s,
    )  # fmt: skip


def stock_file(work: Path) -> Path:
    """Return where a stock side leaves its compiled network."""
    return work / "network.tunery"


def stock_config(target: Target) -> dict[str, Any]:
    """Return a target as stock has it: without the compiler's options that tunery sets."""
    own = {"opt-level", "unswitch", "vector-width"}
    return {name: value for name, value in target.config.items() if name not in own}


@dataclass(frozen=True, slots=True)
class Batch:
    """Candidates of one task that stock measured together, and the point in time at which it knew them."""

    task: int
    count: int
    known_at: float


def stock_records(work: Path) -> list[tuple[str, float | None]]:
    """Read stock's database, oldest first: the workload's hash, and the latency unless the candidate failed."""
    workloads = [json.loads(line)[0] for line in (work / WORKLOADS).read_text(encoding="utf-8").splitlines()]
    found = []
    for line in (work / DATABASE).read_text(encoding="utf-8").splitlines():
        index, (_, run_secs, *_) = json.loads(line)
        seconds = statistics.mean(float(value) for value in run_secs) if run_secs else _FAILED_S
        found.append((workloads[index], seconds if seconds < _FAILED_S else None))
    return found


def stock_batches(work: Path) -> list[Batch]:
    """Read from the scheduler's log when stock knew what: it writes most records down only when it is done."""
    batches: list[Batch] = []
    task, count, running = 0, 0, False
    for line in (work / LOG).read_text(encoding="utf-8", errors="replace").splitlines():
        if (stamped := _STAMPED.match(line)) is None:
            continue
        if running:  # the measuring ends before anything else is said
            batches.append(Batch(task, count, time.mktime(time.strptime(stamped[1], "%Y-%m-%d %H:%M:%S"))))
        running = "to runner" in stamped[2]
        if picked := re.match(r"TaskScheduler picks Task #(\d+)", stamped[2]):
            task = int(picked[1])
        elif sent := re.match(r"Sending (\d+) sample\(s\) to builder", stamped[2]):
            count = int(sent[1])
    return batches


def stock_curve(
    records: Sequence[tuple[str, float | None]],
    batches: Sequence[Batch],
    tasks: Sequence[Mapping[str, Any]],
    watched: Watched,
) -> Iterator[Point]:
    """Yield where stock stood after each batch; `tasks` have `hash` and `weight`, in its own order.

    A task that never gets a latency is in no sum: stock reads out of bounds where an input is an index.
    """
    waiting: dict[str, list[float | None]] = {}
    for workload, latency_s in records:
        waiting.setdefault(workload, []).append(latency_s)
    weights = {
        task["hash"]: task["weight"] for task in tasks if any(one is not None for one in waiting.get(task["hash"], ()))
    }
    best: dict[str, float] = {}
    trials = 0
    for batch in batches:
        key = tasks[batch.task]["hash"]
        mine, waiting[key] = waiting.get(key, [])[: batch.count], waiting.get(key, [])[batch.count :]
        trials += len(mine)
        if known := [one for one in mine if one is not None]:
            best[key] = min(*known, best.get(key, known[0]))
        sum_s = sum(weight * best[key] for key, weight in weights.items()) if weights.keys() <= best.keys() else None
        at_s = min(max(batch.known_at - watched.began, 0.0), watched.wall_s)
        yield Point(at_s, watched.cpu_at(at_s), trials, sum_s)


def our_side(request: Request, budget_s: float, work: Path) -> Side:
    """Tune a network as anybody would, on a cold store and a cold cache, within a budget; the store stays in `work`."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    ask(work, replace(request, store=our_store(work), budget=Budget(seconds=budget_s)))
    cache = work / "cache"
    watched = watch(["-m", "studies._our_child", str(work)], work / "log", {"TUNERY_CACHE": str(cache)})
    shutil.rmtree(cache, ignore_errors=True)
    found = json.loads((work / FOUND).read_text(encoding="utf-8"))
    curve = [
        Point(at - watched.began, watched.cpu_at(at - watched.began), trials, latency_s)
        for at, trials, latency_s in found["points"]
    ]
    return Side(
        found["network"], found["tasks"], found["trials"], found["failed"], watched.began, watched.wall_s,
        watched.cpu_s, found["threads"], tuple(curve),
    )  # fmt: skip


def our_store(work: Path) -> str:
    """Return the store of our side."""
    return str(work / "store.db")


def moments(wall_s: float, first_s: float = 5.0, factor: float = 2**0.5) -> list[float]:
    """Return the moments of a run whose network is looked at: geometric, and its end.

    >>> [round(at) for at in moments(50.0)]
    [5, 7, 10, 14, 20, 28, 40, 50]
    """
    found, at = [], first_s
    while at < wall_s:
        found.append(at)
        at *= factor
    return [*found, wall_s]


def deliver(request: Request, side: Side, work: Path) -> list[Checkpoint]:
    """Compile the network as the store had it at each moment, in order of time; what is compiled already is not again.

    The store is wound back from the last moment to the first. Moments at which a task had no latency are left out, but
    for a task that never gets one.
    """
    done = work / "checkpoints.json"
    known = {c["label"]: Checkpoint(**c) for c in json.loads(done.read_text("utf-8"))} if done.exists() else {}
    whole = any(point.latency_s is not None for point in side.curve)
    for at_s in reversed(moments(side.wall_s)):
        at = [point for point in side.curve if point.wall_s <= at_s]
        ended = at_s == side.wall_s
        label = f"{at_s:.0f} s"
        if label in known or not at or (whole and at[-1].latency_s is None):
            continue
        if not ended:
            with open_store(our_store(work)) as store:
                store.rewind(side.began + at_s)
        file, start = work / f"{at_s:.0f}s.tunery", time.monotonic()
        compile_model(replace(request, store=our_store(work)), file)
        cpu_s = next((point.cpu_s for point in side.curve if point.wall_s >= at_s), side.cpu_s)
        known[label] = Checkpoint(label, at_s, cpu_s, at[-1].latency_s, time.monotonic() - start, str(file))
        done.write_text(json.dumps([asdict(one) for one in known.values()]), encoding="utf-8")
    return sorted(known.values(), key=lambda one: one.wall_s)
