"""Several jobs at once under every scheduling strategy, on this machine: makespan, idle time and what was found.

The prior work is the load-aware scheduler for auto-tuning, which interleaves the stages of parallel jobs and lost to
plain sharing. Baselines: `sequential` (one job after the other) and `greedy` (free sharing).
"""

import math
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rival_strategies import STRATEGIES

from studies._base import Options, StudyReport
from studies.scheduling_plots import busy_plot, gantt_plot
from studies.scheduling_quality import against_sequential, retime
from studies.scheduling_runs import Run, tune_all
from tunery.domain import Budget
from tunery.domain.request import Request
from tunery.reports.format import as_text, new_table
from tunery.runtime.dispatch import CORE
from tunery.runtime.importing import ImportedModel
from tunery.runtime.runtime import DEVICE
from tunery.service.session import extract

NETWORKS = ("zoo:squeezenet1_1", "zoo:mobilenet_v3_small", "zoo:ds-cnn", "zoo:bert-tiny")
_BOUND, _SLACK, _SAME = 1.15, 1.02, 1.05


@dataclass(frozen=True, slots=True)
class Scale:
    """How large a study is: networks at once, tasks of each (those with the most arithmetic), trials of each."""

    jobs: tuple[int, ...]
    tasks: int
    trials: int


FULL, QUICK = Scale((1, 2, 4), 4, 20), Scale((2,), 2, 24)


def run(options: Options, networks: Sequence[str] = NETWORKS, dialect: str = "metaschedule") -> StudyReport:
    """Tune networks at once under every strategy, on cold stores, in another order of strategies at each repeat."""
    scale = QUICK if options.quick else FULL
    requests = [Request(name, dialect=dialect, budget=Budget(trials=scale.trials)) for name in networks]
    requests = requests[: max(scale.jobs)]
    imported = [_import(request, scale.tasks, options) for request in requests]
    names = list(STRATEGIES)
    runs: list[Run] = []
    for repeat in range(1 if options.quick else options.repeats):
        for jobs in scale.jobs:
            turn = (repeat + jobs) % len(names)
            for strategy in names[turn:] + names[:turn]:
                one = tune_all(strategy, requests[:jobs], imported[:jobs], options.seed + repeat, scale.trials)
                runs.append(replace(one, repeat=repeat))
                options.say(f"{jobs} jobs, {strategy}: {one.makespan_s:.1f} s, bound {one.bound_s:.1f} s")
    rows = []
    for jobs in scale.jobs:
        mine = [one for one in runs if one.jobs == jobs]
        seconds = retime(requests[0], imported[:jobs], mine, options.say)
        quality = against_sequential(mine, seconds, imported[:jobs])
        rows += [_row(name, [one for one in mine if one.strategy == name], quality[name]) for name in names]
    plots = {f"gantt_{jobs}.png": gantt_plot([r for r in runs if r.jobs == jobs]) for jobs in scale.jobs}
    plots["busy.png"] = busy_plot(rows)
    data = {"networks": [r.model for r in requests], "tasks": scale.tasks, "trials": scale.trials,
            "rows": rows, "runs": [_plain(one) for one in runs]}  # fmt: skip
    return StudyReport("scheduling", data, _table(rows), _claims(rows), plots)


def _import(request: Request, count: int, options: Options) -> ImportedModel:
    """Return a network with its heaviest tunable tasks only: all of them would take hours."""
    options.say(f"importing {request.model}")
    with tempfile.TemporaryDirectory(prefix="tunery-study-") as directory:
        imported = extract(replace(request, store=str(Path(directory) / "store.db")))
    heavy = sorted((t for t in imported.tasks if t.tunable), key=lambda t: (-t.weight * t.workload.flop, t.key))
    return replace(imported, tasks=tuple(heavy[:count] or imported.tasks[:count]))


def _row(strategy: str, runs: Sequence[Run], quality: float) -> dict[str, Any]:
    spans = [run.makespan_s for run in runs]
    return {
        "jobs": runs[0].jobs,
        "strategy": strategy,
        "makespan_s": statistics.median(spans),
        "least_s": min(spans),
        "most_s": max(spans),
        "bound_s": statistics.median(run.bound_s for run in runs),
        "over_bound": statistics.median(run.makespan_s / run.bound_s for run in runs),
        "mean_end_s": statistics.median(run.mean_end_s for run in runs),
        "idle_core": statistics.median(run.idle(CORE) for run in runs),
        "idle_device": statistics.median(run.idle(DEVICE) for run in runs),
        "latency_ratio": quality,
        "waited_s": sum(run.waited_s for run in runs),
    }


def _claims(rows: Sequence[dict[str, Any]]) -> dict[str, bool]:
    claims = {}
    for jobs in sorted({row["jobs"] for row in rows}):
        of = {row["strategy"]: row for row in rows if row["jobs"] == jobs}
        mine, word = of["predictive"], f"{jobs} job{'s' * (jobs > 1)}"
        fastest = min(row["makespan_s"] for row in of.values())
        claims[f"{word}: predictive is the fastest, within {_SLACK - 1:.0%}"] = mine["makespan_s"] <= _SLACK * fastest
        claims[f"{word}: predictive takes at most {_BOUND} x the lower bound"] = mine["over_bound"] <= _BOUND
        claims[f"{word}: the mean job ends no later than with greedy"] = (
            mine["mean_end_s"] <= of["greedy"]["mean_end_s"]
        )
        ratio = mine["latency_ratio"]
        claims[f"{word}: its kernels are at most {_SAME - 1:.0%} slower than sequential's"] = (
            math.isfinite(ratio) and ratio <= _SAME
        )
    return claims


def _table(rows: Sequence[dict[str, Any]]) -> str:
    table = new_table(
        "#jobs",
        "strategy",
        "#makespan s",
        "#least",
        "#most",
        "#/ bound",
        "#mean end s",
        "#core idle",
        "#device idle",
        "#latency",
        "#waited s",
    )
    for row in rows:
        table.add_row(
            str(row["jobs"]), row["strategy"], *(f"{row[key]:.1f}" for key in ("makespan_s", "least_s", "most_s")),
            f"{row['over_bound']:.2f}", f"{row['mean_end_s']:.1f}",
            f"{row['idle_core']:.0%}", f"{row['idle_device']:.0%}",
            f"{row['latency_ratio']:.3f}", f"{row['waited_s']:.1f}",
        )  # fmt: skip
    note = "makespan: median over repeats; bound: the work of the busiest resource; latency: over sequential's"
    note += "; waited: measuring was held back while others used our cores, so those runs are disturbed"
    return f"{as_text(table)}\n{note}"


def _plain(run: Run) -> dict[str, Any]:
    return {
        "jobs": run.jobs, "strategy": run.strategy, "repeat": run.repeat, "makespan_s": run.makespan_s,
        "bound_s": run.bound_s, "busy_s": run.busy_s, "capacity": run.capacity, "trials": run.trials,
        "waited_s": run.waited_s, "spans": run.spans,
    }  # fmt: skip
